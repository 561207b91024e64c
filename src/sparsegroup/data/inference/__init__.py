"""Inference of the columns' kinds, and of columns that leak the label, from a log's first rows."""
