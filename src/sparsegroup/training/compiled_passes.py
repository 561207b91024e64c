"""A network's forward and backward pass as two compiled functions, called without what torch.compile puts around them.

That is a tenth of a millisecond a batch, in which a thread keeps the interpreter from the others.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sparsegroup.training.compiled_network import say_uncompiled


class CompiledPasses:
    """The passes of a network, compiled for one shape of its inputs. They give up the interpreter while they run.

    Args:
        network: From embeddings and numbers to logits; one whose Python always does the same, draws nothing and keeps
            nothing: that is not looked at again.
        embeddings: `[n, fields, dim]`, as they will be.
        numbers: `[n, numbers]`, as they will be, or None.

    Attributes:
        wanted: Which parameters wanted gradients then, by `id`.

    Raises:
        RuntimeError: This torch compiles to something else.
        Exception: The network cannot be compiled.
    """

    def __init__(self, network: nn.Module, embeddings: Tensor, numbers: Tensor | None) -> None:
        # Taken from torch where they are used: importing them takes a second.
        from functorch.compile import (  # type: ignore[import-untyped]
            aot_function,
            default_partition,
        )
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx_inner
        from torch._inductor.decomposition import select_decomp_table

        self._parameters = list(network.parameters())
        self.wanted = [id(parameter) for parameter in self._parameters if parameter.requires_grad]
        names = [name for name, _ in network.named_parameters()]
        parameters = [one.detach().requires_grad_(one.requires_grad) for one in self._parameters]
        passes: dict[bool, Callable[[list[Tensor]], Any]] = {}

        def logits_of(*inputs: Tensor) -> Tensor:
            own, given = dict(zip(names, inputs, strict=False)), inputs[len(names) :]
            found: Tensor = torch.func.functional_call(network, own, given if len(given) > 1 else (*given, None))
            return found

        def compiler(is_backward: bool) -> Callable[..., Any]:
            def compile(graph: Any, examples: Any) -> Any:
                passes[is_backward] = compile_fx_inner(graph, examples, cpp_wrapper=True, is_backward=is_backward)
                return passes[is_backward]

            return compile

        own = embeddings.detach().clone().requires_grad_()
        inputs = [*parameters, own, *(() if numbers is None else (numbers,))]
        with config.patch(cpp_wrapper=True), torch.enable_grad():
            expected = aot_function(
                logits_of,
                fw_compiler=compiler(False),
                bw_compiler=compiler(True),
                partition_fn=default_partition,
                decompositions=select_decomp_table(),
            )(*inputs)
            gradient = torch.linspace(-1.0, 1.0, len(expected), dtype=expected.dtype)
            wanted = [one for one in inputs if one.requires_grad]
            gradients = torch.autograd.grad(expected, wanted, gradient)
        self._forward, self._backward = passes[False], passes[True]
        self._gets_gradient = [one.requires_grad for one in inputs]
        with torch.no_grad():  # how the two pass things on to one another is torch's affair
            logits, saved = self.forward(embeddings, numbers)
            given = self.backward(saved, gradient)
        if not torch.equal(logits, expected) or not all(map(torch.equal, given, gradients)):
            raise RuntimeError(f"the compiled passes of torch {torch.__version__} are not as expected")

    def forward(self, embeddings: Tensor, numbers: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """See `Passes`."""
        logits, *saved = self._forward([*self._parameters, embeddings, *(() if numbers is None else (numbers,))])
        return logits, saved

    def backward(self, saved: list[Tensor], gradient: Tensor) -> list[Tensor]:
        """See `Passes`."""
        found = self._backward([*saved, gradient])
        return [one for one, gets in zip(found, self._gets_gradient, strict=True) if gets]


def compiled_passes(network: nn.Module, embeddings: Tensor, numbers: Tensor | None) -> CompiledPasses | None:
    """See `CompiledPasses`; None, with a warning, where they cannot be had."""
    with warnings.catch_warnings(), torch.random.fork_rng():  # of what torch does while it compiles
        warnings.simplefilter("ignore")
        try:
            return CompiledPasses(network, embeddings, numbers)
        except Exception as error:
            say_uncompiled(f"compiling failed ({str(error).splitlines()[0]})")
            return None
