"""A parameter whose rows, and the optimizer's state in them, lie in a store: see `ParameterAdapter`."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sparsegroup.groups import check_groups, is_rows
from sparsegroup.optim.arguments import check_device
from sparsegroup.optim.loaded_state import Shielded, check_names
from sparsegroup.optim.plans import ParameterSite, StorePlan
from sparsegroup.optim.stored import RowStore, store_of
from sparsegroup.rules import Rule


class StoreAdapter:
    """See `ParameterAdapter`."""

    def check(self, parameter: Tensor, group: Mapping[str, Any], where: str) -> None:
        """See `ParameterAdapter.check`."""
        check_groups(group["groups"], parameter.shape, where)
        if group["capturable"]:
            raise ValueError(
                f"capturable=True cannot be for a HashEmbedding, whose rows differ from step to step ({where}); give "
                "it a param group of its own"
            )
        check_device(parameter, group, where)

    def plan(
        self,
        parameter: Tensor,
        rule: Rule,
        group: Mapping[str, Any],
        states: Mapping[Tensor, dict[str, Any]],
        numbers: tuple[int, int],
    ) -> StorePlan:
        """See `ParameterAdapter.plan`."""
        site = ParameterSite.of(group, numbers)
        if not is_rows(group["groups"]):
            raise ValueError(f"a HashEmbedding needs groups='rows', got {group['groups']!r} ({site})")
        if group.get("weight_decay"):
            raise ValueError(
                f"weight_decay={group['weight_decay']:g} cannot be applied to a HashEmbedding's rows ({site}); use l2"
            )
        assert parameter.grad is not None
        plan = _store(parameter).plan(
            parameter.grad,
            rule,
            claim=states.get(parameter, {}).get("claim"),
            maximize=group["maximize"],
            wants_u=rule.sigma_0 is not None or any(group[name] > 0 for name in ("l1", "l21", "l2")),
            where=str(site),
            state_dtype=group["state_dtype"],
        )
        return StorePlan(parameter, plan)

    def exported(self, parameter: Tensor, entry: dict[str, Any]) -> dict[str, Any]:
        """The step, the keys, and copies of u and the state as tensors; nothing if the rows hold another's state."""
        content = _store(parameter).export_state(entry["claim"])
        if content is None:
            return {}
        return {"step": entry["step"], **{name: torch.from_numpy(array) for name, array in content.items()}}

    def exported_without_rows(self, parameter: Tensor, entry: dict[str, Any]) -> dict[str, Any] | None:
        """The step alone."""
        return {"step": entry["step"]} if _store(parameter).holds(entry["claim"]) else None

    def adapted(self, parameter: Tensor, entry: dict[str, Any], rule: Rule, where: str) -> dict[str, Any]:
        """See `ParameterAdapter.adapted`."""
        check_names(entry, rule, ("keys",), where)
        for name, value in entry.items():
            if name == "keys":
                if value.dtype != torch.int64 or value.ndim != 1 or len(torch.unique(value)) != len(value):
                    raise ValueError(
                        f"state 'keys' must be distinct int64 [n], got {value.dtype} {list(value.shape)} ({where})"
                    )
            elif name != "step":
                expected = [len(entry["keys"]), parameter.shape[1]]
                if list(value.shape) != expected:
                    raise ValueError(f"state {name!r} has shape {list(value.shape)}, expected is {expected} ({where})")
        return entry

    def restore(self, parameter: Tensor, entry: dict[str, Any], rule: Rule, group: Mapping[str, Any]) -> None:
        """See `ParameterAdapter.restore`. An entry that has its claim is there already (a copied optimizer's)."""
        if "step" in entry:
            entry["step"] = entry["step"].cpu()
        if not entry or "claim" in entry:
            return
        shielded = {name: value for name, value in entry.items() if isinstance(value, Shielded)}
        state = {name: value.tensor.detach().cpu().numpy() for name, value in shielded.items()}
        entry["claim"] = _store(parameter).restore_state(state, rule.initial_state(group), group["state_dtype"])
        for name in shielded:
            del entry[name]


def _store(parameter: Tensor) -> RowStore:
    store = store_of(parameter)
    assert store is not None
    return store
