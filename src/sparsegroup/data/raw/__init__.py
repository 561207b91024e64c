"""Raw logs: files of rows, read as they are."""
