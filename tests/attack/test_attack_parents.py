"""A folder that builds on one at a path that no system has is refused by file and field."""

import json
from pathlib import Path

import pytest

from forgery import write_sealed
from over import over
from sparsegroup.serving import ExportError, load_export


@over("path", ["x" * 5_000, "../a\0b", "/".join("x" * 5_000), "\ud800"])
def test_a_parent_at_a_path_that_no_system_has(path: str, written: Path) -> None:
    manifest = written / "delta" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["parent"]["path"] = path
    write_sealed(manifest, content)
    with pytest.raises(ExportError, match=r"^\S+/delta/manifest\.json: damaged \(parent\.path: .*, got '"):
        load_export(written / "delta")
