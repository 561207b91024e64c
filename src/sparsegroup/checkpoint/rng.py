"""The states of the global random number generators: torch's, NumPy's and Python's."""

import random
from typing import Any, cast

import numpy as np
import torch

from sparsegroup.checkpoint.saved_state import SavedRng

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
    name, words, position, has_gauss, gauss = state.numpy
    if name != "MT19937" or len(words) != _WORDS or not 0 <= position <= _WORDS:
        raise ValueError(f"numpy: {_WORDS} words and a place among them are expected")  # NumPy itself would read on
    if has_gauss not in (0, 1):
        raise ValueError("numpy: a number that was drawn ahead is expected")
    np.random.RandomState().set_state((name, np.array(words, np.uint32), position, has_gauss, gauss))
    random.Random().setstate(state.python)


def set_rng_state(state: SavedRng) -> None:
    """Bring the global generators to where `rng_state` found them."""
    torch.set_rng_state(state.torch)
    if state.cuda and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state.cuda)
    name, words, position, has_gauss, gauss = state.numpy
    np.random.set_state((name, np.array(words, np.uint32), position, has_gauss, gauss))
    random.setstate(state.python)
