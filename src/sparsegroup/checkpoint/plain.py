"""State as JSON and tensors: nothing is pickled, so that reading a checkpoint runs no code."""

import math
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.checkpoint.manifest import CheckpointError, SavedRng

_WORDS = 624
"""Of the Mersenne Twister's state."""


def rng_state() -> SavedRng:
    """The states now."""
    name, words, *rest = cast("tuple[Any, ...]", np.random.get_state(legacy=True))
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return SavedRng(torch.get_rng_state(), cuda, (name, words.tolist(), *rest), cast("Any", random.getstate()))


def check_rng_state(state: SavedRng) -> None:
    """Let unused generators take the states; raises what they do, or ValueError."""
    torch.Generator().set_state(state.torch)
    name, words, position, has_gauss, _ = state.numpy
    if name != "MT19937" or len(words) != _WORDS or not 0 <= position <= _WORDS:
        raise ValueError(f"numpy: {_WORDS} words and a place among them are expected")  # NumPy itself would read on
    if has_gauss not in (0, 1):
        raise ValueError("numpy: a number that was drawn ahead is expected")
    np.random.RandomState().set_state(_for_numpy(state))
    random.Random().setstate(state.python)


def set_rng_state(state: SavedRng) -> None:
    """Bring the global generators to where `rng_state` found them."""
    torch.set_rng_state(state.torch)
    if state.cuda and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state.cuda)
    np.random.set_state(_for_numpy(state))
    random.setstate(state.python)


def _for_numpy(state: SavedRng) -> Any:
    name, words, *rest = state.numpy
    return name, np.array(words, np.uint32), *rest


TENSOR, DTYPE = "__tensor__", "__dtype__"
NUMBER, TUPLE, ITEMS, COUNTER = "__number__", "__tuple__", "__items__", "__counter__"
_MADE_BY = {NUMBER: float, TUPLE: tuple, ITEMS: dict, COUNTER: Counter}
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
}


def as_plain(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """`value` as JSON; its tensors are added to `tensors`, under names that begin with `name`.

    Valid are numbers, texts, None, tensors, dtypes, NumPy arrays and numbers, and lists, tuples and mappings of them.
    Raises CheckpointError for anything else, which only pickling could save.
    """
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {NUMBER: repr(float(value))}
    if isinstance(value, Tensor | np.ndarray):
        while name in tensors:  # keys may contain the dots that join names
            name += "'"
        tensors[name] = _as_tensor(value, name).detach().cpu().resolve_neg().resolve_conj().contiguous()
        return {TENSOR: name}
    if isinstance(value, np.generic):
        return as_plain(value.item(), tensors, name)
    if isinstance(value, torch.dtype) and value in _DTYPES.values():
        return {DTYPE: str(value).removeprefix("torch.")}
    if isinstance(value, list | tuple):
        items = [as_plain(item, tensors, f"{name}.{index}") for index, item in enumerate(value)]
        return items if isinstance(value, list) else {TUPLE: items}
    if isinstance(value, Counter):  # of torch's MultiStepLR
        return {COUNTER: as_plain(dict(value), tensors, name)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("__") for key in value):
            return {key: as_plain(item, tensors, f"{name}.{key}") for key, item in value.items()}
        return {ITEMS: [[as_plain(one, tensors, f"{name}.{pair[0]}") for one in pair] for pair in value.items()]}
    raise CheckpointError(
        f"{name} is a {type(value).__name__}, which a checkpoint cannot hold: it takes numbers, texts, tensors, and "
        "lists and mappings of them"
    )


def _as_tensor(value: Tensor | npt.NDArray[Any], name: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    try:
        return torch.from_numpy(value.copy())
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{name} is an array of {value.dtype}, which a checkpoint cannot hold") from error


def from_plain(content: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The argument of `as_plain`, with tensors for arrays; ValueError or TypeError if it cannot have been one."""
    if isinstance(content, list):
        return [from_plain(item, tensors) for item in content]
    if not isinstance(content, dict):
        return content
    if TENSOR in content:
        if content[TENSOR] not in tensors:
            raise ValueError(f"the tensor {content[TENSOR]!r} is missing")
        return tensors[content[TENSOR]]
    if DTYPE in content:
        if content[DTYPE] not in _DTYPES:
            raise ValueError(f"the dtype {content[DTYPE]!r} is unknown")
        return _DTYPES[content[DTYPE]]
    for tag, make in _MADE_BY.items():
        if tag in content:
            return make(from_plain(content[tag], tensors))
    return {name: from_plain(item, tensors) for name, item in content.items()}
