"""The network between embeddings and logits: compiled where a C++ compiler exists, else as it is."""

import logging
import os
import shutil
import warnings

import torch
from torch import Tensor, nn

from sparsegroup.training.lookup_model import Network

WORTH_COMPILING = 20_000
"""Batches from which compiling, some ten seconds when it is done first, pays: it saves some tenths of a ms each."""


_logger = logging.getLogger(__name__)


def has_compiler() -> bool:
    """Whether there is a C++ compiler for torch.compile."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++"))


class CompiledNetwork:
    """A network as it is, and compiled for batches of one size.

    Args:
        network: From embeddings `[n, fields, dim]` and numbers to logits `[n]`.
        compile: Whether to compile it, where there is a compiler.
    """

    def __init__(self, network: nn.Module, compile: bool) -> None:
        self._network, self._compiles = network, compile
        self._compiled: Network | None = None

    def eager(self) -> Network:
        """The network as it is."""
        return self._network

    def ready(self, embeddings: Tensor, numbers: Tensor | None) -> Network:
        """The network for batches of the size of these: compiled when first asked for, or as it is."""
        if self._compiles and self._compiled is None:
            self._compile(embeddings, numbers)
        return self._network if self._compiled is None else self._compiled

    def _compile(self, embeddings: Tensor, numbers: Tensor | None) -> None:
        """Compile; what a run that goes on would do again, random numbers and running statistics, is as before."""
        failure = None
        statistics = {name: buffer.clone() for name, buffer in self._network.named_buffers()}
        with warnings.catch_warnings(), torch.random.fork_rng():  # of what torch does while it compiles
            warnings.simplefilter("ignore")
            from torch._dynamo.exc import TorchDynamoException

            # Each size compiles anew, and the last batch of a pass has one of its own.
            self._compiled = torch.compile(self._network, dynamic=False, options={"cpp_wrapper": True})
            try:
                self._compiled(embeddings, numbers)
            except TorchDynamoException as error:
                failure = str(error).splitlines()[0]
        self._network.load_state_dict(statistics, strict=False)
        if failure is not None:
            self._compiles, self._compiled = False, None
            say_uncompiled(f"compiling failed ({failure})")


def say_uncompiled(why: str) -> None:
    """Warn that a network is not compiled."""
    _logger.warning("the network is not compiled, which makes training somewhat slower: %s", why)
