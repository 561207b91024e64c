"""Whether a checkpoint fits what it is to be loaded into, and in what it differs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sparsegroup.checkpoint.checkpoint_error import CheckpointError
from sparsegroup.checkpoint.checkpoint_manifest import CheckpointManifest, versions
from sparsegroup.optim import GroupOptimizer
from sparsegroup.penalties import Penalty
from sparsegroup.table.table import Table
from sparsegroup.table.table_state_dict import rows_left_out


def kind_of(optimizer: Optimizer) -> str:
    """What an optimizer or its state is told by: the rule's name, or the class of torch's own."""
    return optimizer.rule.name if isinstance(optimizer, GroupOptimizer) else type(optimizer).__name__


def check_tables(folder: Path, manifest: CheckpointManifest, tables: Mapping[str, Table]) -> None:
    """Raise CheckpointError unless the tables are those of the model."""
    saved = dict(manifest.tables.values())
    if saved.keys() != tables.keys():
        raise CheckpointError(
            f"{folder}: another model's: it has the tables {', '.join(map(repr, sorted(saved))) or 'none'}, "
            f"the model {', '.join(map(repr, sorted(tables))) or 'none'}"
        )
    for where, facts in saved.items():
        if mismatch := facts.mismatch(tables[where].config):
            raise CheckpointError(f"{folder}: another model's: the table {where!r} has {mismatch}")
        if facts.rows > tables[where].config.max_rows:
            raise CheckpointError(
                f"{folder}: {facts.rows:,} rows are more than max_rows={tables[where].config.max_rows:,} of the model"
            )


def check_scheduler(folder: Path, content: Any, own: LRScheduler) -> None:
    """Raise CheckpointError unless the state is of a scheduler of this class."""
    saved, ours = content["scheduler_kind"], type(own).__name__
    if saved != ours:
        what = "no learning-rate scheduler" if saved is None else f"the state of a {saved}"
        raise CheckpointError(f"{folder}: holds {what}, and a {ours} is to be loaded")


def check_model(folder: Path, saved: Mapping[str, Any], model: nn.Module) -> None:
    """Raise CheckpointError unless names, shapes and dtypes are those of the model."""
    with rows_left_out():
        own = model.state_dict()
    for name in sorted(saved.keys() | own.keys()):
        ours, theirs = (_shape(content[name]) if name in content else "nothing" for content in (own, saved))
        if ours != theirs:
            raise CheckpointError(f"{folder}: another model's: {name} is {theirs} there, {ours} in the model")


def _shape(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


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
