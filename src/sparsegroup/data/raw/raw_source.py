"""What rows were read from, and how: to tell whether it is still the same."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsegroup.data.formats.log_format import LogFormat


def source_of(logs: Sequence[Path], log: LogFormat) -> dict[str, Any]:
    """Names, sizes and times of the logs, and a hash of everything that the format says, as JSON has it."""
    files = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in logs]
    text = json.dumps({name: value for name, value in vars(log).items() if name != "derive"}, default=dict)
    return {"files": files, "format": hashlib.sha256(text.encode()).hexdigest()[:16]}
