"""A module as a program of torch.export: an example call, which sizes are open, and errors in words."""

import inspect
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.fx import config as fx_config
from torch.utils import _pytree as pytree

from sparsegroup.artifact.folder import name_errors
from sparsegroup.artifact.manifest import digest
from sparsegroup.serving.manifest import ModelSignature, TensorFacts
from sparsegroup.serving.rows import ExportError

_LIBRARIES = (Path(torch.__file__).parent, Path(__file__).parents[1])
_IN_TEXT = re.compile(r'^ *File "(.+?)", line (\d+), in \S+\n +(.+)$', re.MULTILINE)


def reason(error: BaseException) -> str:
    """The first paragraph of the text of an error's cause, and the line of the model's code that it is about."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).strip().split("\n\n")[0].split()) or type(error).__name__
    frames = [(frame.filename, frame.lineno, frame.line) for frame in traceback.extract_tb(error.__traceback__)]
    for places in (_IN_TEXT.findall(str(error)), frames):
        outside = [
            f"{file}:{line}, {code}"
            for file, line, code in places
            if Path(file).is_file() and not any(library in Path(file).parents for library in _LIBRARIES)
        ]
        if outside:
            return f"{text}; at {outside[-1]}"
    return text


_TALKATIVE = (
    "torch.onnx._internal.exporter._registration",  # torchvision is missing
    "torch.fx.experimental.symbolic_shapes",  # whose code it traces is unknown
    "onnx_ir._convenience",  # an empty list is taken for one of integers
)


_NO_STACKS = "do_not_emit_stack_traces"


def trace(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any, *, strict: bool
) -> ExportedProgram:
    """A module as a program; the arguments are `torch.export.export`'s."""
    try:
        with quiet(), redirect_stderr(StringIO()) as printed:
            program = torch.export.export(model, args, dict(kwargs), dynamic_shapes=dynamic_shapes, strict=strict)
    except Exception as error:  # torch's errors have no class in common
        why = reason(error)
        hint = ". The example needs two rows or more; `dynamic_shapes` says which sizes are open"
        name = type(model).__name__
        raise ExportError(f"{name}: torch.export cannot trace it ({why}){hint if 'Dim.' in why else ''}") from error
    print(printed.getvalue(), end="", file=sys.stderr)  # when it fails, torch prints the whole graph
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # paths of this machine
    return program


def save_program(program: ExportedProgram, path: Path) -> None:
    """Write a traced model, for `torch.export.load`."""
    content = BytesIO()  # where a file cannot be written, torch's own writer ends the process
    with quiet():
        torch.export.save(program, content)
    with name_errors(path):
        path.write_bytes(content.getbuffer())


