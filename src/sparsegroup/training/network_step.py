"""The network's part of a training step: logits, loss and gradients, on all cores, compiled where that pays.

On a CPU a batch is cut into parts, which threads take in turns: by compiled kernels for a network that a `Tape` can
record, otherwise by torch. Their number depends on the batch and the network alone, and their gradients are added in
their order: the bits are the same on any number of threads.
"""

import logging
import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from sparsegroup.data.batches import Batch
from sparsegroup.kernels.cpu import threads
from sparsegroup.kernels.cpu.network import NetworkPasses, Residuals, has_amx, residuals_of
from sparsegroup.kernels.cpu.tape import NotRecordableError
from sparsegroup.models import WithNumbers, WithPairs, WithPooling
from sparsegroup.models.layers import Network, by_row, check_inputs
from sparsegroup.objectives import LOGISTIC, Logistic, Objective
from sparsegroup.optim.table_parameter import store_of
from sparsegroup.training.predictions import missing_number
from sparsegroup.training.ranks import SINGLE_PROCESS, GlobalBatch, RankGroup

WORTH_COMPILING = 20_000
"""Batches from which compiling, some ten seconds the first time, pays: it saves some tenths of a ms each."""

MIN_WORK_TO_SPLIT = 1 << 21
"""Weights times samples; p micro-batches need p³ times as many. Each takes some .3 ms of the interpreter, so there
should be few: as many as there are cores, if the bits could depend on the machine."""

MAX_MICRO_BATCHES = 16

_HOOKS_OF_ALL_MODULES = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
)  # fmt: skip

_SAMPLEWISE = (nn.Linear, nn.ReLU, nn.Identity, nn.Sequential, nn.ModuleList, nn.ParameterList)

_logger = logging.getLogger(__name__)

Columns = tuple[Tensor, Tensor | None, Tensor, Tensor | None]
"""Embeddings, numbers, labels and weights of a batch."""

Gradients = tuple[Tensor, Sequence[Tensor], Tensor]
"""Logits, and the gradients of the parameters and the embeddings."""

Passes = Callable[[Columns, float, float], Gradients]
"""From columns, factor and count, see `logit_gradient`."""

ForwardBackward = Callable[..., tuple[Tensor, Sequence[Tensor]]]
"""From parameters, embeddings `[n, fields, dim]`, numbers `[n, numbers]`, labels `[n]`, weights `[n]`, factor `[]` and
count `[]` (see `logit_gradient`) to logits and the gradients of the parameters and, last, the embeddings."""


def is_samplewise(network: nn.Module) -> bool:
    """Whether each logit depends only on its own sample, and the network draws no random numbers and keeps no state."""
    is_known = all(
        type(module) in _SAMPLEWISE or type(module).__module__.startswith("sparsegroup.models.")
        for module in network.modules()
    )
    has_state = bool(network.state_dict().keys() - dict(network.named_parameters()).keys())
    return is_known and not has_state


def micro_batches(samples: int, weights: int) -> int:
    """The number of equal parts that a batch is cut into, a power of two, for a network of this many weights.

    Examples:
        >>> [micro_batches(*of) for of in ((512, 20_000), (8_192, 20_000), (512, 1_000_000), (4_097, 20_000))]
        [1, 4, 4, 1]
    """
    parts, work = 1, samples * weights
    while parts < MAX_MICRO_BATCHES and samples % (2 * parts) == 0 and work >= (2 * parts) ** 3 * MIN_WORK_TO_SPLIT:
        parts *= 2
    return parts


def has_compiler() -> bool:
    """Whether there is a C++ compiler for torch.compile."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++"))


def logit_gradient(
    objective: Objective,
    logits: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    factor: Tensor | float,
    count: Tensor | float,
) -> Tensor:
    """The gradient of the loss, times `factor` over `count`, by the logits `[n]` or `[n, outputs]`: autograd's bits."""
    gradient = objective.gradient(logits, labels) * factor
    if weights is not None:
        gradient = gradient * (weights if gradient.ndim == 1 else weights.unsqueeze(1))
    return gradient / count


def check_loss(loss: Tensor) -> None:
    """Raise FloatingPointError where a loss, on a CPU, is not finite. On a GPU to look would be to wait for it."""
    if loss.device.type == "cpu" and not isfinite(loss.item()):
        raise FloatingPointError(f"the loss of the next batch is {loss.item()}")


def check_weights(model: nn.Module, samples: int) -> None:
    """Raise FloatingPointError if a weight of the network, trained on this many samples, is not finite."""
    if not all(one.isfinite().all() for one in model.parameters() if store_of(one) is None):
        raise _diverged(samples, "weights of the network are not finite")


