"""Logs that are made up, of known truth."""
