"""A run whose tables lie on several ranks is exported, looked into and gone on with as that of one process."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from cli_cases import click_log
from command import Run
from distributed_cases import Ranks
from sharded_cases import first_ranks
from sparsegroup import HashEmbedding
from sparsegroup.checkpoint import Checkpoints
from sparsegroup.checkpoint.manifest import CHECKPOINT
from sparsegroup.serving import ExportError, export
from sparsegroup.table.field_tables import tables_in
from sparsegroup.training import load_run
from sparsegroup.training.run_folder import CHECKPOINTS, RunFolder


def rewritten(run: Path, count: int) -> None:
    """Write a run's checkpoint anew, on so many ranks: all rows, then changes, with rows that were dropped between."""
    group = first_ranks(count) if count else None
    if count and group is None:
        return
    model, optimizer = RunFolder(run).finished_config().build_for(RunFolder(run).columns(), group)
    checkpoints = Checkpoints(run / CHECKPOINTS, keep=1)
    path = RunFolder(run).last_checkpoint()
    extra = checkpoints.load(path, model, optimizer).extra
    step = int(path.name.removeprefix("step-"))
    checkpoints.save(step + 1, model, optimizer, extra=extra, whole=True)
    for table in tables_in(model).values():
        table.shrink()
        own = table.keys.tolist()
        keys = torch.tensor(sorted(own if group is None else table.across.shards.of_all(own, "its keys"))[:3])
        keys = keys if group is None or not group.rank() else keys[:0]
        table.assign(keys, torch.full((len(keys), table.dim), 0.25))
    checkpoints.save(step + 2, model, optimizer, extra=extra)
    manifest = CHECKPOINT.read(RunFolder(run).last_checkpoint())
    assert manifest.parent is not None
    assert {facts.rank for _, facts in manifest.tables.values()} == ({*range(count)} if count else {None})


def facts_of(run: Any) -> list[Any]:
    """What a run that is opened has of each table."""
    tables = tables_in(run.model).values()
    return [(table.field_counts(), table.num_seen, run.optimizer.state[table.weight]["step"]) for table in tables]


def told(run: Run, *arguments: Any) -> dict[str, Any]:
    """What a command tells as JSON, without names of files."""
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    content: dict[str, Any] = json.loads(done.stdout)
    return {name: value for name, value in content.items() if name not in ("folder", "path", "model", "sizes")}


def test_all_that_opens_a_run(tmp_path: Path, run: Run, four_ranks: Ranks) -> None:
    click_log(tmp_path / "log.csv", 600)
    click_log(tmp_path / "next.csv", 300)
    settings = ("--set", "model.dims={color: 2}", "--set", "model.fallback=true")
    options = ("--dim", 4, "--lr", 0.05, "--l21", 1e-3, *settings)
    assert run("train", "log.csv", "--out", "run", *options).returncode == 0
    rewritten(shutil.copytree(tmp_path / "run", tmp_path / "one"), 0)
    four_ranks.call(rewritten, shutil.copytree(tmp_path / "run", tmp_path / "ranks"), 3)
    assert facts_of(load_run("ranks")) == facts_of(load_run("one"))
    says: dict[str, Any] = {}
    for name in ("one", "ranks"):
        exported = told(run, "export", name, f"{name}-export", "--no-onnx", "--dtype", "int8", "--test", "log.csv")
        assert run("predict", name, "next.csv", "--out", f"{name}.csv").returncode == 0
        evaluated, looked = told(run, "evaluate", name, "next.csv"), told(run, "inspect", name)
        assert told(run, "inspect", RunFolder(Path(name)).last_checkpoint())["norms"] == looked["norms"]
        assert run("train", "next.csv", "--continue", name, "--out", f"{name}-next").returncode == 0
        changed = told(run, "export", f"{name}-next", f"{name}-next-export", "--since", f"{name}-export")
        says[name] = exported, evaluated, looked, changed
    assert says["ranks"] == says["one"]
    assert Path("one.csv").read_bytes() == Path("ranks.csv").read_bytes()
    for kind in ("export", "next-export"):
        for file in Path(f"one-{kind}").iterdir():
            if file.name != "manifest.json":
                assert (Path(f"ranks-{kind}") / file.name).read_bytes() == file.read_bytes(), file


def exported_on(count: int, folder: Path) -> str | None:
    """What the export of a table says, which holds as many keys as there are ranks."""
    group = first_ranks(count)
    if group is None:
        return None
    table = HashEmbedding(4, process_group=group)
    table(torch.tensor([group.rank()]))
    try:
        return str(export(table, folder / f"{count}-{group.rank()}", (torch.tensor([0, 1]),), formats=()).live_rows)
    except ExportError as error:
        return str(error)


def test_a_part_of_a_table_is_not_exported_as_if_it_were_all(tmp_path: Path, four_ranks: Ranks) -> None:
    assert four_ranks.call(exported_on, 1, tmp_path)[0] == "1"
    for said in four_ranks.call(exported_on, 2, tmp_path)[:2]:
        assert said.startswith("table: has rows on 2 ranks: write a checkpoint")
