"""Keys to rows: index, counts, admission, eviction."""
