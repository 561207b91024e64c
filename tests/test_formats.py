"""Folders that earlier versions wrote are read as what they hold. `format_files.py` has written them."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint_damage import forge
from command import Run
from distributed_cases import Ranks
from format_files import checkpointed
from sharded_cases import first_ranks
from sparsegroup.checkpoint import CheckpointError, Checkpoints, load_checkpoint
from sparsegroup.data import PreparedLog, open_log
from sparsegroup.data.formats.schema_file import read_schema
from sparsegroup.penalties import MCP, Penalty
from sparsegroup.serving import read_export
from sparsegroup.training import load_run

VERSIONS = sorted((Path(__file__).parent / "data" / "formats").glob("version-*"), key=lambda path: path.name)
OF_RANKS = VERSIONS[-1]


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """All folders of one version."""
    return shutil.copytree(request.param, tmp_path / request.param.name)


@pytest.fixture
def values(written: Path) -> dict[str, Any]:
    """The numbers in them."""
    content: dict[str, Any] = json.loads((written / "values.json").read_text())
    return content


def check_checkpoint(folder: Path, expected: dict[str, Any], group: Any = None) -> int:
    """Load the checkpoint of changes; gives the number of keys seen."""
    model, optimizer, scheduler = checkpointed(group)
    loaded = load_checkpoint(folder / "step-000000000002", model, optimizer, scheduler)
    assert (loaded.step, loaded.extra) == (2, {"at": 2, "words": ("a", 0.5)})
    assert model["table"].lookup(torch.tensor(expected["keys"])).tolist() == expected["rows"]
    assert model["network"].weight.tolist() == expected["weight"]
    assert optimizer.state[model["network"].weight]["exp_avg_sq"].tolist() == expected["exp_avg_sq"]
    assert int(optimizer.state[model["table"].weight]["step"]) == expected["step"]
    assert [group["l21"] for group in optimizer.param_groups] == expected["l21"]
    assert optimizer.param_groups[0]["lr"] == expected["lr"]
    assert Penalty.of(optimizer.param_groups[0]["penalty"]) == MCP(gamma=expected["mcp_gamma"])
    return int(model["table"].num_seen)


def test_a_checkpoint_of_changes(written: Path, values: dict[str, Any]) -> None:
    expected = values["checkpoint"]
    assert check_checkpoint(written / "checkpoints", expected) == expected["num_seen"]


def on_ranks(folder: Path, expected: dict[str, Any], count: int) -> int:
    group = first_ranks(count)
    return 0 if group is None else check_checkpoint(folder, expected, group)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_a_checkpoint_of_changes_that_two_ranks_wrote(count: int, four_ranks: Ranks) -> None:
    expected = json.loads((OF_RANKS / "values.json").read_text())["checkpoint of ranks"]
    arguments = OF_RANKS / "checkpoints-of-ranks", expected
    seen = four_ranks.call(on_ranks, *arguments, count) if count else [check_checkpoint(*arguments)]
    assert sum(seen) == expected["num_seen"]


def test_a_checkpoint_is_followed_by_one_of_this_version(written: Path) -> None:
    model, optimizer, scheduler = checkpointed()
    checkpoints = Checkpoints(written / "checkpoints", keep=3)
    latest = checkpoints.latest()
    assert latest is not None
    checkpoints.load(latest, model, optimizer, scheduler)
    model["table"](torch.arange(3)).sum().backward()
    optimizer.step()
    path = checkpoints.save(3, model, optimizer, scheduler)
    assert len(checkpoints.paths()) == 3  # it holds changes only
    again, *others = checkpointed()
    assert load_checkpoint(path, again, *others).step == 3
    keys = torch.arange(-3, 11)
    assert torch.equal(again["table"].lookup(keys), model["table"].lookup(keys))


def test_a_forged_random_state_of_a_rank(tmp_path: Path) -> None:
    folder = shutil.copytree(OF_RANKS / "checkpoints-of-ranks", tmp_path / "checkpoints") / "step-000000000001"
    forge(folder, lambda content: content["state"]["ranks"][1]["rng"]["numpy"]["__tuple__"][1].pop())
    model, optimizer, scheduler = checkpointed()
    with pytest.raises(CheckpointError, match=r"damaged \(numpy: 624 words"):
        load_checkpoint(folder, model, optimizer, scheduler)
    assert not model["table"].num_seen


def test_a_prepared_log(written: Path) -> None:
    log = PreparedLog(written / "prepared-log")
    raw = open_log(written / "day1.csv", format=read_schema(written / "schema.yaml"))
    assert (len(log), log.train_rows, log.fields, log.numbers) == (120, 108, ("site", "user"), ("age",))
    ours, theirs = (next(iter(one.batches(0, 120, 120))) for one in (log, raw))
    for name in ("keys", "numbers", "labels"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name))


def test_a_run(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(written)
    run = load_run("run")
    optimizer = run.config.optimizer
    assert (optimizer.name, optimizer.penalty, optimizer.l21) == ("adam", MCP(gamma=3.0), 0.004)
    assert run.columns.fields == ("site", "user")
    assert (run.summary.samples, run.summary.features_seen, run.history[-1].samples) == (108, 26, 108)
    assert run.summary.live_rows == run.model.embedding.num_live > 0


@pytest.mark.parametrize("kind", ["run", "export", "delta"])
def test_a_model_predicts_what_it_did(
    written: Path, values: dict[str, Any], kind: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(written)
    assert run("predict", kind, "day2.csv", "--schema", "schema.yaml", "--out", "scores.csv").returncode == 0
    with Path("scores.csv").open(newline="") as file:
        got = [float(row["probability"]) for row in csv.DictReader(file)][:10]
    assert got == pytest.approx([float(row["probability"]) for row in values[kind]], abs=1e-7)


def test_a_delta_leads_to_its_export(written: Path) -> None:
    base, led = read_export(written / "export"), read_export(written / "delta")
    assert led.manifest.live_rows == len(led.embeddings) > 0
    assert led.manifest.id != base.manifest.id


def test_a_run_is_gone_on_with_and_exported(written: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(written)
    schema = ("--schema", "schema.yaml")
    assert run("train", "day2.csv", "--continue", "run", "--out", "next", *schema).returncode == 0
    ended = run("export", "next", "change", "--since", "delta")
    assert ended.returncode == 0, ended.stderr
    assert len(read_export("change").embeddings) == json.loads(Path("next/summary.json").read_text())["live_rows"]
