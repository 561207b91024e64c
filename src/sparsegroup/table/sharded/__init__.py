"""A table whose rows are on several ranks: which key belongs where, and what goes to and fro."""
