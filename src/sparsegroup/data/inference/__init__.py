"""What the columns of a log are, and which of them know the label, by the log's first rows."""
