"""Training on rows that keep arriving."""
