"""`GroupOptimizer`: what all optimizers of the family share. A named optimizer adds its `Rule`."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any, ClassVar, TypeAlias, TypeVar, overload

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import optimizer
from torch.optim.optimizer import Optimizer, ParamsT, StateDict

from sparsegroup.errors import did_you_mean
from sparsegroup.groups import is_rows
from sparsegroup.kernels.step import Backend
from sparsegroup.notebook import html_table
from sparsegroup.optim.arguments import (
    EXECUTION,
    check_given,
    check_hyperparameters,
    complete_arguments,
    defaults_of,
    supported_entries,
    threshold_of,
    warn_caller,
)
from sparsegroup.optim.census import GroupCensus
from sparsegroup.optim.state import TARGET, TargetState, uncast
from sparsegroup.optim.step import GroupStep, Plan
from sparsegroup.optim.table_parameter import is_fallback, store_of
from sparsegroup.optim.tensor_parameter import stepper_of
from sparsegroup.rules import Rule
from sparsegroup.signals import signals_deferred
from sparsegroup.tensors import plain, shape_of


def _arranged(groups: list[dict[str, Any]], param_groups: list[dict[str, Any]], optimizer: str) -> list[dict[str, Any]]:
    """Return the saved groups in the optimizer's arrangement, matched by parameter name if possible, else by place."""
    named = {
        name: (group, saved_id)
        for group in groups
        for name, saved_id in zip(group.get("param_names", ()), group["params"], strict=False)
    }
    own = [name for group in param_groups for name in group.get("param_names", ())]
    sizes, own_sizes = ([len(group["params"]) for group in some] for some in (groups, param_groups))
    if not (len(own) == len(named) == sum(sizes) == sum(own_sizes) and named.keys() == set(own)):
        if sizes == own_sizes:
            return groups
        raise ValueError(
            f"{optimizer}: the loaded state has param groups of {sizes} parameters, the optimizer of {own_sizes}. "
            "Parameters in other groups are matched by their names, which both must have: make the optimizers from "
            "model.named_parameters() or param_groups(model), or set the state's 'param_names'"
        )
    arranged = []
    for number, group in enumerate(param_groups):
        places = [named[name] for name in group.get("param_names", ())]
        options = [{name: saved[name] for name in saved if name not in _PARAMS} for saved, _ in places]
        if any(str(other) != str(options[0]) for other in options):
            raise ValueError(f"{optimizer}: the loaded state has different options for parameters of group {number}")
        arranged.append({**(options[0] if options else {}), "params": [saved_id for _, saved_id in places]})
    return arranged


ParamGroup: TypeAlias = dict[str, Any]
Result = TypeVar("Result")

_PARAMS = ("params", "param_names")
_OF_OTHERS = ("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr", "lr_scale", "name")
"""Entries that torch's schedulers and other libraries add to param groups."""

_MANY_ROWS = 256
"""Rows of a weight of which a batch may hold some only."""


