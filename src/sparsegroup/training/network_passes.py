"""A network's forward and backward pass over a batch in pieces, which threads take in turns.

What the pieces give is added up in their order; so the bits are the same however many threads there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparsegroup.kernels.cpu import threads
from sparsegroup.training.lookup_model import Network


class Passes(Protocol):
    """The two passes of a network over some samples; any thread may call them, without gradients."""

    def forward(self, embeddings: Tensor, numbers: Tensor | None) -> tuple[Tensor, Any]:
        """Logits `[n]` of embeddings `[n, fields, dim]` and numbers `[n, numbers]`, and what `backward` wants."""

    def backward(self, saved: Any, gradient: Tensor) -> Sequence[Tensor]:
        """The gradients of the parameters that want one, in their order, then that of the embeddings.

        Args:
            saved: What `forward` gave; it is used up.
            gradient: That of the logits, `[n]`.
        """


class EagerPasses:
    """Those of a network as it is.

    Args:
        network: From embeddings and numbers to logits.
        wanted: Its parameters that want gradients.
    """

    def __init__(self, network: Network, wanted: Sequence[Tensor]) -> None:
        self._network, self._wanted = network, wanted

    def forward(self, embeddings: Tensor, numbers: Tensor | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """See `Passes`."""
        with torch.enable_grad():
            own = embeddings.detach().requires_grad_()
            logits = self._network(own, numbers)
        return logits.detach(), (own, logits)

    def backward(self, saved: tuple[Tensor, Tensor], gradient: Tensor) -> Sequence[Tensor]:
        """See `Passes`."""
        own, logits = saved
        found = torch.autograd.grad(logits, [*self._wanted, own], gradient, materialize_grads=True)
        apart = {id(one): one.contiguous() for one in found}  # autograd gives the terms of a sum the same tensor
        return [apart.pop(id(one), one) if id(one) in apart else one.clone() for one in found]


@dataclass(frozen=True)
class PartedBatch:
    """A batch, and the passes that work on it.

    Attributes:
        passes: Those of its network.
        pieces: Into how many pieces of one size it is cut.
        embeddings: `[n, fields, dim]`.
        numbers: `[n, numbers]`, or None.
        wanted: The network's parameters that want gradients.
    """

    passes: Passes
    pieces: int
    embeddings: Tensor
    numbers: Tensor | None
    wanted: Sequence[Tensor]

    @property
    def is_plain(self) -> bool:
        """Whether nobody waits to be called by autograd for a parameter's gradient."""
        return not any(one._backward_hooks or one._post_accumulate_grad_hooks for one in self.wanted)

    def logits(self) -> Tensor:
        """Logits `[n]`, for autograd."""
        found: Tensor = InPieces.apply(self, self.embeddings, *self.wanted)  # type: ignore[no-untyped-call]
        return found

    def give(self, gradients: Sequence[Tensor]) -> None:
        """Let parameters, and by autograd what the embeddings come from, have what `backward` gave."""
        for parameter, gradient in zip(self.wanted, gradients, strict=False):
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        if self.embeddings.requires_grad:
            self.embeddings.backward(gradients[-1])  # type: ignore[no-untyped-call]

    def forward(self) -> tuple[Tensor, list[Any]]:
        """Logits `[n]`, and what `backward` wants."""
        size = len(self.embeddings) // self.pieces
        logits: list[Any] = [None] * self.pieces
        saved: list[Any] = [None] * self.pieces

        @torch.no_grad()
        def forward(piece: int) -> None:
            some = None if self.numbers is None else self.numbers.narrow(0, piece * size, size)
            logits[piece], saved[piece] = self.passes.forward(self.embeddings.narrow(0, piece * size, size), some)

        threads.in_turns(forward, self.pieces)
        return logits[0] if self.pieces == 1 else torch.cat(logits), saved

    def backward(self, saved: list[Any], gradient: Tensor) -> list[Tensor]:
        """The gradients of `wanted`, then that of the embeddings.

        Args:
            saved: What `forward` gave; it is used up.
            gradient: That of the logits, `[n]`.
        """
        size = len(gradient) // self.pieces
        found: list[Sequence[Tensor]] = [()] * self.pieces

        @torch.no_grad()
        def backward(piece: int) -> None:
            own, saved[piece] = saved[piece], None
            found[piece] = self.passes.backward(own, gradient.narrow(0, piece * size, size))

        threads.in_turns(backward, self.pieces)
        *total, of_embeddings = found[0]
        if self.pieces > 1:
            for others in found[1:] if total else ():
                torch._foreach_add_(total, list(others[:-1]))
            of_embeddings = torch.cat([some[-1] for some in found])
        return [*total, of_embeddings]


class InPieces(torch.autograd.Function):
    """Logits `[n]` of `(batch, embeddings, *wanted)`, where the last two are the batch's own."""

    @staticmethod
    def forward(ctx: Any, batch: PartedBatch, embeddings: Tensor, *wanted: Tensor) -> Tensor:
        logits, ctx.saved = batch.forward()
        ctx.batch = batch
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *total, of_embeddings = ctx.batch.backward(ctx.saved, gradient)
        return (None, of_embeddings, *total)
