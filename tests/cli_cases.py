"""What the tests of the command line share: the command, and a small click log."""

import sys
from pathlib import Path

COMMAND = Path(sys.executable).with_name("sparsegroup")


def click_log(path: Path, rows: int = 2_000) -> Path:
    lines = ["label,id,ts,color,size"]
    lines += [f"{int(i % 7 in (1, 3))},{i},{i},c{i % 7},{i * 2654435761 % 97}" for i in range(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path
