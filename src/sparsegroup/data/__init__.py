"""Click logs: opening them, preparing them, and making one up."""

from sparsegroup.errors import ClickLogError, LogOptionError, require
from sparsegroup.importing import document_constructors

require("cli", __name__)

from sparsegroup.data.batches import Bags, Batch
from sparsegroup.data.frames import FrameLog, HashedFrame, columns_of, hash_keys
from sparsegroup.data.inference.columns import kinds_of
from sparsegroup.data.keys import VALUE_BITS
from sparsegroup.data.kinds import ColumnFinding, ColumnKind
from sparsegroup.data.log import Log, MemoryLog
from sparsegroup.data.open import is_prepared, open_log
from sparsegroup.data.order import LogView, ShuffledLog
from sparsegroup.data.preparation import PreparationProgress, prepare
from sparsegroup.data.prepared_log import PreparedLog
from sparsegroup.data.raw.files import BadRows
from sparsegroup.data.raw.raw_log import RawLog
from sparsegroup.data.synthetic import SyntheticConfig, synthetic_log

__all__ = [
    "VALUE_BITS",
    "BadRows",
    "Bags",
    "Batch",
    "ClickLogError",
    "ColumnFinding",
    "ColumnKind",
    "FrameLog",
    "HashedFrame",
    "Log",
    "LogOptionError",
    "LogView",
    "MemoryLog",
    "PreparationProgress",
    "PreparedLog",
    "RawLog",
    "ShuffledLog",
    "SyntheticConfig",
    "columns_of",
    "hash_keys",
    "is_prepared",
    "kinds_of",
    "open_log",
    "prepare",
    "synthetic_log",
]

document_constructors(globals())
