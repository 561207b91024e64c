"""Modules as programs of torch.export."""

import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from io import FileIO, StringIO
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from sparsegroup.artifact.folder import name_errors
from sparsegroup.serving.export_error import ExportError
from sparsegroup.serving.torch_errors import reason

_TALKATIVE = (
    "torch.onnx._internal.exporter._registration",  # that torchvision is not there
    "torch.fx.experimental.symbolic_shapes",  # that it does not know whose code it traces
    "onnx_ir._convenience",  # that it takes an empty list for one of integers
)


def trace(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    strict: bool = False,
) -> ExportedProgram:
    """A module as a program; the arguments are those of `torch.export.export`.

    Raises:
        ExportError: torch.export cannot trace it. The message says what it stumbles over.
    """
    try:
        with quiet(), redirect_stderr(StringIO()) as said:
            given = dict(kwargs or {})
            program = torch.export.export(model, args, given, dynamic_shapes=dynamic_shapes, strict=strict)
    except Exception as error:  # torch's errors have no class in common
        why = reason(error)
        raise ExportError(
            f"{type(model).__name__}: torch.export cannot trace it ({why})"
            + (". The example needs two rows or more; `dynamic_shapes` says which sizes are open" * ("Dim." in why))
        ) from error
    print(said.getvalue(), end="", file=sys.stderr)  # where it fails, torch prints the whole graph
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # paths of this machine
    return program


def save_program(program: ExportedProgram, path: Path) -> None:
    """Write a traced model, for `torch.export.load`."""
    with name_errors(path), _Sink(path, "wb") as file:
        try:
            with quiet():
                torch.export.save(program, file)
        finally:
            if file.error is not None:
                raise file.error


class _Sink(FileIO):
    """A file that takes what comes after an error, and forgets it: torch's writer would end the process.

    Attributes:
        error: The first one.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all of it; or, after an error, nothing."""
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while len(left) and self.error is None:
                left = left[super().write(left) :]
        except OSError as error:
            self.error = error
        return size


def load_program(path: Path) -> nn.Module:
    """The program in a file as a module that takes what the traced one takes.

    Raises:
        ExportError: It holds none.
    """
    try:
        with quiet():
            return torch.export.load(path).module()
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ExportError(f"{path}: damaged ({error})") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Without what torch's exporters say of themselves."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)`", category=FutureWarning)
            yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled
