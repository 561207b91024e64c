"""The network over a batch in pieces, which threads take in turns: forward and backward on all cores.

Into how many pieces depends on the batch and the network alone, and what they give is added up in their order; so the
bits are the same however many threads there are.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sparsegroup.kernels.cpu import threads
from sparsegroup.models import WithNumbers, WithPooling
from sparsegroup.training.compiled_network import CompiledNetwork, has_compiler, say_uncompiled
from sparsegroup.training.lookup_model import Network, pooling_of

WORTH_PARTING = 1 << 24
"""Weights times samples, some 1.5 ms of a core; p pieces pay where there are p² times as many. Each takes some .3 ms of
the interpreter, and they are to be few: as many as cores would do, but the bits are not to depend on the machine."""

MOST = 16
"""Pieces."""

_SAMPLEWISE = (nn.Linear, nn.ReLU, nn.Identity, nn.Sequential, nn.ModuleList, nn.ParameterList)


def is_samplewise(network: nn.Module) -> bool:
    """Whether each logit is known to depend on its own sample alone, and nothing to be drawn or noted.

    Examples:
        >>> from sparsegroup.models import MLP
        >>> is_samplewise(MLP(fields=2, dim=4)), is_samplewise(MLP(fields=2, dim=4, dropout=0.1))
        (True, False)
    """
    known = all(
        type(module) in _SAMPLEWISE or type(module).__module__.startswith("sparsegroup.models.")
        for module in network.modules()
    )
    keeps_statistics = network.state_dict().keys() - dict(network.named_parameters()).keys()
    return known and not keeps_statistics


def pieces_of(samples: int, weights: int) -> int:
    """Into how many pieces of one size a batch is cut: a power of two.

    Args:
        samples: Those of the batch.
        weights: Numbers in the network's parameters.

    Examples:
        >>> pieces_of(512, 20_000), pieces_of(8_192, 20_000), pieces_of(512, 1_000_000), pieces_of(4_097, 20_000)
        (1, 2, 4, 1)
    """
    pieces = 1
    while pieces < MOST and samples % (2 * pieces) == 0 and samples * weights >= (2 * pieces) ** 2 * WORTH_PARTING:
        pieces *= 2
    return pieces


class PiecewiseNetwork:
    """A network in training: large batches are worked on piece by piece, those of the first one's size compiled.

    Pieces are for networks of `sparsegroup.models` on the CPU without dropout, where torch itself has one thread.

    Args:
        network: From embeddings `[n, fields, dim]` and numbers to logits `[n]`.
        compile: Whether to compile it; it warns where there is no compiler.
        whole: Whether to leave all batches whole: pieces have no second derivatives.

    Attributes:
        size: The size of the first batch; None before there was one.
        pooling: The network's own; lists, of any sizes, are pooled before it and not compiled.
    """

    def __init__(self, network: nn.Module, compile: bool, *, whole: bool = False) -> None:
        if compile and not has_compiler():
            say_uncompiled("there is no C++ compiler")
            compile = False
        self.pooling = pooling_of(network)
        self.size: int | None = None
        self._encoder, trunk = _parted(network)
        self._whole, self._piece = CompiledNetwork(network, compile), CompiledNetwork(trunk, compile)
        self._modules, self._parameters = list(trunk.modules()), list(trunk.parameters())
        self._weights = sum(parameter.numel() for parameter in self._parameters)
        self._takes_pieces = not whole and is_samplewise(trunk)

    def __call__(self, embeddings: Tensor, numbers: Tensor | None) -> Tensor:
        samples = len(embeddings)
        if self.size is None:
            self.size = samples
        pieces = pieces_of(samples, self._weights) if self._takes_pieces else 1
        if pieces == 1 or not self._can_part(embeddings):
            whole = self._whole.ready(embeddings, numbers) if samples == self.size else self._whole.eager()
            return whole(embeddings, numbers)
        if self._encoder is not None:
            embeddings, numbers = self._encoder.encoded(embeddings, numbers)
        network = self._piece.eager()
        if samples == self.size:
            with torch.enable_grad():
                network = self._piece.ready(*_part(embeddings, numbers, 0, samples // pieces))
        logits: Tensor = _InPieces.apply(  # type: ignore[no-untyped-call]
            network, pieces, numbers, embeddings, *self._parameters
        )
        return logits

    def _can_part(self, embeddings: Tensor) -> bool:
        """Whether other threads would do what this one does."""
        return (
            embeddings.device.type == "cpu"
            and torch.get_num_threads() == 1
            and not torch.is_autocast_enabled("cpu")
            and not any(module._forward_hooks or module._forward_pre_hooks for module in self._modules)
            and not any(module._backward_hooks or module._backward_pre_hooks for module in self._modules)
        )


def _parted(network: nn.Module) -> tuple[WithNumbers | None, nn.Module]:
    """What sees all samples of a batch at once, and the rest."""
    if isinstance(network, WithPooling):  # which is done by then
        network = network.network
    return (network, network.network) if isinstance(network, WithNumbers) else (None, network)


def _part(embeddings: Tensor, numbers: Tensor | None, piece: int, size: int) -> tuple[Tensor, Tensor | None]:
    """The embeddings of a piece, a leaf, and its numbers."""
    some = None if numbers is None else numbers.narrow(0, piece * size, size)
    return embeddings.detach().narrow(0, piece * size, size).requires_grad_(), some


class _InPieces(torch.autograd.Function):
    """Logits `[n]` of a batch: `(network, pieces, numbers, embeddings, *parameters)`; the last two have gradients."""

    @staticmethod
    def forward(
        ctx: Any, network: Network, pieces: int, numbers: Tensor | None, embeddings: Tensor, *parameters: Tensor
    ) -> Tensor:
        size = len(embeddings) // pieces
        logits = embeddings.new_empty(len(embeddings))
        graphs: list[tuple[Tensor, Tensor] | None] = [None] * pieces

        def forward(piece: int) -> None:
            with torch.enable_grad():
                own, some = _part(embeddings, numbers, piece, size)
                found = network(own, some)
            logits.narrow(0, piece * size, size).copy_(found.detach())
            graphs[piece] = own, found

        threads.in_turns(forward, pieces)
        ctx.graphs, ctx.parameters, ctx.size = graphs, parameters, size
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        graphs, size = ctx.graphs, ctx.size
        wants = ctx.needs_input_grad[3:]
        wanted = [parameter for parameter, its in zip(ctx.parameters, wants[1:], strict=True) if its]
        of_embeddings = gradient.new_empty(len(gradient), *graphs[0][0].shape[1:])
        of_parameters: list[Sequence[Tensor]] = [()] * len(graphs)

        def backward(piece: int) -> None:
            own, logits = graphs[piece]
            graphs[piece] = None
            first, *others = torch.autograd.grad(
                logits, [own, *wanted], gradient.narrow(0, piece * size, size), materialize_grads=True
            )
            of_embeddings.narrow(0, piece * size, size).copy_(first)
            of_parameters[piece] = others

        threads.in_turns(backward, len(graphs))
        total = list(of_parameters[0])
        for others in of_parameters[1:] if total else ():
            torch._foreach_add_(total, list(others))
        sums = iter(total)
        return (
            None,
            None,
            None,
            of_embeddings if wants[0] else None,
            *(next(sums) if its else None for its in wants[1:]),
        )