def failed_step(error: FloatingPointError, model: nn.Module, batch: Batch, samples: int) -> Exception:
    """The error to raise for a step after these samples: the batch has missing numbers, or training has diverged."""
    return missing_number(model, batch, slice(None), 0) or _diverged(samples, error)


def _diverged(samples: int, why: object) -> FloatingPointError:
    return FloatingPointError(f"training has diverged after {samples:,} samples: {why}. Lower the learning rate")


def _backward(loss: Tensor, *, second_order: bool) -> None:
    """The gradients of a loss; for second derivatives with their graph."""
    if not second_order:
        loss.backward()  # type: ignore[no-untyped-call]
        return
    with warnings.catch_warnings():
        # torch warns of a reference cycle; GroupAdaHessian breaks it in step().
        warnings.filterwarnings("ignore", message=r"Using backward\(\) with create_graph=True", category=UserWarning)
        loss.backward(create_graph=True)  # type: ignore[no-untyped-call]


class _Seed(torch.autograd.Function):
    """A number with a given gradient: to give `backward` one imports SymPy, a quarter of a second."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return values.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient, None


class NetworkStep:
    """Gives a network's parameters, and what its embeddings come from, their gradients of each batch's loss.

    With `compile` a network without kernels is compiled for batches of the first one's `size`, or continues with a
    warning if that fails. With `second_order`, for second derivatives, batches stay whole, and nothing is compiled.
    `matmul_precision` is `Trainer`'s.
    """

    def __init__(
        self,
        network: nn.Module,
        ranks: RankGroup = SINGLE_PROCESS,
        *,
        objective: Objective = LOGISTIC,
        compile: bool = False,
        matmul_precision: str | None = None,
        second_order: bool = False,
    ) -> None:
        self.size: int | None = None
        self._network, self._ranks, self._second_order = network, ranks, second_order
        self._objective = objective
        self._encoder, self._trunk = _encoder_and_trunk(network)
        self._watched, self._parameters = list(network.modules()), list(self._trunk.parameters())
        self._weights = sum(parameter.numel() for parameter in self._parameters)
        self._is_samplewise = is_samplewise(self._trunk)
        self._kernels = self._passes_of_kernels(matmul_precision or torch.get_float32_matmul_precision())
        self._compiles = compile and not second_order and self._kernels is None
        if self._compiles and not has_compiler():
            self._leave_uncompiled("there is no C++ compiler")
        self._compiled_network: Callable[..., Tensor] | None = None
        self._compiled_passes: ForwardBackward | None = None
        self._compiled_for: list[bool] = []

    def backward(self, embeddings: Tensor, numbers: Tensor | None, step: GlobalBatch) -> tuple[Tensor, Tensor]:
        """The logits and the loss `[]` of a batch, detached; parameters and embeddings get their gradients.

        FloatingPointError: the loss of a single process is not finite; there are no gradients. On several ranks, whose
        losses differ, the sum of all has to be checked, see `RankGroup.all_reduce_gradients`.
        """
        samples = len(embeddings)
        if self.size is None:
            self.size = samples
        by_kernels = self._kernels is not None and samples > 0 and self._kernels.takes(embeddings, numbers)
        if by_kernels and self._is_separable(embeddings):
            return self._backward_by(self._by_kernels, embeddings, numbers, step)
        compiles = self._compiles and 0 < samples == self.size
        parts = micro_batches(samples, self._weights)
        if (parts > 1 or compiles) and self._is_separable(embeddings) and torch.get_num_threads() == 1:
            passes = partial(self._in_turns, parts=parts, compiles=compiles)
            return self._backward_by(passes, embeddings, numbers, step)
        batch = step.own.for_device(embeddings.device)
        network = self._compiled(embeddings, numbers) if compiles else self._network
        logits = network(embeddings, numbers)
        loss = self._ranks.loss(self._objective, logits, batch, step.samples)
        self._check(loss)
        _backward(loss, second_order=self._second_order)
        return logits.detach(), loss.detach()

    def _backward_by(
        self, passes: Passes, embeddings: Tensor, numbers: Tensor | None, step: GlobalBatch
    ) -> tuple[Tensor, Tensor]:
        """As `backward`; autograd has only what is before the network: its encoder and the table."""
        batch, ranks = step.own, self._ranks
        if self._encoder is not None:
            embeddings, numbers = self._encoder.encoded(embeddings, numbers)
        columns = (embeddings.detach(), numbers, batch.labels, batch.weights)
        count = float(len(batch)) if ranks.is_alone else 1.0
        logits, totals, of_embeddings = passes(columns, ranks.loss_factor(step.samples), count)
        loss = ranks.loss(self._objective, logits, batch, step.samples)
        self._check(loss)
        wanted = [parameter for parameter in self._parameters if parameter.requires_grad]
        for parameter, gradient in zip(wanted, totals, strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        if embeddings.requires_grad:
            _Seed.apply(embeddings, of_embeddings).backward()  # type: ignore[no-untyped-call]
        return logits, loss

    @torch.no_grad()
    def _by_kernels(self, columns: Columns, factor: float, count: float) -> Gradients:
        """By this library's kernels, all parts in one call."""
        assert self._kernels is not None
        embeddings, numbers, labels, weights = columns
        trunk = cast(Network, self._trunk)
        check_inputs(embeddings, numbers, trunk.fields, trunk.dim, trunk.numbers)
        if residuals := self._residuals():
            factors = torch.full((len(labels),), factor / count) if weights is None else weights * (factor / count)
            labels = self._objective.in_scores(labels)
            logits, totals, of_embeddings = self._kernels.step(embeddings, numbers, residuals, labels, factors)
            return by_row(logits), totals, of_embeddings
        logits = by_row(self._kernels.forward(embeddings, numbers))
        return logits, *self._kernels.backward(logit_gradient(self._objective, logits, labels, weights, factor, count))

    def _residuals(self) -> Residuals | None:
        """For both passes in one: those of an objective of one output whose gradients are row by row."""
        kind = type(self._objective)
        if self._objective.outputs != 1 or kind.gradient not in (Objective.gradient, Logistic.gradient):
            return None
        address = residuals_of(kind.residual)
        return None if address is None else (address, self._objective.shape)

    def _in_turns(self, columns: Columns, factor: float, count: float, *, parts: int, compiles: bool) -> Gradients:
        """By torch, a micro-batch at a time."""
        size = len(columns[0]) // parts
        found: list[tuple[Tensor, Sequence[Tensor]]] = [(columns[0], ())] * parts
        of_loss = torch.tensor(factor), torch.tensor(count)

        def arguments(part: int) -> list[Tensor | None]:
            rows = [None if column is None else column.narrow(0, part * size, size) for column in columns]
            return [*rows, *of_loss]

        passes: ForwardBackward = self._passes(arguments(0)) if compiles else self._eager_passes

        @torch.no_grad()
        def work(part: int) -> None:
            logits, gradients = passes(self._parameters, *arguments(part))
            found[part] = logits, _separate(gradients)

        threads.in_turns(work, parts)
        *totals, _ = found[0][1]
        for _, others in found[1:] if totals else ():
            torch._foreach_add_(totals, list(others[:-1]))
        logits = torch.cat([logits for logits, _ in found])
        return logits, totals, torch.cat([gradients[-1] for _, gradients in found])

    def _check(self, loss: Tensor) -> None:
        if self._ranks.is_alone:
            check_loss(loss)

    def _passes_of_kernels(self, precision: str) -> NetworkPasses | None:
        if not isinstance(self._trunk, Network) or not self._is_samplewise or self._has_hooks():
            return None
        if self._objective.takes_groups or self._second_order:
            return None
        try:
            rounds = precision == "medium" and has_amx()
            passes = NetworkPasses(self._trunk, self._parameters, rounds)
        except NotRecordableError:
            return None
        return passes if passes.takes() else None

    def _is_separable(self, embeddings: Tensor) -> bool:
        """Whether the gradients of rows by themselves are those of the batch, and nothing waits for a module's call."""
        return (
            self._is_samplewise
            and not self._objective.takes_groups
            and not self._second_order
            and embeddings.device.type == "cpu"
            and not torch.is_autocast_enabled("cpu")
            and not self._has_hooks()
        )

    def _has_hooks(self) -> bool:
        """Return whether something waits for a module's call or a parameter's gradient."""
        return (
            any(getattr(torch_module, hooks) for hooks in _HOOKS_OF_ALL_MODULES)
            or any(one._forward_hooks or one._forward_pre_hooks or "forward" in vars(one) for one in self._watched)
            or any(one._backward_hooks or one._backward_pre_hooks for one in self._watched)
            or any(one._backward_hooks or one._post_accumulate_grad_hooks for one in self._parameters)
        )

    def _eager_passes(
        self, parameters: Sequence[Tensor], embeddings: Tensor, numbers: Tensor | None, *of_loss: Tensor
    ) -> tuple[Tensor, Sequence[Tensor]]:
        wanted = [parameter for parameter in parameters if parameter.requires_grad]
        with torch.enable_grad():
            own = embeddings.detach().requires_grad_()
            logits = self._trunk(own, numbers)
        gradient = logit_gradient(self._objective, logits.detach(), *of_loss)
        return logits.detach(), torch.autograd.grad(logits, [*wanted, own], gradient, materialize_grads=True)

    def _passes(self, arguments: Sequence[Tensor | None]) -> ForwardBackward:
        """Both passes as one compiled function; eager ones for arguments of other kinds than the first ones."""
        needs = [parameter.requires_grad for parameter in self._parameters]
        kinds = [*needs, *(argument is None for argument in arguments)]
        if self._compiled_passes is None:
            objective, trunk, names = self._objective, self._trunk, [name for name, _ in self._trunk.named_parameters()]

            def passes(
                parameters: Sequence[Tensor], embeddings: Tensor, numbers: Tensor | None, *of_loss: Tensor
            ) -> tuple[Tensor, Sequence[Tensor]]:
                frozen = {name: one for name, one, need in zip(names, parameters, needs, strict=True) if not need}

                def logits_of(wanted: dict[str, Tensor], embeddings: Tensor) -> Tensor:
                    found: Tensor = torch.func.functional_call(trunk, {**frozen, **wanted}, (embeddings, numbers))
                    return found

                wanted = {name: one for name, one, need in zip(names, parameters, needs, strict=True) if need}
                logits, gradients_of = torch.func.vjp(logits_of, wanted, embeddings)  # type: ignore[misc]
                gradients, of_embeddings = gradients_of(logit_gradient(objective, logits, *of_loss))
                return logits, [*gradients.values(), of_embeddings]

            # torch stores compiled functions by code object, eight at most, and its checks whether one fits take half
            # a ms: so this one has a separate code object, and only checks the tensors' shapes.
            own = FunctionType(passes.__code__.replace(), globals(), closure=passes.__closure__)
            options = {}
            if hasattr(torch.compiler, "keep_tensor_guards_unsafe"):  # since torch 2.9
                options["guard_filter_fn"] = torch.compiler.keep_tensor_guards_unsafe
            with torch.no_grad():
                self._compiled_passes = self._compile(own, options, self._parameters, *arguments)
            self._compiled_for = kinds
        return self._compiled_passes if self._compiles and self._compiled_for == kinds else self._eager_passes

    def _compiled(self, embeddings: Tensor, numbers: Tensor | None) -> Callable[..., Tensor]:
        """The whole network, compiled for autograd."""
        if self._compiled_network is None:
            statistics = {name: buffer.clone() for name, buffer in self._network.named_buffers()}
            self._compiled_network = self._compile(self._network, {}, embeddings, numbers)
            self._network.load_state_dict(statistics, strict=False)
        return self._compiled_network if self._compiles else self._network

    def _compile(self, function: Callable[..., Any], options: Mapping[str, Any], *arguments: Any) -> Callable[..., Any]:
        """Let torch compile a function for arguments of these shapes: the last batch of a pass has its own."""
        # Random numbers are not drawn, because a resumed run compiles again; the warnings are of torch's own code.
        with warnings.catch_warnings(), torch.random.fork_rng():
            warnings.simplefilter("ignore")
            try:
                on_cpu = all(one.device.type == "cpu" for one in self._parameters)
                compiled: Callable[..., Any] = torch.compile(
                    function, dynamic=False, options={"cpp_wrapper": on_cpu, **options}
                )
                compiled(*arguments)
            except Exception as error:
                self._leave_uncompiled(f"compiling failed ({str(error).splitlines()[0]})")
                return function
        return compiled

    def _leave_uncompiled(self, why: str) -> None:
        self._compiles = False
        _logger.warning("the network is not compiled, which makes training somewhat slower: %s", why)


def _separate(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Separate tensors: autograd gives the terms of a sum the same one."""
    seen: set[int] = set()
    found = []
    for gradient in gradients:
        found.append(gradient.clone() if id(gradient) in seen else gradient.contiguous())
        seen.add(id(gradient))
    return found


def _encoder_and_trunk(network: nn.Module) -> tuple[WithNumbers | None, nn.Module]:
    """The part that sees all samples of a batch together, and the other part; lists are pooled before either."""
    while isinstance(network, WithPairs | WithPooling):
        network = network.network
    return (network, network.network) if isinstance(network, WithNumbers) else (None, network)
