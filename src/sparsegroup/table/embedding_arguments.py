"""What a table says to arguments that it does not take: `nn.Embedding`'s, and misspelt ones."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar

from sparsegroup.near_match import did_you_mean

Init = TypeVar("Init", bound=Callable[..., None])

_OF_TORCH: Mapping[str, str] = {
    "num_embeddings": "a table has no vocabulary and grows by itself: leave it out (max_rows limits it)",
    "embedding_dim": "the length of a vector is called dim",
    "padding_idx": "each key has a row of its own: leave padding out, as by a bag with offsets, or multiply by a mask",
    "max_norm": "vectors are not renormalized: leave it out; l2 of the optimizer keeps them small",
    "norm_type": "vectors are not renormalized: leave it out",
    "scale_grad_by_freq": "gradients are not scaled by frequency: leave it out",
    "sparse": "gradients are always sparse: leave it out",
    "_weight": "set vectors by assign(keys, vectors)",
    "_freeze": "freeze it by requires_grad_(False)",
}
"""An argument of `nn.Embedding` or `nn.EmbeddingBag` → what a table has in its place."""


def told_arguments(init: Init) -> Init:
    """A constructor whose TypeError says what to give in place of arguments that it does not take."""
    takes = signature(init)

    @wraps(init)
    def told(self: object, /, *given: Any, **named: Any) -> None:
        try:
            takes.bind(self, *given, **named)
        except TypeError as error:
            name = type(self).__name__
            problem = _problem(name, list(takes.parameters.values())[1:], given, named) or str(error)
            raise TypeError(f"{name}: {problem}") from None
        init(self, *given, **named)

    return told  # type: ignore[return-value]


def _problem(kind: str, takes: Sequence[Parameter], given: Sequence[Any], named: Mapping[str, Any]) -> str | None:
    """What is wrong with arguments, in words; None for nothing that is known here."""
    names = [one.name for one in takes]
    if not any(one.kind is Parameter.VAR_KEYWORD for one in takes) and (
        unknown := [n for n in named if n not in names]
    ):
        told = [_OF_TORCH.get(name) or did_you_mean(name, names, most=3) or _all(names) for name in unknown]
        return "; ".join(f"there is no {name!r}: {what}" for name, what in zip(unknown, told, strict=True))
    positional = [one for one in takes if one.kind is Parameter.POSITIONAL_OR_KEYWORD]
    if len(given) <= len(positional):
        return None
    if len(given) == 2 and all(isinstance(one, int) for one in given):
        return f"{_OF_TORCH['num_embeddings'].partition(':')[0]}: {kind}({given[1]})"
    return f"all but {', '.join(one.name for one in positional)} is given by name, got {list(given)}"


def _all(names: Sequence[str]) -> str:
    return f"there are {', '.join(names)}"
