"""What the columns of a log are: told from its first rows, or written down, and what is made of each."""
