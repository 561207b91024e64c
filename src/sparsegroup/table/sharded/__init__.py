"""A table whose rows lie on several ranks: which key belongs where, and what goes to and fro."""
