"""Whether a checkpoint fits what it is to be loaded into, and in what it differs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sparsegroup.checkpoint.checkpoint_error import CheckpointError
from sparsegroup.checkpoint.checkpoint_manifest import CheckpointManifest, versions
from sparsegroup.checkpoint.checkpoint_ranks import CheckpointRanks
from sparsegroup.optim import GroupOptimizer
from sparsegroup.optim.loaded_state import LAST_STEP
from sparsegroup.optim.stored import rows_left_out, store_of
from sparsegroup.penalties import Penalty
from sparsegroup.table.table import Table
from sparsegroup.tensor_words import shape_of

_LARGEST = torch.finfo(torch.float32).max


def kind_of(optimizer: Optimizer) -> str:
    """What an optimizer or its state is told by: the rule's name, or the class of torch's own."""
    return optimizer.rule.name if isinstance(optimizer, GroupOptimizer) else type(optimizer).__name__


def check_tables(
    folder: Path, manifest: CheckpointManifest, tables: Mapping[str, Table], ranks: CheckpointRanks
) -> None:
    """Raise CheckpointError unless the tables are those of the model, and the ranks have room for them together."""
    saved = dict(manifest.tables.values())
    if saved.keys() != tables.keys():
        raise CheckpointError(
            f"{folder}: another model's: it has the tables {', '.join(map(repr, sorted(saved))) or 'none'}, "
            f"the model {', '.join(map(repr, sorted(tables))) or 'none'}"
        )
    for where, facts in manifest.tables.values():
        if mismatch := facts.mismatch(tables[where].config):
            raise CheckpointError(f"{folder}: another model's: the table {where!r} has {mismatch}")
    for where, table in tables.items():
        rows = sum(part.facts.rows for part in manifest.parts(folder, where))
        check_room(folder, rows, table, 1 if table.ranks is None else ranks.routing.ranks)


def check_room(folder: Path, rows: int, table: Table, ranks: int = 1) -> None:
    """Raise CheckpointError if rows are more than a table may have on so many ranks."""
    if rows > ranks * table.config.max_rows:
        on = "" if ranks == 1 else f" on each of {ranks} ranks"
        raise CheckpointError(
            f"{folder}: {rows:,} rows are more than max_rows={table.config.max_rows:,} of the model{on}"
        )


def check_scheduler(folder: Path, content: Any, own: LRScheduler) -> None:
    """Raise CheckpointError unless the state is of a scheduler of this class."""
    saved, ours = content["scheduler_kind"], type(own).__name__
    if saved != ours:
        what = "no learning-rate scheduler" if saved is None else f"the state of a {saved}"
        raise CheckpointError(f"{folder}: holds {what}, and a {ours} is to be loaded")
    state = own.state_dict()
    for name, value in content["scheduler"].items():  # they become its attributes as they are
        if name in state and not _is_like(value, state[name]):
            raise CheckpointError(f"{folder}: damaged (state.scheduler.{name} is {value!r}, not like {state[name]!r})")
        if name not in state and (name == "optimizer" or hasattr(type(own), name)):
            raise CheckpointError(f"{folder}: damaged (state.scheduler.{name} is no state of a {ours})")


def _is_like(value: Any, own: Any) -> bool:
    """Whether a value can stand in the place of one's own."""
    if own is None or value is None:
        return True
    if isinstance(own, bool) or isinstance(value, bool):
        return type(value) is type(own)
    if isinstance(own, int):
        return isinstance(value, int)
    if isinstance(own, float | Tensor):
        return isinstance(value, int | float | Tensor) and not isinstance(value, bool)
    if isinstance(own, list | tuple):
        same = isinstance(value, type(own)) and len(value) == len(own)
        return same and all(map(_is_like, value, own))
    return isinstance(value, Mapping) if isinstance(own, Mapping) else isinstance(value, type(own))


