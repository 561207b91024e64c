"""Tables as state dicts and files."""
