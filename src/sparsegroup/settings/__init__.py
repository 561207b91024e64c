"""Settings: the names to choose by, and the files that contain them."""
