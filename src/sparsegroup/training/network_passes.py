"""A network's forward and backward pass over a batch in pieces, which threads take in turns.

What the pieces give is added up in their order; so the bits are the same however many threads there are.
"""

from collections.abc import Sequence
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
        return torch.autograd.grad(logits, [*self._wanted, own], gradient, materialize_grads=True)


class InPieces(torch.autograd.Function):
    """Logits `[n]` of a batch: `(passes, pieces, numbers, embeddings, *wanted)`; the last two have gradients."""

    @staticmethod
    def forward(
        ctx: Any, passes: Passes, pieces: int, numbers: Tensor | None, embeddings: Tensor, *wanted: Tensor
    ) -> Tensor:
        size = len(embeddings) // pieces
        logits: list[Any] = [None] * pieces
        saved: list[Any] = [None] * pieces

        @torch.no_grad()
        def forward(piece: int) -> None:
            some = None if numbers is None else numbers.narrow(0, piece * size, size)
            logits[piece], saved[piece] = passes.forward(embeddings.narrow(0, piece * size, size), some)

        threads.in_turns(forward, pieces)
        ctx.passes, ctx.saved, ctx.size = passes, saved, size
        return logits[0] if pieces == 1 else torch.cat(logits)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        passes, saved, size = ctx.passes, ctx.saved, ctx.size
        found: list[Sequence[Tensor]] = [()] * len(saved)

        @torch.no_grad()
        def backward(piece: int) -> None:
            own, saved[piece] = saved[piece], None
            found[piece] = passes.backward(own, gradient.narrow(0, piece * size, size))

        threads.in_turns(backward, len(saved))
        *total, of_embeddings = found[0]
        if len(found) > 1:
            for others in found[1:] if total else ():
                torch._foreach_add_(total, list(others[:-1]))
            of_embeddings = torch.cat([some[-1] for some in found])
        return (None, None, None, of_embeddings, *total)
