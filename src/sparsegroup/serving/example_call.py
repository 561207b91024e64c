"""A call of a module: what it is traced with, and tested on."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from sparsegroup.artifact.manifest import digest
from sparsegroup.serving.export_error import ExportError
from sparsegroup.serving.export_manifest import ModelSignature, TensorFacts


@dataclass(frozen=True)
class ExampleCall:
    """Arguments of a module.

    Attributes:
        args: By position.
        kwargs: By name.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def on_cpu(self) -> "ExampleCall":
        """The same with tensors of their own on the CPU: one that is given twice would be taken for one input."""
        args, kwargs = pytree.tree_map_only(Tensor, _own, (self.args, dict(self.kwargs)))
        return ExampleCall(args, kwargs)

    def tensors(self) -> list[Tensor]:
        """The tensors in the arguments, in order."""
        return _tensors_in((self.args, dict(self.kwargs)))

    def open_batch(self, model: nn.Module) -> dict[str, Any]:
        """The `dynamic_shapes` of `torch.export` that leave the first size of each tensor open."""
        bound = inspect.signature(model.forward).bind(*self.args, **self.kwargs).arguments
        shapes: dict[str, Any] = pytree.tree_map(_open_first, dict(bound))
        return shapes

    @torch.no_grad()
    def result_of(self, model: nn.Module) -> Any:
        """What a module gives."""
        return model(*self.args, **self.kwargs)

    def outputs_of(self, model: nn.Module) -> list[Tensor]:
        """The tensors in what a module gives, in order, on the CPU."""
        return [tensor.detach().cpu() for tensor in _tensors_in(self.result_of(model))]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """While it lasts, a module is in evaluation mode; then all its submodules are in the mode that they were in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def output_names(result: Any) -> list[str]:
    """A name for each tensor in a result: its keys where it is a mapping, else "output" and its place."""
    names = []
    for path, leaf in pytree.tree_flatten_with_path(result)[0]:
        parts = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
        if isinstance(leaf, Tensor):
            names.append("_".join(parts if path and not parts[0].isdigit() else ["output", *parts]))
    return names


def input_names(program: ExportedProgram) -> list[str]:
    """The names that the program gives to its tensors, those of the module's parameters."""
    return [
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
    ]


def signature_of(program: ExportedProgram, inputs: list[str], outputs: list[str]) -> ModelSignature:
    """What a program takes and gives.

    Args:
        program: The program.
        inputs: A name for each tensor it takes.
        outputs: A name for each tensor it gives.

    Raises:
        ExportError: More or fewer names than tensors, or one twice.
    """
    found = [
        spec.arg.name
        for spec in program.graph_signature.output_specs
        if spec.kind == OutputKind.USER_OUTPUT and isinstance(spec.arg, TensorArgument)
    ]
    taken = input_names(program)
    for what, names, tensors in (("inputs", inputs, taken), ("outputs", outputs, found)):
        if len(names) != len(tensors):
            raise ExportError(f"{what} must be {len(tensors)} names, of {', '.join(tensors)}; got {len(names)}")
    every = [*inputs, *outputs]
    if twice := [name for place, name in enumerate(every) if name in every[:place]]:
        raise ExportError(f"{twice[0]!r} names two of the inputs and outputs; give `inputs` or `outputs`")
    values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    return ModelSignature(
        inputs=tuple(_facts(name, values[at]) for name, at in zip(inputs, taken, strict=True)),
        outputs=tuple(_facts(name, values[at]) for name, at in zip(outputs, found, strict=True)),
        graph=digest(program.graph_module.code),
    )


def _facts(name: str, tensor: Tensor) -> TensorFacts:
    shape = tuple(size if isinstance(size, int) else None for size in tensor.shape)
    return TensorFacts(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=shape)


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone()


def _tensors_in(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def _open_first(leaf: Any) -> dict[int, Any] | None:
    return {0: Dim.DYNAMIC} if isinstance(leaf, Tensor) and leaf.ndim else None
