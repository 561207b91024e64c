"""Vectors from the ranks that have them to those that want them, and their gradients the other way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd import Function


@dataclass(frozen=True)
class Route:
    """A way that vectors take.

    Attributes:
        carry: Carries lines `[n, dim]` along a route, and gives those that have come.
        sent: How many go to each rank.
        got: How many come from each.
        is_back: Whether it is that of gradients.
    """

    carry: "Callable[[Tensor, Route], Tensor]"
    sent: Sequence[int]
    got: Sequence[int]
    is_back: bool = False

    def back(self) -> "Route":
        """The way that their gradients take."""
        return Route(self.carry, self.got, self.sent, not self.is_back)


def exchanged(vectors: Tensor, route: Route, share: float) -> Tensor:
    """The vectors that come by `route` for those that go.

    Args:
        vectors: `[Σ sent, dim]`.
        route: Their way.
        share: What gradients are multiplied by; second derivatives are so once, too.

    Returns:
        `[Σ got, dim]`, differentiable any number of times. Each time all ranks have to come along.
    """
    result: Tensor = _Exchange.apply(vectors, route, 1.0, share)  # type: ignore[no-untyped-call]
    return result


class _Exchange(Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, route: Route, factor: float, share: float) -> Tensor:
        ctx.route, ctx.share = route, share
        carried = route.carry(values, route)
        return carried if factor == 1.0 else carried * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        # What is differentiated once more is not multiplied again: the loss is averaged over the ranks once.
        back = _Exchange.apply(gradient, ctx.route.back(), ctx.share, 1.0)  # type: ignore[no-untyped-call]
        return back, None, None, None
