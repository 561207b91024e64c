"""Settings that a benchmark gives, so that it measures the same whatever is best by default."""

PLAIN = {
    "model": "dcn",
    "number_buckets": 0,
    "standardize": False,
    "base_rate": False,
    "batch_size": 512,
    "shuffle_buffer": 0,
}
