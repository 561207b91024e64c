"""Settings: files that declare them."""
