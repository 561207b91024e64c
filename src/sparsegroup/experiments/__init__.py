"""Comparisons of methods, one module each."""
