"""A flipped bit in a file that the package has written is an error that names the file, or changes nothing."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attack_targets import CHAIN, DELTA, EXPORT, PREPARED, RUN

from checkpoint_cases import clicks
from data_cases import rows_of
from sparsegroup.data import PreparedLog
from sparsegroup.errors import UserError
from sparsegroup.serving import open_trained
from sparsegroup.serving.inspection import inspect
from sparsegroup.serving.opening import read_export
from sparsegroup.training import load_run


def read_log(folder: Path) -> Any:
    log = PreparedLog(folder)
    rows = rows_of(log)
    return rows.keys.tolist(), rows.numbers.tolist(), log.values_of(rows.keys.flatten().numpy(), 0)


def read_run(folder: Path) -> Any:
    run = load_run(folder)
    weights = {name: tensor.tolist() for name, tensor in run.model.state_dict().items() if torch.is_tensor(tensor)}
    return weights, repr(run.summary), repr(inspect(open_trained(folder), 3))


def read_served(folder: Path) -> Any:
    export = read_export(folder)
    network = {name: tensor.tolist() for name, tensor in export.network.items()}
    return network, {name: rows.keys.tolist() for name, rows in export.tables.items()}, export.manifest.id


def read_checkpoint(folder: Path) -> Any:
    training = clicks()
    training.load(sorted(folder.iterdir())[-1])
    return repr(training.facts())


KINDS: dict[str, tuple[Callable[[Path], Any], set[str]]] = {
    PREPARED: (read_log, set()),
    RUN: (read_run, {"config.yaml", "provenance.json", "metrics.jsonl", "report.html"}),
    EXPORT: (read_served, set()),
    DELTA: (read_served, set()),
    CHAIN: (read_checkpoint, set()),
}
"""Kind of folder → the function that reads the folder, and the files that are unread or editable."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_an_error_or_changes_nothing(folders: Path, kind: str, tmp_path: Path) -> None:
    for name in (kind, EXPORT):  # a delta builds on an export
        if not (tmp_path / name).exists():
            shutil.copytree(folders / name, tmp_path / name)
    read, others = KINDS[kind]
    expected, draw = read(tmp_path / kind), random.Random(kind)
    files = [path for path in sorted((tmp_path / kind).rglob("*")) if path.is_file() and path.name not in others]
    assert files
    for path in files * 4:
        whole = path.read_bytes()
        place, bit = draw.randrange(len(whole)), 1 << draw.randrange(8)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        try:
            found = read(tmp_path / kind)
        except UserError as error:
            found = expected if path.name in str(error) else str(error)
        assert found == expected, f"bit {bit} of byte {place} in {path}"
        path.write_bytes(whole)
