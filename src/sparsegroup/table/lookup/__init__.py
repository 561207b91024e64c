"""A batch of keys becomes vectors."""
