"""Click logs: reading them, and making one up."""

from sparsegroup.data.clicklog import ClickLog
from sparsegroup.data.csv import read_csv
from sparsegroup.data.errors import BadRows, ClickLogError
from sparsegroup.data.preparation import prepare
from sparsegroup.data.prepared import PreparedLog
from sparsegroup.data.synthetic import SyntheticConfig, synthetic_log

__all__ = [
    "BadRows",
    "ClickLog",
    "ClickLogError",
    "PreparedLog",
    "SyntheticConfig",
    "prepare",
    "read_csv",
    "synthetic_log",
]
