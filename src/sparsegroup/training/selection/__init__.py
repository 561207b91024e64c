"""Settings that a log's last training rows choose, before a run begins."""
