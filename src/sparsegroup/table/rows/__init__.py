"""Rows in host or device memory, and their steps."""
