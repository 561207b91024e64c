"""Training that never ends: rows from files that grow, brokers and pipes are predicted, learnt, and published."""

from sparsegroup.errors import require

require("cli", "sparsegroup.streaming")
