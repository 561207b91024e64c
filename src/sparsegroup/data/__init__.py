"""Click logs: opening them, preparing them, and making one up."""

from sparsegroup.extras import require

require("cli", __name__)

from sparsegroup.data.log import Log
from sparsegroup.data.log_errors import BadRows, ClickLogError, LogOptionError
from sparsegroup.data.log_opening import open_log
from sparsegroup.data.memory_log import MemoryLog
from sparsegroup.data.preparation import prepare
from sparsegroup.data.prepared_log import PreparedLog
from sparsegroup.data.raw.raw_log import RawLog
from sparsegroup.data.synthetic.zipf_log import SyntheticConfig, synthetic_log

__all__ = [
    "BadRows",
    "ClickLogError",
    "Log",
    "LogOptionError",
    "MemoryLog",
    "PreparedLog",
    "RawLog",
    "SyntheticConfig",
    "open_log",
    "prepare",
    "synthetic_log",
]
