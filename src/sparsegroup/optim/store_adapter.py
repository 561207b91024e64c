"""A parameter whose rows, and the optimizer's state in them, lie in a store: see `ParameterAdapter`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsegroup.groups import check_groups, is_rows
from sparsegroup.optim.arguments import check_device
from sparsegroup.optim.group_census import KEY_BYTES, GroupCensus
from sparsegroup.optim.group_step import GroupStep
from sparsegroup.optim.loaded_state import Shielded, check_names
from sparsegroup.optim.plans import ParameterSite, StorePlan
from sparsegroup.optim.stored import KEYS, RowStep, RowStore, StateOwner, store_of
from sparsegroup.rules import Rule


class StoreAdapter:
    """See `ParameterAdapter`."""

    def check(self, parameter: Tensor, group: Mapping[str, Any], where: str) -> None:
        """See `ParameterAdapter.check`."""
        check_groups(group["groups"], parameter.shape, where)
        if not is_rows(group["groups"]):
            raise ValueError(f"a HashEmbedding needs groups='rows', got {group['groups']!r} ({where})")
        if group["capturable"]:
            raise ValueError(
                f"capturable=True cannot be for a HashEmbedding, whose rows differ from step to step ({where}); give "
                "it a param group of its own"
            )
        check_device(parameter, group, where)

    def plan(
        self, parameter: Tensor, step: GroupStep, states: Mapping[Tensor, dict[str, Any]], number: int
    ) -> StorePlan:
        """See `ParameterAdapter.plan`."""
        group = step.group
        site = ParameterSite.of(group, (step.number, number))
        if group.get("weight_decay"):
            raise ValueError(
                f"weight_decay={group['weight_decay']:g} cannot be applied to a HashEmbedding's rows ({site}); use l2"
            )
        assert parameter.grad is not None
        with torch._C.DisableTorchFunctionSubclass():  # a StoredGradient is read as the plain tensor that it is
            plan = _store(parameter).plan(
                parameter.grad,
                step.rule,
                claim=states.get(parameter, {}).get(KEYS),
                maximize=group["maximize"],
                wants_u=step.wants_u,
                where=site,
                state_dtype=group["state_dtype"],
            )
        return StorePlan(parameter, plan)

    def census(
        self,
        parameter: Tensor,
        step: GroupStep,
        entry: dict[str, Any],
        sample: int,
        draw: np.random.Generator,
    ) -> list[GroupCensus]:
        """See `ParameterAdapter.census`. Rows that never had a gradient insist on nothing."""
        store = _store(parameter)
        live_bytes = store.dim * store.weight_dtype.itemsize + KEY_BYTES
        count = store.num_rows
        rows = draw.integers(0, count, sample) if 0 < sample < count else None
        critical = store.survival_l21(_row_step(step, entry), rows)
        critical[np.isinf(critical)] = 0.0
        weight = count / len(critical) if len(critical) else 0.0
        here = [GroupCensus(critical, weight, store.num_live, store.num_seen, live_bytes)]
        return here if store.ranks is None else store.ranks.of_all(here, "the census of rows")

    def sweep(self, parameter: Tensor, step: GroupStep, entry: dict[str, Any], *, zero_untrained: bool) -> None:
        """See `ParameterAdapter.sweep`."""
        _store(parameter).sweep(_row_step(step, entry), drops=zero_untrained and step.regularizer.l21 > 0)

    def exported(self, parameter: Tensor, entry: dict[str, Any]) -> dict[str, Any]:
        """The step, the keys, and copies of u and the state as tensors; nothing if the rows hold another's state."""
        store = _store(parameter)
        content = store.export_state(entry[KEYS])
        if content is None:
            return {}
        own = {store.own_name(name): torch.from_numpy(array) for name, array in content.items()}
        return {"step": entry["step"], **own}

    def adapted(self, parameter: Tensor, entry: dict[str, Any], rule: Rule, where: str) -> dict[str, Any]:
        """See `ParameterAdapter.adapted`. Entries are of all rows, or of this rank's."""
        entry = {_entry_of(parameter, name, where): value for name, value in entry.items()}
        check_names(entry, rule, (KEYS,), where)
        for name, value in entry.items():
            if name == KEYS:
                if value.dtype != torch.int64 or value.ndim != 1 or len(torch.unique(value)) != len(value):
                    raise ValueError(
                        f"state 'keys' must be distinct int64 [n], got {value.dtype} {list(value.shape)} ({where})"
                    )
            elif name != "step":
                expected = [len(entry[KEYS]), parameter.shape[1]]
                if list(value.shape) != expected:
                    raise ValueError(f"state {name!r} has shape {list(value.shape)}, expected is {expected} ({where})")
        return entry

    def restore(self, parameter: Tensor, entry: dict[str, Any], rule: Rule, group: Mapping[str, Any]) -> None:
        """See `ParameterAdapter.restore`. An entry that has its claim is there already (a copied optimizer's)."""
        if "step" in entry:
            entry["step"] = entry["step"].cpu()
        if not entry or isinstance(entry[KEYS], StateOwner):
            return
        shielded = {name: value for name, value in entry.items() if isinstance(value, Shielded)}
        state = {name: value.tensor.detach().cpu().numpy() for name, value in shielded.items()}
        claim = _store(parameter).restore_state(state, rule.initial_state(group), group["state_dtype"])
        entry.update(dict.fromkeys(shielded, claim))


def _row_step(step: GroupStep, entry: Mapping[str, Any]) -> RowStep:
    numbers = step.numbers(float(entry["step"]))
    dtype = step.group["state_dtype"]
    return RowStep(step.rule, entry[KEYS], step.initial, dtype, True, numbers, step.settings)


def _entry_of(parameter: Tensor, name: str, where: str) -> str:
    """What an entry of a loaded state is of.

    Raises:
        ValueError: Another rank's rows.
    """
    try:
        return _store(parameter).entry_of(name)
    except ValueError as error:
        raise ValueError(f"state {name!r} {error} ({where})") from error


def _store(parameter: Tensor) -> RowStore:
    store = store_of(parameter)
    assert store is not None
    return store
