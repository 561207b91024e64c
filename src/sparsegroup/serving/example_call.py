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
from sparsegroup.serving.program import trace


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

    def trace(self, model: nn.Module, dynamic_shapes: Any = None, *, strict: bool = False) -> ExportedProgram:
        """A module as a program; the first size of each tensor is open, unless `dynamic_shapes` says otherwise.

        Raises:
            ExportError: See `trace`.
        """
        if dynamic_shapes is not None:
            return trace(model, self.args, self.kwargs, dynamic_shapes, strict=strict)
        sizes: list[Any] = [Dim.DYNAMIC] * len(self.tensors())
        first = trace(model, self.args, self.kwargs, self._first_sizes(model, sizes), strict=strict)
        # Now it is known which sizes are the same, and can be said that they may be 0 or 1, which torch.export rules
        # out where it is left to find them.
        named: dict[str, Any] = {}
        sizes = [_as_dim(value, named) for value in _values(first, input_names(first))]
        program = trace(model, self.args, self.kwargs, self._first_sizes(model, sizes), strict=strict)
        if hasattr(program, "_guards_code"):
            program._guards_code = []  # some rule out 0 and 1 all the same; of other sizes, tracing would have failed
        return program

    def _first_sizes(self, model: nn.Module, sizes: list[Any]) -> Any:
        """The `dynamic_shapes` by which tensors have these first sizes."""
        place = {id(tensor): at for at, tensor in enumerate(self.tensors())}
        bound = inspect.signature(model.forward).bind(*self.args, **self.kwargs).arguments

        def size_of(leaf: Any) -> dict[int, Any] | None:
            return {0: sizes[place[id(leaf)]]} if isinstance(leaf, Tensor) and leaf.ndim else None

        return pytree.tree_map(size_of, dict(bound))

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
    return ModelSignature(
        inputs=tuple(map(_facts, inputs, _values(program, taken))),
        outputs=tuple(map(_facts, outputs, _values(program, found))),
        graph=digest(program.graph_module.code),
    )


def _facts(name: str, tensor: Tensor) -> TensorFacts:
    shape = tuple(size if isinstance(size, int) else None for size in tensor.shape)
    return TensorFacts(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=shape)


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone()


def _tensors_in(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def _values(program: ExportedProgram, names: list[str]) -> list[Tensor]:
    """The program's tensors of these names, of which shape and dtype are known."""
    values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    return [values[name] for name in names]


def _as_dim(tensor: Tensor, named: dict[str, Any]) -> Any:
    """A tensor's first size by name, from 0 on: a · size + b, where it follows from another so; else left to be found.

    Args:
        tensor: One in a program.
        named: The sizes that have a name, to which this may add.
    """
    if not tensor.ndim or isinstance(tensor.shape[0], int):
        return None
    more, rest = tensor.shape[0].node.expr.as_coeff_Add()
    times, symbol = rest.as_coeff_Mul()
    if not (symbol.is_Symbol and more.is_Integer and times.is_Integer):
        return Dim.DYNAMIC
    size = named.setdefault(str(symbol), Dim(f"size_{len(named)}", min=0))
    size = size if times == 1 else int(times) * size
    return size if more == 0 else size + int(more)
