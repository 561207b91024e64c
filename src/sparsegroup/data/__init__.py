"""Click logs: reading them, and making one up."""

from sparsegroup.data.clicklog import ClickLog
from sparsegroup.data.errors import BadRows, ClickLogError
from sparsegroup.data.opening import open_click_log
from sparsegroup.data.preparation import prepare
from sparsegroup.data.prepared import PreparedLog
from sparsegroup.data.raw import RawLog
from sparsegroup.data.synthetic import SyntheticConfig, synthetic_log

__all__ = [
    "BadRows",
    "ClickLog",
    "ClickLogError",
    "PreparedLog",
    "RawLog",
    "SyntheticConfig",
    "open_click_log",
    "prepare",
    "synthetic_log",
]
