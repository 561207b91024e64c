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


_SECONDS = {"ms": 1e-3, "s": 1, "min": 60, "h": 3_600, "d": 86_400}


def seconds_of(time: object) -> float:
    """Seconds, > 0, of a number or a text such as "500ms", "1.5s", "30min", "12h" or "7d"; else ValueError.

    Examples:
        >>> seconds_of("500ms"), seconds_of("2 h"), seconds_of(3)
        (0.5, 7200.0, 3.0)
    """
    match = re.fullmatch(rf"\s*(\d+(?:\.\d*)?|\.\d+)\s*({'|'.join(_SECONDS)})?\s*", str(time).lower())
    seconds = 0.0 if isinstance(time, bool) or match is None else float(match[1]) * _SECONDS[match[2] or "s"]
    if not 0 < seconds < 2**32:
        raise ValueError(
            f"a time must be a number of seconds, > 0, or a text such as '500ms', '30s' or '12h': got {time!r}"
        )
    return seconds


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
