"""Where a model holds the weights of its embeddings, beside the embeddings themselves."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

_REGISTERED = ("_parameters", "_buffers", "_modules")
_TERMS = "regularization_weight"
"""What models of DeepCTR-Torch call their list of (weights, l1, l2), a weight by itself or with its name."""
_NORMS = "_embedding_regularizer"
"""What models of FuxiCTR call the regularizer that asks for the norm of each embedding's weight."""


def leave_out_of_losses(model: nn.Module, weights: Collection[Tensor]) -> list[str]:
    """Take weights that are about to go out of the losses that known kinds of models add to theirs.

    Returns:
        What is no longer computed, in words.
    """
    gone, left_out = {id(weight) for weight in weights}, []
    for module in model.modules():
        held = vars(module)
        for number, term in enumerate(_terms_of(module)):
            kept = [entry for entry in term[0] if id(_weight_in(entry)) not in gone]
            if len(kept) < len(term[0]) and any(term[1:]):
                left_out.append(f"{_TERMS} of {len(term[0]) - len(kept)} embeddings, l1={term[1]:g} and l2={term[2]:g}")
            held[_TERMS][number] = (kept, *term[1:])
        if held.get(_NORMS):
            left_out.append(f"{_NORMS}={held[_NORMS]!r}")
            held[_NORMS] = None
    return left_out


def holders(model: nn.Module, things: Collection[object]) -> Iterator[str]:
    """Where else a model holds some parameters or modules: in attributes that are lists, tuples, sets or dicts.

    A loss that `leave_out_of_losses` knows is none of these places, and optimizers are not looked into.
    """
    wanted = {id(thing) for thing in things}
    for name, module in model.named_modules():
        known = (*_REGISTERED, *([_TERMS] if _terms_of(module) else []))
        for attribute, value in vars(module).items():
            if attribute not in known and _holds(value, wanted, set()):
                yield f"{name}.{attribute}".removeprefix(".")


def _holds(value: Any, wanted: set[int], met: set[int]) -> bool:
    if id(value) in wanted:
        return True
    if not isinstance(value, list | tuple | set | frozenset | Mapping) or id(value) in met:
        return False
    met.add(id(value))
    return any(_holds(one, wanted, met) for one in (value.values() if isinstance(value, Mapping) else value))


def _terms_of(module: nn.Module) -> list[tuple[Any, ...]]:
    terms = vars(module).get(_TERMS)
    known = isinstance(terms, list) and all(isinstance(term, tuple) and len(term) == 3 for term in terms)
    return list(terms) if known else []  # type: ignore[arg-type]


def _weight_in(entry: Any) -> Any:
    return entry[1] if isinstance(entry, tuple) else entry
