"""The network between embeddings and logits: compiled where a C++ compiler exists, else as it is."""

import logging
import os
import shutil
import warnings

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

from sparsegroup.training.lookup_model import Network, pooling_of

WORTH_COMPILING = 20_000
"""Batches from which compiling, some ten seconds when it is done first, pays: it saves some tenths of a ms each."""


_logger = logging.getLogger(__name__)


def has_compiler() -> bool:
    """Whether there is a C++ compiler for torch.compile."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++"))


class CompiledNetwork:
    """A network that is compiled for batches of the first one's size; others, and all without a compiler, are eager.

    Args:
        network: From embeddings `[n, fields, dim]` and numbers to logits `[n]`.
        compile: Whether to compile it.

    Attributes:
        size: The size of the first batch; None before there was one.
        pooling: The network's own; lists, of any sizes, are pooled before it and not compiled.
    """

    def __init__(self, network: nn.Module, compile: bool) -> None:
        self._network = network
        self.pooling = pooling_of(network)
        self.size: int | None = None
        self._compiled: Network | None = None
        self._is_ready = False
        if compile and not has_compiler():
            _say("there is no C++ compiler")
        elif compile:
            # Each size compiles anew, and the last batch of a pass has one of its own.
            self._compiled = torch.compile(network, dynamic=False, options={"cpp_wrapper": True})

    def __call__(self, embeddings: Tensor, numbers: Tensor | None) -> Tensor:
        if self.size is None:
            self.size = len(embeddings)
        if self._compiled is not None and len(embeddings) == self.size:
            if not self._is_ready:
                self._make_ready(embeddings, numbers)
            if self._compiled is not None:
                return self._compiled(embeddings, numbers)
        logits: Tensor = self._network(embeddings, numbers)
        return logits

    def _make_ready(self, embeddings: Tensor, numbers: Tensor | None) -> None:
        """Compile; what a run that goes on would do again, random numbers and running statistics, is as before."""
        assert self._compiled is not None
        self._is_ready = True
        failure = None
        statistics = [(buffer, buffer.clone()) for buffer in self._network.buffers()]
        with warnings.catch_warnings(), torch.random.fork_rng():  # of what torch does while it compiles
            warnings.simplefilter("ignore")
            try:
                self._compiled(embeddings, numbers)
            except TorchDynamoException as error:
                failure = str(error).splitlines()[0]
        with torch.no_grad():
            for buffer, before in statistics:
                buffer.copy_(before)
        if failure is not None:
            self._compiled = None
            _say(f"compiling failed ({failure})")


def _say(why: str) -> None:
    _logger.warning("the network is not compiled, which makes training somewhat slower: %s", why)