def check_state(
    folder: Path, content: Mapping[str, Any], own: Sequence[Optimizer], rows: Mapping[Table, Table]
) -> None:
    """Raise CheckpointError unless steps and settings are in reach, and rows have the parts of who trains them.

    Args:
        folder: The checkpoint.
        content: What its state holds.
        own: The optimizers.
        rows: The model's table → what was read for it.
    """
    for place, (state, optimizer) in enumerate(zip(content["optimizers"], own, strict=False)):
        if isinstance(optimizer, GroupOptimizer):
            _check_settings(
                f"{folder}: damaged (state.optimizers.{place}.param_groups", state["param_groups"], optimizer
            )
        parameters = [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]
        for number, entry in state["state"].items():
            where = f"{folder}: damaged (state.optimizers.{place}.state.{number}"
            if "step" in entry and not 0 <= float(entry["step"]) <= LAST_STEP:
                raise CheckpointError(f"{where}.step: a count is expected, got {entry['step']})")
            if not isinstance(optimizer, GroupOptimizer) or type(number) is not int or number >= len(parameters):
                continue
            parameter, group = parameters[number]
            store = store_of(parameter)
            table = rows.get(store) if isinstance(store, Table) else None
            expected = set(optimizer.rule.initial_state(group))
            if table is not None and (found := set(table.rows.initial) - {"u"}) != expected:
                raise CheckpointError(f"{where}: its rows hold {sorted(found)}, the rule has {sorted(expected)})")


def check_model(folder: Path, saved: Mapping[str, Any], model: nn.Module) -> None:
    """Raise CheckpointError unless names, shapes and dtypes are those of the model."""
    with rows_left_out():
        own = model.state_dict()
    for name in sorted(saved.keys() | own.keys()):
        ours, theirs = (shape_of(content[name]) if name in content else "nothing" for content in (own, saved))
        if ours != theirs:
            raise CheckpointError(f"{folder}: another model's: {name} is {theirs} there, {ours} in the model")


def check_optimizers(folder: Path, content: Any, own: Sequence[Optimizer], settings: str) -> list[str]:
    """What the settings of optimizers differ in, in words.

    Raises:
        CheckpointError: They are of other kinds.
    """
    saved = content["optimizers"]
    theirs, ours = [state["kind"] for state in saved], [kind_of(one) for one in own]
    if theirs != ours:
        raise CheckpointError(
            f"{folder}: was written with the optimizer {', '.join(theirs) or 'none'}, this one is {', '.join(ours)}: "
            "u and the moments of one mean nothing to the other. Load it without an optimizer: the weights are kept, "
            "and the new optimizer starts afresh"
        )
    by_scheduler = ("lr", "momentum", "betas") if content["scheduler"] is not None else ()
    passed_over = {"params", *by_scheduler}
    notes = [
        f"{name} is {value!r} in the checkpoint and {_plain(group[name])!r} here: {_taken(settings)}"
        for state, one in zip(saved, own, strict=True)
        for before, group in zip(state["param_groups"], one.param_groups, strict=False)
        for name, value in before.items()
        if name not in passed_over and not isinstance(value, Tensor) and name in group and _plain(group[name]) != value
    ]
    return list(dict.fromkeys(notes))


def _plain(value: Any) -> Any:
    """A hyperparameter as an optimizer's state has it."""
    return value.plain if isinstance(value, Penalty) else value


def _taken(settings: str) -> str:
    return "the checkpoint's is taken" if settings == "saved" else "that is taken; u and the moments are kept"


def version_notes(manifest: CheckpointManifest) -> list[str]:
    """Which versions have changed, in words."""
    now = versions()
    return [
        f"it was written with {name} {was}, this is {now[name]}: the same bits are not promised"
        for name, was in manifest.versions.items()
        if name in now and now[name] != was
    ]


def _check_settings(where: str, saved: Sequence[Mapping[str, Any]], own: GroupOptimizer) -> None:
    """Raise CheckpointError where a setting in its own range is beyond what a step can be taken with."""
    for at, (settings, group) in enumerate(zip(saved, own.param_groups, strict=False)):
        for name, value in settings.items():
            if isinstance(value, int | float) and abs(value) > _LARGEST:
                raise CheckpointError(f"{where}.{at}.{name} is beyond float32)")
        if settings.get("weight_decay") and any(store_of(parameter) is not None for parameter in group["params"]):
            raise CheckpointError(f"{where}.{at}.weight_decay cannot be applied to the rows of a HashEmbedding)")