class GroupOptimizer(Optimizer):
    """Base of the optimizers with sparse group lasso: Algorithm 1 of Yue et al. (2021) for any base optimizer.

    After each step every group g of d weights solves, in closed form,

        min_x  z·x + Σ σ/2 x² + λ1 ‖x‖₁ + √d λ21 ‖x‖₂ + λ2 ‖x‖₂²

    (for `norm="s"`, with σ equal in the group), so that groups whose gradients do not insist are exactly zero. With
    l1 = l21 = l2 = 0 the update is the base optimizer's. State and arithmetic are float64 for float64 parameters and
    float32 for all others. Sparse (COO) gradients update the rows they hold and nothing else.

    Subclasses set `rule`, which declares the hyperparameters, and may have a constructor that takes the
    hyperparameters by place; see "How to add an optimizer".

    Args:
        params: Parameters, `(name, parameter)` pairs or param groups, as for any torch optimizer: float64, float32,
            bfloat16 or float16, dense, of any shape.
        **options: The rule's hyperparameters and the arguments below, by name. All can be set per param group.
        weight_decay: Added to the gradient as `weight_decay * x` (default 0); not with sparse gradients.
        l1: λ1 ≥ 0 (default 0), the weight of ‖x‖₁. Compared with sums of gradients, not scaled by the learning rate.
        l21: λ21 ≥ 0 (default 0), the weight of √d ‖x‖₂ of each group.
        l2: λ2 ≥ 0 (default 0), the weight of ‖x‖₂² (not of half of it).
        groups: "rows" (default; dimension 0: an embedding vector; the elements of a 1-d parameter), "columns"
            (dimension 1: the outgoing weights of an input unit of `nn.Linear`), "channels" (dimension 0: a filter;
            `param_groups` finds dimension 1 for transposed convolutions), "all", an int dimension, or an int64
            tensor with one group id ≥ 0 per row. Sparse gradients need "rows". A 0-d parameter is one group.
        norm: "s" (default; the practical algorithm), "s_tilde" (eq. 10 as printed) or "metric" (the exact minimizer of
            eq. 6).
        penalty: Shape of the group threshold: "lasso" (default; the paper's), "mcp" or "hard", which leave large groups
            unshrunk; or an object, such as `MCP(gamma=2.5)` or a penalty of yours ("How to add a penalty").
        maximize: Maximize the objective (default False).
        state_dtype: dtype of u and the rule's state: None (default; float64 for float64 parameters, float32 for all
            others), torch.float32, or torch.bfloat16, which is rounded stochastically and takes half the memory. On the
            CPU the rows of a `HashEmbedding` are stepped by a kernel with either (with weights of float64 it has state
            of float64 alone); tensors with other state than the default by PyTorch's own operations.
        fused: None (default): compiled kernels wherever they can be, Triton's on a GPU, Numba's on the CPU. True: the
            same, but an error where the GPU's are missing. False: PyTorch's own operations.
        foreach: True: PyTorch's own operations. There is one way to do that, tensor after tensor.
        capturable: True: a step on a GPU may be captured in a CUDA graph; the step count, and the learning rate where
            it is a tensor, stay on the device. Costs some small launches per param group where it is not captured.
        differentiable: torch's; accepted at its default, otherwise refused.

    Raises:
        ValueError: A hyperparameter out of range, a group index that does not fit, a complex or sparse parameter.
        TypeError: An unknown argument, or one of the wrong type.
    """

    rule: ClassVar[Rule]
    implied: ClassVar[Mapping[str, Any]] = {}
    """Arguments of the counterpart in torch.optim that make the counterpart this optimizer, such as `amsgrad=True`."""

    def __init__(self, params: ParamsT, **options: Any) -> None:
        check_given(params, type(self).__name__)
        super().__init__(params, complete_arguments(self.rule, type(self).__name__, options, self.implied))

    @classmethod
    def checked_arguments(cls, **options: Any) -> ParamGroup:
        """Return all arguments except `params` by name, given or default. No parameters are needed.

        Raises:
            ValueError, TypeError: As the constructor, unless the error concerns a parameter.

        Examples:
            >>> from sparsegroup import GroupAdam
            >>> GroupAdam.checked_arguments(l21=1e-3)["betas"]
            (0.9, 0.999)
        """
        arguments = complete_arguments(cls.rule, cls.__name__, options, cls.implied)
        check_hyperparameters(cls.rule, arguments, cls.__name__)
        return arguments

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Add a param group. The defaults supply missing options.

        Entries that are not options are kept, as torch keeps them. A warning names such entries, because one may be a
        misspelt option; entries of schedulers and of an earlier param group are not reported.

        Raises:
            ValueError, TypeError: As the constructor; nothing is added.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, got {type(param_group).__name__}")
        group = dict(param_group)
        where = f"param group {len(self.param_groups)}"
        check_given(group["params"], type(self).__name__, f" ({where})")
        if not isinstance(group["params"], Tensor | set):
            group["params"] = list(group["params"])
        group.pop(TARGET, None)  # of another optimizer, whose groups these were
        group = supported_entries({**self.defaults, **group}, f"{type(self).__name__} ({where})", self.implied)
        self._check_group(group, where)
        self._warn_of_others(group, where)
        _warn_of_decay(group, where)
        if group["l1"] or group["l21"] or group["l2"]:
            warn_of_fallback(group["params"], where)
        plain(super().add_param_group)(group)

    def _warn_of_others(self, group: ParamGroup, where: str) -> None:
        """Warn of entries that are no options, unless an earlier param group has the same."""
        known = defaults_of(self.rule)
        others = group.keys() - known.keys() - {*_PARAMS, *_OF_OTHERS, *self.defaults, *chain(*self.param_groups)}
        if others:
            hints = {name: did_you_mean(name, known, most=3) for name in sorted(others)}
            names = ", ".join(f"{name!r} ({hint})" if hint else repr(name) for name, hint in hints.items())
            warn_caller(f"{where} keeps entries that {type(self).__name__} does not use: {names}")

    def _check_group(self, group: ParamGroup, where: str) -> None:
        """Raise unless the hyperparameters are in range and fit the parameters. See `check_hyperparameters`."""
        check_hyperparameters(self.rule, group, where)
        for name, parameter in named_parameters(group["params"]):
            here = f"{where}, {name}"
            check_given(parameter, type(self).__name__, f" ({here})")
            if not isinstance(parameter, Tensor):
                raise TypeError(f"parameters must be tensors, got {type(parameter).__name__} ({here})")
            stepper_of(parameter).check(parameter, group, here)

    def _shown_options(self) -> list[dict[str, str]]:
        """Return, of each param group, the texts of the learning rate and of the options that are not the rule's."""
        defaults = {name: _shown(default) for name, default in defaults_of(self.rule).items()}
        texts = [{name: _shown(group[name]) for name in defaults if name in group} for group in self.param_groups]
        return [{name: one[name] for name in one if name == "lr" or one[name] != defaults[name]} for one in texts]

    def __repr__(self) -> str:
        lines = []
        for number, (group, options) in enumerate(zip(self.param_groups, self._shown_options(), strict=True)):
            count = len(group["params"])
            texts = [f"{count} parameter{'s' * (count != 1)}", *(f"{name}={options[name]}" for name in options)]
            lines.append(f"  {number}: {', '.join(texts)}")
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(chain(*self._shown_options())))
        rows = [
            (number, len(group["params"]), *(_shown(group.get(name)) for name in names))
            for number, group in enumerate(self.param_groups)
        ]
        return html_table(type(self).__name__, ("param group", "parameters", *names), rows)

    def state_dict(self) -> StateDict:
        """Return the state, as any torch optimizer does. The counterpart in torch.optim loads the state of tensors.

        For a `HashEmbedding` the state holds copies of the table's rows: "keys" `[n]`, and u and the rule's
        state, `[n, dim]` each, and "step". The state of a `TargetRate` or `TargetBytes` is in its first param group.
        """
        parameters = [p for group in self.param_groups for p in group["params"]]
        own, whole = set(map(id, parameters)), self.state
        # torch's `state_dict` fails if a param group has been removed, whose state remains.
        kept = {key: entry for key, entry in whole.items() if not isinstance(key, Tensor) or id(key) in own}
        self.state = defaultdict(dict, kept)
        try:
            state_dict: StateDict = plain(super().state_dict)()
        finally:
            self.state = whole
        state_dict["param_groups"] = [{**self.implied, **_plain_group(group)} for group in state_dict["param_groups"]]
        for index, parameter in enumerate(parameters):
            if index in state_dict["state"]:
                state_dict["state"][index] = stepper_of(parameter).exported(parameter, state_dict["state"][index])
        return state_dict

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state of this optimizer, or of its counterpart in torch.optim.

        A state of torch.optim has no u, which then starts at 0: with all λ = 0 training continues as in torch, and with
        λ > 0 a group is regularized from its next non-zero gradient on. The state of an `nn.Embedding` also loads into
        the table that `convert` has made of the embedding.

        State keeps the compute dtype of each parameter: float32 for bfloat16 parameters. If both sides have the same
        parameter names, parameters are matched by name, in any param groups. Otherwise they are matched by place.

        Raises:
            ValueError: An entry is unknown, missing or of another shape, or parameters cannot be matched. Nothing is
                changed.
        """
        before = {"state": self.state, "param_groups": self.param_groups}
        with signals_deferred():
            # Registered last, it sees what the user's own hooks have made of the state.
            handle = self.register_load_state_dict_pre_hook(lambda _, given: self._adapted(given))
            try:
                plain(super().load_state_dict)(state_dict)
            except BaseException:
                self.__dict__.update(before)
                raise
            finally:
                handle.remove()

    def _adapted(self, state_dict: StateDict) -> StateDict:
        """Return a copy of `state_dict` that torch's loader can take, checked before anything is changed.

        Options that the state lacks (a state of torch.optim has no `l21`) are the param groups' options. Arguments of
        torch without a meaning here are dropped, or refused if they are set. ValueError: another optimizer's state.
        """
        name, state = type(self).__name__, dict(state_dict["state"])
        groups = _arranged(list(state_dict["param_groups"]), self.param_groups, name)
        for index, (saved, own) in enumerate(zip(groups, self.param_groups, strict=True)):
            where = f"{name}, loaded param group {index}"
            # Entries of schedulers and of the user are among the kept ones.
            kept = {entry: saved[entry] for entry in saved if entry not in EXECUTION}
            group = {**own, **supported_entries(kept, where, self.implied), "params": own["params"]}
            if TARGET in kept:
                TargetState.of(kept[TARGET], where)
            self._check_group(group, where)
            groups[index] = {**group, "params": saved["params"]}
            for saved_id, parameter in zip(saved["params"], own["params"], strict=True):
                if saved_id in state:
                    given = {part: value for part, value in state[saved_id].items() if value is not None}
                    state[saved_id] = uncast(stepper_of(parameter).adapted(parameter, given, self.rule, where))
        return {**state_dict, "param_groups": groups, "state": state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        groups = {parameter: group for group in self.param_groups for parameter in group["params"]}
        for parameter, entry in self.state.items():
            if isinstance(parameter, Tensor) and parameter in groups:  # torch carries other entries along
                stepper_of(parameter).restore(parameter, entry, self.rule, groups[parameter])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch: forget the gradients, or with `set_to_none=False` make them zero."""
        if not set_to_none or torch.compiler.is_compiling():  # torch's own is slower, and known to Dynamo
            super().zero_grad(set_to_none)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One optimization step.

        Args:
            closure: Re-evaluates the model and returns the loss.

        Returns:
            The closure's loss, or None.

        Raises:
            ValueError: A hyperparameter that is out of range by now, or a sparse gradient where it cannot be taken
                (`groups` other than rows, `weight_decay`); nothing is changed.
        """
        if torch.compiler.is_compiling():  # as Dynamo sees it
            return self._step_outside_graphs(closure)
        # Torch wraps the `step` of a subclass: its hooks have run already. Hooks get the arguments as given.
        if type(self).step is GroupOptimizer.step and self._is_watched():
            return self._watched_step() if closure is None else self._watched_step(closure)
        return self._take_step(closure)

    step.hooked = True  # type: ignore[attr-defined]  # torch's wrapper, which takes 15 µs, is for steps that are watched

    def _is_watched(self) -> bool:
        hooks = optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks
        return bool(
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or any(hooks)
            or torch._C._autograd._profiler_enabled()
        )

    def _take_step(self, closure: Callable[[], float] | None = None) -> float | None:
        is_enabled = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(False)  # which `torch.no_grad` takes ten times as long for
            self._check_ready()
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            planned = self._on_all_ranks(self._planned, "a step")
            if self.rule.second_order:
                planned = self._on_all_ranks(lambda: self._completed(planned), "the second derivatives of a step")
            for step, plans in planned:
                step.run(plans, self.state, self._backends)
            return loss
        finally:
            torch._C._set_grad_enabled(is_enabled)

    _watched_step = Optimizer.profile_hook_step(_take_step)

    def _planned(self) -> list[tuple[GroupStep, list[Plan]]]:
        """Return the plans of a step, after all checks. Nothing is changed."""
        for backend in self._backends:
            if backend.has_reports:
                backend.check()
        self._steps = [self._current_step(number, group) for number, group in enumerate(self.param_groups)]
        return [(step, step.plan(self.state)) for step in self._steps]

    def _current_step(self, number: int, group: ParamGroup) -> GroupStep:
        """Return the step of a param group: the one before, or a new one with checked hyperparameters."""
        before = self._steps[number] if number < len(self._steps) else None
        if before is not None and before.is_current(group, self.state):
            return before
        self._check_group(group, f"param group {number}")
        return GroupStep(self.rule, group, number, list(map(stepper_of, group["params"])), before, self.state)

    def _on_all_ranks(self, action: Callable[[], Result], what: str) -> Result:
        """The result of an action; with tables on several ranks, it raises on all of them if it does on one."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return action()
        stores = (store_of(parameter) for group in self.param_groups for parameter in group["params"])
        ranks = {store.ranks.group: store.ranks for store in stores if store is not None and store.ranks is not None}
        for one in ranks.values():
            action = partial(one.do, action, what)
        return action()

    _step_outside_graphs = torch._disable_dynamo(_take_step)  # type: ignore[attr-defined]

    @torch.no_grad()
    def sweep(self, *, zero_untrained: bool = False) -> None:
        """Apply the closed form to all groups once more, without a gradient, at the hyperparameters of this moment.

        So a λ that has changed reaches rows that no batch has touched since: what no longer insists becomes exactly
        zero, what does comes back. The base optimizer's state, the step count, param groups without λ, parameters
        frozen by `requires_grad_(False)`, and groups that never had a non-zero gradient do not change. With the
        lasso, norm "s" and λ2 = 0, a second sweep changes nothing. Where the learning rate is 0 it is taken as 2⁻²⁰.

        Args:
            zero_untrained: Rows of a `HashEmbedding` that were looked up in training and never had a non-zero gradient,
                which are as random as they started, become zero too where λ21 > 0. Not while `prefetch` has looked up
                the next batch: its new rows would lose their start.

        Examples:
            >>> import torch
            >>> from sparsegroup import GroupAdam
            >>> x = torch.nn.Parameter(torch.ones(2, 3))
            >>> optimizer = GroupAdam([x], penalty="hard")
            >>> x.grad = torch.tensor([[1.0], [0.01]]).expand(2, 3)
            >>> optimizer.step()
            >>> optimizer.param_groups[0]["l21"] = 100.0
            >>> optimizer.sweep()
            >>> (x != 0).any(dim=1).tolist()
            [True, False]
        """
        for number, group in enumerate(self.param_groups):
            self._check_group(group, f"param group {number}")
        for number, group in enumerate(self.param_groups):
            step = GroupStep.without_gradient(self.rule, group, number)
            if step.regularizer.active:
                for parameter in group["params"]:
                    if parameter.requires_grad and self.state.get(parameter):
                        stepper_of(parameter).sweep(
                            parameter, step, self.state[parameter], zero_untrained=zero_untrained
                        )

    @torch.no_grad()
    def census(self, number: int, sample: int = 0, seed: Sequence[int] = (0,)) -> list[GroupCensus]:
        """Which λ21 the groups of a param group outlive, at the other hyperparameters of this moment.

        Gives the rows of a table a dual residual u, if they carry none yet.

        Args:
            number: The param group, by its place.
            sample: How many groups of a parameter to look at, at most; 0 for all.
            seed: For drawing the sample.

        Returns:
            One entry for each of its parameters that has been stepped; where some of them are tables, of these alone.
        """
        group = self.param_groups[number]
        stored = [parameter for parameter in group["params"] if store_of(parameter) is not None]
        step = GroupStep.without_gradient(self.rule, group, number)
        draw = np.random.default_rng([*seed, number])
        return [
            one
            for parameter in stored or group["params"]
            if self.state.get(parameter)
            for one in stepper_of(parameter).census(parameter, step, self.state[parameter], sample, draw)
        ]

    @torch.no_grad()
    def census_of(self, parameter: Tensor) -> list[GroupCensus]:
        """Return the `census` of all groups of one parameter; an empty list if it has not been stepped.

        Raises:
            ValueError: The parameter is not the optimizer's.
        """
        for number, group in enumerate(self.param_groups):
            if any(parameter is one for one in group["params"]):
                step, entry = GroupStep.without_gradient(self.rule, group, number), self.state.get(parameter)
                return (
                    stepper_of(parameter).census(parameter, step, entry, 0, np.random.default_rng(0)) if entry else []
                )
        raise ValueError(
            f"a parameter of shape {list(parameter.shape)} is not among those of this {type(self).__name__}"
        )

    def _check_ready(self) -> None:
        """Raise where a step cannot be taken now."""
        started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if started and torch.cuda.is_current_stream_capturing():
            for index, group in enumerate(self.param_groups):
                if not group["capturable"]:
                    raise RuntimeError(f"only a step with capturable=True can be captured (param group {index})")

    def _completed(self, planned: list[tuple[GroupStep, list[Plan]]]) -> list[tuple[GroupStep, list[Plan]]]:
        """The plans with what a second-order rule needs in addition to gradients."""
        return planned

    @cached_property
    def _backends(self) -> tuple[Backend, ...]:
        """The preferred first; the last takes every parameter. Imported when the first step needs them."""
        from sparsegroup.kernels.cpu.backend import CpuBackend
        from sparsegroup.kernels.eager import EagerBackend
        from sparsegroup.kernels.gpu.backend import GpuBackend

        return GpuBackend(self.rule), CpuBackend(self.rule), EagerBackend(self.rule)

    @cached_property
    def _steps(self) -> list[GroupStep]:
        """Last step of each param group."""
        return []


