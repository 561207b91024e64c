"""The formats that raw logs come in."""
