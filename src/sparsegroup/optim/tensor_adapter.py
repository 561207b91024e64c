"""The stepper of parameters that are tensors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsegroup.groups import check_groups, is_rows, mean_square
from sparsegroup.kernels.gpu import runtime
from sparsegroup.kernels.step import TensorPlan, check_rows, compute_dtype
from sparsegroup.optim import tensor_sweep
from sparsegroup.optim.arguments import check_device
from sparsegroup.optim.group_census import GroupCensus
from sparsegroup.optim.group_step import Entry, GroupStep, ParameterSite
from sparsegroup.optim.loaded_state import UncastTensor, check_names
from sparsegroup.optim.local_shard import check_is_not_flattened, is_sharded, whole
from sparsegroup.rules import Rule

_COMPUTED = (torch.float32, torch.float64)
_TAKEN = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class TensorStepper:
    """See `Stepper`. State of a tensor lies in tensors of the same shape."""

    def check(self, parameter: Tensor, group: Mapping[str, Any], where: str) -> None:
        if parameter.layout != torch.strided:
            raise ValueError(f"parameters must be dense, got layout {parameter.layout} ({where})")
        if parameter.dtype not in _TAKEN:
            raise ValueError(
                f"parameters must be float64, float32, bfloat16 or float16, got {parameter.dtype} ({where})"
            )
        check_groups(group["groups"], parameter.shape, where)
        check_is_not_flattened(parameter, group, where)
        check_device(parameter, group, where)

    def plan(
        self, parameter: Tensor, gradient: Tensor, step: GroupStep, states: Mapping[Tensor, Entry], number: int
    ) -> TensorPlan:
        dtype = parameter.dtype
        if (
            step.takes_gradients_unchanged
            and gradient.layout is torch.strided
            and gradient.dtype is dtype
            and dtype in _COMPUTED
            and gradient.shape == parameter.shape
        ):
            return TensorPlan(parameter, gradient)
        return _read(parameter, gradient, step, number)

    def census(
        self, parameter: Tensor, step: GroupStep, entry: Entry, sample: int, draw: np.random.Generator
    ) -> list[GroupCensus]:
        """See `Stepper.census`. Groups that never had a gradient do not count."""
        return [tensor_sweep.census(parameter, step, entry, sample, draw)]

    def sweep(self, parameter: Tensor, step: GroupStep, entry: Entry, *, zero_untrained: bool) -> None:
        tensor_sweep.sweep(parameter, step, entry)

    def exported(self, parameter: Tensor, entry: Entry) -> Entry:
        return entry

    def adapted(self, parameter: Tensor, entry: Entry, rule: Rule, where: str) -> Entry:
        check_names(entry, rule, (), where)
        for name, value in entry.items():
            if name != "step" and value.shape != parameter.shape:
                raise ValueError(
                    f"state {name!r} has shape {list(value.shape)}, the parameter {list(parameter.shape)} ({where})"
                )
        return entry

    def restore(self, parameter: Tensor, entry: Entry, rule: Rule, group: Mapping[str, Any]) -> None:
        """See `Stepper.restore`: u and the state keep their dtype, whatever the parameter's is."""
        for name, value in entry.items():
            if isinstance(value, UncastTensor):
                if not is_sharded(type(parameter)):
                    value = UncastTensor(whole(value.tensor))
                entry[name] = value.cast(parameter, group["state_dtype"] or compute_dtype(parameter.dtype))


def _read(parameter: Tensor, gradient: Tensor, step: GroupStep, number: int) -> TensorPlan:
    """The plan of a tensor whose gradient must be checked or changed."""
    group = step.group
    site = ParameterSite(step.number, number, group.get("param_names"))
    for_device = _is_for_device(parameter, step)
    if gradient.layout == torch.sparse_coo:
        plan = _read_sparse(parameter, gradient, step, for_device, site)
    elif gradient.layout == torch.strided:
        plan = TensorPlan(parameter, gradient.detach())
    else:
        raise ValueError(f"gradients must be dense or sparse COO, got layout {gradient.layout} ({site})")
    dtype = compute_dtype(parameter.dtype)
    if not for_device:
        plan.gradient = plan.gradient.to(dtype)
    if group["maximize"]:
        plan.gradient = -plan.gradient
    if group.get("weight_decay"):
        plan.gradient = plan.gradient.to(dtype).add(parameter.to(dtype), alpha=group["weight_decay"])
    if step.rule.mean_square:
        plan.gradient = plan.gradient.to(compute_dtype(plan.gradient.dtype))
        plan.hessian = mean_square(plan.gradient, step.groups if plan.rows is None else "rows")
    return plan


def _is_for_device(parameter: Tensor, step: GroupStep) -> bool:
    """Whether a kernel on a device may read the gradient as it is, so that nobody waits for the device."""
    return step.wants_kernels and parameter.dtype in runtime.WEIGHT_DTYPES and runtime.serves(parameter.device)


def _read_sparse(
    parameter: Tensor, gradient: Tensor, step: GroupStep, for_device: bool, site: ParameterSite
) -> TensorPlan:
    group = step.group
    if not is_rows(group["groups"]):
        raise ValueError(f"sparse gradients need groups='rows', got {group['groups']!r} ({site})")
    if gradient.sparse_dim() != 1:
        raise ValueError(f"sparse gradients must have sparse_dim 1, got {gradient.sparse_dim()} ({site})")
    if group.get("weight_decay"):
        raise ValueError(
            f"weight_decay={group['weight_decay']:g} cannot be applied to sparse gradients ({site}); use l2"
        )
    is_wanted_summed, gradient = gradient.requires_grad or step.rule.mean_square, gradient.detach()
    if for_device and not is_wanted_summed:  # the kernel adds up and checks: nothing is waited for
        rows, values = gradient._indices()[0], gradient._values()
        return TensorPlan(parameter, values, None, rows, repeats=not gradient.is_coalesced(), unchecked=True)
    check_rows(gradient._indices()[0], parameter.shape[0], str(site))
    gradient = gradient.to(compute_dtype(parameter.dtype)).coalesce()
    return TensorPlan(parameter, gradient.values(), None, gradient.indices()[0])