def _shown(option: Any) -> str:
    """Return the text of an option for `repr`."""
    if isinstance(option, Tensor):
        return f"{float(option):g}" if option.numel() == 1 else shape_of(option)
    return f"{option:g}" if isinstance(option, float) else str(option)


def _plain_group(group: ParamGroup) -> ParamGroup:
    """Return a copy of a param group for a state dict. Later steps do not change the copy."""
    copied = {**group, **{name: one.plain for name, one in threshold_of(group, "param group").items()}}
    if TARGET in copied:
        copied[TARGET] = TargetState.of(copied[TARGET], "param group").plain
    return copied


def named_parameters(params: Any) -> Iterator[tuple[str, Any]]:
    """Give a name for messages, and the parameter, of each item of "params" of a param group."""
    for index, item in enumerate([params] if isinstance(params, Tensor) else params):
        yield item if isinstance(item, tuple) else (f"parameter {index}", item)


def warn_of_fallback(params: Any, where: str) -> None:
    """Warn if a regularized param group contains fallback vectors, each of which stands for many features."""
    if any(is_fallback(parameter) for _, parameter in named_parameters(params)):
        warn_caller(
            f"{where} regularizes the fallback vectors of a HashEmbedding, which stand for the features without a row: "
            "take the groups of param_groups(model, …), which leaves them out, or give them a separate group"
        )


def _warn_of_decay(group: ParamGroup, where: str) -> None:
    """Warn of a weight decay that updates rows of an embedding which no batch holds, and of λ21, which zeroes them."""
    if not (group.get("weight_decay") and group["l21"] and is_rows(group["groups"])):
        return
    tensors = [parameter for _, parameter in named_parameters(group["params"])]
    if any(x.ndim > 1 and len(x) >= _MANY_ROWS for x in tensors if store_of(x) is None and not is_lazy(x)):
        warn_caller(
            f"weight_decay={group['weight_decay']:g} updates every row of an embedding, also rows that no batch has "
            f"held, and with l21={group['l21']:g} these become zero ({where}). Give l2 in place of weight_decay, which "
            "leaves such rows alone"
        )
