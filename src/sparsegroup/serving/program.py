"""The serving model as a program of torch.export."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from sparsegroup.serving.export_error import ExportError
from sparsegroup.serving.serving_model import ServingModel


def trace(model: ServingModel) -> ExportedProgram:
    """The model as a program for batches of any size."""
    with quiet():
        # Strict, as the networks compare shapes by len(), which the other way of tracing takes for a number.
        program = torch.export.export(model, _example(model), dynamic_shapes=_dynamic_shapes(model), strict=True)
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # paths of this machine
    return program


def save_program(program: ExportedProgram, path: Path) -> None:
    """Write a traced model, for `torch.export.load`."""
    with quiet():
        torch.export.save(program, path)


def load_program(path: Path) -> torch.nn.Module:
    """The program in a file as a module that takes what `ServingModel.forward` takes.

    Raises:
        ExportError: It holds none.
    """
    try:
        with quiet():
            return torch.export.load(path).module()
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ExportError(f"{path}: damaged ({error})") from error


def _example(model: ServingModel) -> tuple[Tensor, ...]:
    """Inputs of three rows; in a list, a bag of two keys, an empty one and one of one key."""
    columns = model.columns
    keys = torch.zeros(3, len(columns.fields) - len(columns.lists), dtype=torch.int64)
    numbers = (torch.zeros(3, len(columns.numbers)),) if columns.numbers else ()
    bags = []
    for _ in columns.lists:  # each with tensors of its own: one that is given twice would be taken for one input
        bags += [torch.zeros(3, dtype=torch.int64), torch.tensor([0, 2, 2, 3])]
    return (keys, *numbers, *bags)


def _dynamic_shapes(model: ServingModel) -> dict[str, Any]:
    """Which sizes of the inputs are open: the batch's, and how many keys the lists have."""
    columns, batch = model.columns, Dim("batch", min=0)
    numbers = ({0: batch},) if columns.numbers else ()
    bags = [({0: Dim(f"values_{place}", min=0)}, {0: batch + 1}) for place in range(len(columns.lists))]
    others = (*numbers, *(shape for pair in bags for shape in pair))
    return {"keys": {0: batch}, **({"others": others} if others else {})}


@contextmanager
def quiet() -> Iterator[None]:
    """Without what torch's exporters say of themselves."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = logger.disabled
    logger.disabled = True  # that torchvision is not there
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)`", category=FutureWarning)
            yield
    finally:
        logger.disabled = before
