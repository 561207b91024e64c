"""Raw logs: files of rows, in any format, read as they are.

A kind of file is a module with a `RawFile`, and an entry here. A kind of another package appends itself to `KINDS`.
"""

from pathlib import Path

from sparsegroup.data.raw.columnar_file import ColumnarFile
from sparsegroup.data.raw.raw_file import RawFile
from sparsegroup.data.raw.text_file import TextFile

KINDS: list[type[RawFile]] = [ColumnarFile]
"""Kinds that a file's name tells; all other files are text."""


def raw_file(path: Path) -> RawFile:
    """The file at `path`, by how its name ends."""
    return next((kind for kind in KINDS if path.suffix in kind.suffixes), TextFile)(path)
