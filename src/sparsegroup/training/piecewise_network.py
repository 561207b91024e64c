"""The network over a batch in pieces, which threads take in turns: forward and backward on all cores.

Into how many pieces depends on the batch and the network alone, not on the number of threads.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsegroup.models import WithNumbers, WithPooling
from sparsegroup.training.compiled_network import CompiledNetwork, has_compiler, say_uncompiled
from sparsegroup.training.compiled_passes import CompiledPasses, compiled_passes
from sparsegroup.training.lookup_model import pooling_of
from sparsegroup.training.network_passes import EagerPasses, PartedBatch

WORTH_PARTING = 1 << 21
"""Weights times samples, of which p pieces want p³ times as many. Each takes some .3 ms of the interpreter, and they
are to be few: as many as cores would do, but the bits are not to depend on the machine."""

MOST = 16
"""Pieces."""

_SAMPLEWISE = (nn.Linear, nn.ReLU, nn.Identity, nn.Sequential, nn.ModuleList, nn.ParameterList)


def is_samplewise(network: nn.Module) -> bool:
    """Whether each logit is known to depend on its own sample alone, and nothing to be drawn or noted.

    Examples:
        >>> from sparsegroup.models import MLP
        >>> is_samplewise(MLP(fields=2, dim=4)), is_samplewise(MLP(fields=2, dim=4, dropout=0.1))
        (True, False)
    """
    known = all(
        type(module) in _SAMPLEWISE or type(module).__module__.startswith("sparsegroup.models.")
        for module in network.modules()
    )
    keeps_statistics = network.state_dict().keys() - dict(network.named_parameters()).keys()
    return known and not keeps_statistics


def pieces_of(samples: int, weights: int) -> int:
    """Into how many pieces of one size a batch is cut: a power of two.

    Args:
        samples: Those of the batch.
        weights: Numbers in the network's parameters.

    Examples:
        >>> pieces_of(512, 20_000), pieces_of(8_192, 20_000), pieces_of(512, 1_000_000), pieces_of(4_097, 20_000)
        (1, 4, 4, 1)
    """
    pieces = 1
    while pieces < MOST and samples % (2 * pieces) == 0 and samples * weights >= (2 * pieces) ** 3 * WORTH_PARTING:
        pieces *= 2
    return pieces


class PiecewiseNetwork:
    """A network in training: large batches are worked on piece by piece, those of the first one's size compiled.

    Pieces are for networks of `sparsegroup.models` on the CPU without dropout, where torch itself has one thread.

    Args:
        network: From embeddings `[n, fields, dim]` and numbers to logits `[n]`.
        compile: Whether to compile it; it warns where there is no compiler.
        whole: Whether to leave all batches whole: pieces have no second derivatives.

    Attributes:
        size: The size of the first batch; None before there was one.
        pooling: The network's own; lists, of any sizes, are pooled before it and not compiled.
    """

    def __init__(self, network: nn.Module, compile: bool, *, whole: bool = False) -> None:
        if compile and not has_compiler():
            say_uncompiled("there is no C++ compiler")
            compile = False
        self.pooling = pooling_of(network)
        self.size: int | None = None
        self._encoder, self._trunk = _parted(network)
        self._whole = CompiledNetwork(network, compile)
        self._modules, self._parameters = list(self._trunk.modules()), list(self._trunk.parameters())
        self._weights = sum(parameter.numel() for parameter in self._parameters)
        self._takes_pieces = not whole and is_samplewise(self._trunk)
        self._compiles = compile and self._takes_pieces
        self._compiled: CompiledPasses | None = None

    def __call__(self, embeddings: Tensor, numbers: Tensor | None) -> Tensor:
        parted = self.parted(embeddings, numbers)
        return self.whole(embeddings, numbers) if parted is None else parted.logits()

    def whole(self, embeddings: Tensor, numbers: Tensor | None) -> Tensor:
        """Logits of a batch that is not parted."""
        same = len(embeddings) == self.size
        network = self._whole.ready(embeddings, numbers) if same else self._whole.eager()
        return network(embeddings, numbers)

    def parted(self, embeddings: Tensor, numbers: Tensor | None) -> PartedBatch | None:
        """How a batch is worked on by passes of the network; None where it is better left to autograd."""
        samples = len(embeddings)
        if self.size is None:
            self.size = samples
        compiled = self._compiles and samples == self.size
        pieces = pieces_of(samples, self._weights)
        if (pieces == 1 and not compiled) or not self._takes_pieces or not self._can_part(embeddings):
            return None
        if self._encoder is not None:
            embeddings, numbers = self._encoder.encoded(embeddings, numbers)
        wanted = [parameter for parameter in self._parameters if parameter.requires_grad]
        passes = self._compiled_passes(embeddings, numbers, samples // pieces, wanted) if compiled else None
        return PartedBatch(passes or EagerPasses(self._trunk, wanted), pieces, embeddings, numbers, wanted)

    def _compiled_passes(
        self, embeddings: Tensor, numbers: Tensor | None, size: int, wanted: Sequence[Tensor]
    ) -> CompiledPasses | None:
        """Those for pieces of `size`; None where compiling has failed, or other parameters want gradients by now."""
        if self._compiled is None:
            self._compiled = compiled_passes(
                self._trunk, embeddings[:size], None if numbers is None else numbers[:size]
            )
            self._compiles = self._compiled is not None
        if self._compiled is not None and self._compiled.wanted == list(map(id, wanted)):
            return self._compiled
        return None

    def _can_part(self, embeddings: Tensor) -> bool:
        """Whether other threads would do what this one does."""
        return (
            embeddings.device.type == "cpu"
            and torch.get_num_threads() == 1
            and not torch.is_autocast_enabled("cpu")
            and not any(module._forward_hooks or module._forward_pre_hooks for module in self._modules)
            and not any(module._backward_hooks or module._backward_pre_hooks for module in self._modules)
        )


def _parted(network: nn.Module) -> tuple[WithNumbers | None, nn.Module]:
    """What sees all samples of a batch at once, and the rest."""
    if isinstance(network, WithPooling):  # which is done by then
        network = network.network
    return (network, network.network) if isinstance(network, WithNumbers) else (None, network)