def load_program(path: Path) -> nn.Module:
    """The program in a file as a module."""
    try:
        with quiet():
            return torch.export.load(path).module()
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ExportError(f"{path}: damaged ({error})") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Silence torch's exporters, which also look up no stack of calls for each operator: a tenth of their time."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    before = [logger.disabled for logger in loggers]
    has_stacks = not getattr(fx_config, _NO_STACKS, True)  # some versions of torch have no such setting
    if has_stacks:
        setattr(fx_config, _NO_STACKS, True)
    for logger in loggers:
        logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)`", category=FutureWarning)
            yield
    finally:
        if has_stacks:
            setattr(fx_config, _NO_STACKS, False)
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


@dataclass(frozen=True)
class ExampleCall:
    """Arguments of a module."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def on_cpu(self) -> "ExampleCall":
        """The call with copies of its tensors on the CPU: a repeated tensor would be taken for one input."""
        every = (self.args, dict(self.kwargs))
        return ExampleCall(*pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().cpu().clone(), every))

    def tensors(self) -> list[Tensor]:
        """The tensors in the arguments, in order."""
        return tensors_in((self.args, dict(self.kwargs)))

    def trace(self, model: nn.Module, dynamic_shapes: Any = None, *, strict: bool = False) -> ExportedProgram:
        """A module as a program; the first size of each tensor is open, unless `dynamic_shapes` says otherwise."""
        if dynamic_shapes is not None:
            return trace(model, self.args, self.kwargs, dynamic_shapes, strict=strict)
        sizes: list[Any] = [Dim.DYNAMIC] * len(self.tensors())
        first = trace(model, self.args, self.kwargs, self._first_sizes(model, sizes), strict=strict)
        # Now that we know which sizes are the same, let them be 0 or 1, which torch.export excludes when it finds them.
        named: dict[str, Any] = {}
        sizes = [_as_dim(value, named) for value in _values(first, input_names(first))]
        program = trace(model, self.args, self.kwargs, self._first_sizes(model, sizes), strict=strict)
        if hasattr(program, "_guards_code"):
            program._guards_code = []  # some still exclude 0 and 1; for other sizes, tracing would have failed
        return program

    def _first_sizes(self, model: nn.Module, sizes: list[Any]) -> Any:
        """The `dynamic_shapes` of tensors with these first sizes."""
        place = {id(tensor): at for at, tensor in enumerate(self.tensors())}
        bound = inspect.signature(model.forward).bind(*self.args, **self.kwargs).arguments

        def size_of(leaf: Any) -> dict[int, Any] | None:
            return {0: sizes[place[id(leaf)]]} if isinstance(leaf, Tensor) and leaf.ndim else None

        return pytree.tree_map(size_of, dict(bound))

    @torch.no_grad()
    def result_of(self, model: Callable[..., Any]) -> Any:
        """The module's result."""
        return model(*self.args, **self.kwargs)

    def outputs_of(self, model: Callable[..., Any]) -> list[Tensor]:
        """The tensors in the module's result, in order, on the CPU."""
        return [tensor.detach().cpu() for tensor in tensors_in(self.result_of(model))]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and its submodules back into their modes afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def output_names(result: Any) -> list[str]:
    """A name for each tensor in a result: its keys in a mapping, otherwise "output" and its place."""
    names = []
    for path, leaf in pytree.tree_flatten_with_path(result)[0]:
        parts = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
        if isinstance(leaf, Tensor):
            names.append("_".join(parts if path and not parts[0].isdigit() else ["output", *parts]))
    return names


def _names(specs: Sequence[Any], kind: InputKind | OutputKind) -> list[str]:
    return [spec.arg.name for spec in specs if spec.kind == kind and isinstance(spec.arg, TensorArgument)]


def input_names(program: ExportedProgram) -> list[str]:
    """The names of the program's tensors, which are the module's parameters'."""
    return _names(program.graph_signature.input_specs, InputKind.USER_INPUT)


def signature_of(program: ExportedProgram, inputs: list[str], outputs: list[str]) -> ModelSignature:
    """The inputs and outputs of a program by these names; raises ExportError if they do not fit."""
    taken, given = input_names(program), _names(program.graph_signature.output_specs, OutputKind.USER_OUTPUT)
    for what, names, tensors in (("inputs", inputs, taken), ("outputs", outputs, given)):
        if len(names) != len(tensors):
            raise ExportError(f"{what} must be {len(tensors)} names, of {', '.join(tensors)}; got {len(names)}")
    every = [*inputs, *outputs]
    if twice := [name for place, name in enumerate(every) if name in every[:place]]:
        raise ExportError(f"{twice[0]!r} names two of the inputs and outputs; give `inputs` or `outputs`")
    facts = [
        TensorFacts(
            name,
            str(tensor.dtype).removeprefix("torch."),
            tuple(size if isinstance(size, int) else None for size in tensor.shape),
        )
        for name, tensor in zip(every, _values(program, [*taken, *given]), strict=True)
    ]
    return ModelSignature(tuple(facts[: len(taken)]), tuple(facts[len(taken) :]), digest(program.graph_module.code))


def tensors_in(values: Any) -> list[Tensor]:
    """The tensors in nested values, in order."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def _values(program: ExportedProgram, names: list[str]) -> list[Tensor]:
    """The program's tensors of these names, with shape and dtype but no values."""
    values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    return [values[name] for name in names]


def _as_dim(tensor: Tensor, named: dict[str, Any]) -> Any:
    """A tensor's first size: a · size + b of a size in `named`, or left open."""
    if not tensor.ndim or isinstance(tensor.shape[0], int):
        return None
    more, rest = tensor.shape[0].node.expr.as_coeff_Add()
    times, symbol = rest.as_coeff_Mul()
    if not (symbol.is_Symbol and more.is_Integer and times.is_Integer):
        return Dim.DYNAMIC
    size = named.setdefault(str(symbol), Dim(f"size_{len(named)}", min=0))
    size = size if times == 1 else int(times) * size
    return size if more == 0 else size + int(more)
