"""Whether a checkpoint fits the training it is loaded into, and in what the two differ.

A checkpoint of another training is a CheckpointError; content that nothing could have saved is a ValueError, which
`checkpoint_content` reports as damage.
"""

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
from sparsegroup.checkpoint.saved_state import SavedOptimizer, SavedState
from sparsegroup.optim import GroupOptimizer
from sparsegroup.optim.loaded_state import LAST_STEP
from sparsegroup.optim.stored import rows_left_out, store_of
from sparsegroup.penalties import Penalty
from sparsegroup.table.table import Table
from sparsegroup.tensor_words import shape_of

_LARGEST = torch.finfo(torch.float32).max


def kind_of(optimizer: Optimizer) -> str:
    """The rule's name, or the class of torch's own."""
    return optimizer.rule.name if isinstance(optimizer, GroupOptimizer) else type(optimizer).__name__


def check_tables(folder: Path, manifest: CheckpointManifest, ranks: CheckpointRanks) -> None:
    """Raise unless the tables are the model's, and its ranks together have room for the rows."""
    saved, tables = dict(manifest.tables.values()), ranks.tables
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
    """Raise if rows are more than a table may have on its ranks."""
    if rows > ranks * table.config.max_rows:
        on = "" if ranks == 1 else f" on each of {ranks} ranks"
        raise CheckpointError(
            f"{folder}: {rows:,} rows are more than max_rows={table.config.max_rows:,} of the model{on}"
        )


def check_model(folder: Path, saved: Mapping[str, Any], model: nn.Module) -> None:
    """Raise unless names, shapes and dtypes are those of the model."""
    with rows_left_out():
        own = model.state_dict()
    for name in sorted(saved.keys() | own.keys()):
        ours, theirs = (shape_of(content[name]) if name in content else "nothing" for content in (own, saved))
        if ours != theirs:
            raise CheckpointError(f"{folder}: another model's: {name} is {theirs} there, {ours} in the model")


def check_scheduler(folder: Path, state: SavedState, scheduler: LRScheduler) -> None:
    """Raise unless the state is of a scheduler of this class."""
    kind = type(scheduler).__name__
    if state.scheduler_kind != kind or state.scheduler is None:
        saved = state.scheduler_kind
        what = "no learning-rate scheduler" if saved is None else f"the state of a {saved}"
        raise CheckpointError(f"{folder}: holds {what}, and a {kind} is to be loaded")
    own = scheduler.state_dict()
    for name, value in state.scheduler.items():  # each becomes an attribute
        if name in own and not _is_like(value, own[name]):
            raise ValueError(f"state.scheduler.{name} is {value!r}, not like {own[name]!r}")
        if name not in own and (name == "optimizer" or hasattr(type(scheduler), name)):
            raise ValueError(f"state.scheduler.{name} is no state of a {kind}")


def _is_like(value: Any, own: Any) -> bool:
    """Whether a value can replace the scheduler's own."""
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


def check_kinds(folder: Path, state: SavedState, optimizers: Sequence[Optimizer]) -> None:
    """Raise unless the optimizers are of the kinds that were saved."""
    theirs, ours = [one.kind for one in state.optimizers], [kind_of(one) for one in optimizers]
    if theirs != ours:
        raise CheckpointError(
            f"{folder}: was written with the optimizer {', '.join(theirs) or 'none'}, this one is {', '.join(ours)}: "
            "u and the moments of one mean nothing to the other. Load it without an optimizer: the weights are kept, "
            "and the new optimizer starts afresh"
        )


def check_optimizer(where: str, saved: SavedOptimizer, optimizer: Optimizer, rows: Mapping[Table, Table]) -> None:
    """Raise unless steps and settings are in range, and the rows read for a table have the parts of its optimizer.

    Args:
        where: Its place in the checkpoint, for messages.
        saved, optimizer: What was saved, and what it is loaded into.
        rows: The model's table → the rows that were read for it.
    """
    parameters = [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]
    for number, entry in saved.state.items():
        if "step" in entry and not 0 <= float(entry["step"]) <= LAST_STEP:
            raise ValueError(f"{where}.state.{number}.step: a count is expected, got {entry['step']}")
        if not isinstance(optimizer, GroupOptimizer) or type(number) is not int or number >= len(parameters):
            continue
        parameter, group = parameters[number]
        store = store_of(parameter)
        table = rows.get(store) if isinstance(store, Table) else None
        expected = set(optimizer.rule.initial_state(group))
        if table is not None and (found := set(table.rows.initial) - {"u"}) != expected:
            raise ValueError(f"{where}.state.{number}: its rows hold {sorted(found)}, the rule has {sorted(expected)}")
    if not isinstance(optimizer, GroupOptimizer):
        return
    for at, (settings, group) in enumerate(zip(saved.param_groups, optimizer.param_groups, strict=False)):
        for name, value in settings.items():  # in its own range, but beyond that of a step
            if isinstance(value, int | float) and abs(value) > _LARGEST:
                raise ValueError(f"{where}.param_groups.{at}.{name} is beyond float32")
        if settings.get("weight_decay") and any(store_of(parameter) is not None for parameter in group["params"]):
            raise ValueError(f"{where}.param_groups.{at}.weight_decay cannot be applied to rows of a HashEmbedding")


def setting_notes(state: SavedState, optimizers: Sequence[Optimizer], settings: str) -> list[str]:
    """The settings of optimizers that differ, in words."""
    taken = "the checkpoint's is taken" if settings == "saved" else "that is taken; u and the moments are kept"
    scheduled = ("lr", "momentum", "betas") if state.scheduler is not None else ()
    notes = []
    for saved, optimizer in zip(state.optimizers, optimizers, strict=True):
        for before, group in zip(saved.param_groups, optimizer.param_groups, strict=False):
            for name, value in before.items():
                if name in ("params", *scheduled) or name not in group or isinstance(value, Tensor):
                    continue
                here = group[name].plain if isinstance(group[name], Penalty) else group[name]
                if here != value:
                    notes.append(f"{name} is {value!r} in the checkpoint and {here!r} here: {taken}")
    return list(dict.fromkeys(notes))


def version_notes(manifest: CheckpointManifest) -> list[str]:
    """The versions that differ, in words."""
    now = versions()
    return [
        f"it was written with {name} {was}, this is {now[name]}: the same bits are not promised"
        for name, was in manifest.versions.items()
        if name in now and now[name] != was
    ]
