"""The random number generators' states: torch's, NumPy's and Python's."""

import random
from typing import Any, cast

import numpy as np
import torch

_WORDS = 624
"""Of the Mersenne Twister's state."""


def rng_state() -> dict[str, Any]:
    """The states of the global generators."""
    name, words, *rest = cast("tuple[Any, ...]", np.random.get_state(legacy=True))
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": (name, words.tolist(), *rest),
        "python": random.getstate(),
    }


def check_rng_state(state: dict[str, Any]) -> None:
    """Let generators of no use take the states.

    Raises:
        ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError: They cannot.
    """
    torch.Generator().set_state(state["torch"])
    name, words, position, has_gauss, gauss = state["numpy"]
    if name != "MT19937" or len(words) != _WORDS or type(position) is not int or not 0 <= position <= _WORDS:
        raise ValueError(f"numpy: {_WORDS} words and a place among them are expected")  # NumPy itself would read on
    if has_gauss not in (0, 1) or type(gauss) is not float:
        raise ValueError("numpy: a number that was drawn ahead is expected")
    np.random.RandomState().set_state((name, np.array(words, np.uint32), position, has_gauss, gauss))
    random.Random().setstate(state["python"])
    if not isinstance(state["python"][2], float | None):
        raise ValueError("python: a number that was drawn ahead, or none, is expected")
    if not isinstance(state["cuda"], list) or not all(isinstance(one, torch.Tensor) for one in state["cuda"]):
        raise TypeError("states of other generators")


def set_rng_state(state: dict[str, Any]) -> None:
    """Bring the global generators to where `rng_state` found them."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    name, words, *rest = state["numpy"]
    np.random.set_state((name, np.array(words, np.uint32), *rest))
    random.setstate(state["python"])
