"""Names and sizes in arguments of the core; nothing that takes time to import."""

import re
from datetime import UTC, datetime
from typing import Literal

_UNITS = {
    "": 1, "b": 1, "k": 1e3, "kb": 1e3, "m": 1e6, "mb": 1e6, "g": 1e9, "gb": 1e9, "t": 1e12, "tb": 1e12,
    "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
}  # fmt: skip


def bytes_of(size: object) -> int:
    """A number of bytes, ≥ 1, from a number or a text such as "200MB" (10⁶) or "1.5 GiB" (2³⁰); else ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", str(size).lower())
    if isinstance(size, bool) or match is None or match[2] not in _UNITS:
        raise ValueError(f"a size must be a number of bytes, or a text such as '200MB' or '1.5GiB', got {size!r}")
    count = float(match[1]) * _UNITS[match[2]]
    if count >= 2.0**63:
        raise ValueError(f"a size must be below 2⁶³ bytes, got {count:g}")
    if count < 1:
        raise ValueError(f"a size must be at least 1 byte, got {size!r}")
    return int(count)


NormName = Literal["s", "s_tilde", "metric"]
"""The names of `PracticalNorm`, `PrintedNorm` and `MetricNorm`."""

PenaltyName = Literal["lasso", "mcp", "hard"]
"""The names of `Lasso`, `MCP` and `Hard`."""


def moment_of(given: object) -> int:
    """Seconds since 1970 of a date or a time in ISO 8601, such as "2026-05-12" or "2026-05-12 06:00"; UTC if no zone
    is given. ValueError for anything else.

    Examples:
        >>> moment_of("1970-01-02"), moment_of("1970-01-01 01:00+01:00")
        (86400, 0)
    """
    try:
        moment = datetime.fromisoformat(str(given).strip())
    except ValueError:
        raise ValueError(f"wants a date or a time, such as 2026-05-12 or 2026-05-12T06:00: got {given!r}") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
