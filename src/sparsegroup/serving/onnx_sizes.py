"""Names of the open sizes in an ONNX model, instead of those that tracing has made up."""

import re
from typing import Any

BATCH = "batch"
"""The size that all samples share."""

_SYMBOL = re.compile(r"[A-Za-z_]\w*")


def name_sizes(graph: Any) -> None:
    """Name the open sizes of a graph's tensors, in place.

    The first size of the outputs is `batch`; of inputs, where no output has an open one. Another is named after the
    first input that has it, `<input>_size`, behind which stands the axis if it is not the first. Sums and products of
    sizes are those of the new names: `batch + 1`.

    Args:
        graph: An `onnx_ir.Graph`.
    """
    firsts = (size for value in (*graph.outputs, *graph.inputs) for size in _symbols(value)[:1])
    names = {size: BATCH for size in [next(filter(None, firsts), None)] if size is not None}
    for value in graph.inputs:
        for axis, size in enumerate(_symbols(value)):
            if size is not None:
                place = f"_{axis}" if axis else ""
                names.setdefault(size, re.sub(r"\W", "_", value.name) + "_size" + place)
    values = [*graph.inputs, *(output for node in graph.all_nodes() for output in node.outputs)]
    for value in values:
        if value.shape is not None:
            value.shape = type(value.shape)([_renamed(size, names) for size in value.shape])


def _symbols(value: Any) -> list[str | None]:
    """A tensor's sizes: the symbol where it is open and stands alone, else None."""
    sizes = [] if value.shape is None else [getattr(size, "value", None) for size in value.shape]
    return [size if isinstance(size, str) and _SYMBOL.fullmatch(size) else None for size in sizes]


def _renamed(size: Any, names: dict[str, str]) -> Any:
    text = getattr(size, "value", None)
    if not isinstance(text, str):
        return size
    return _SYMBOL.sub(lambda found: names.get(found[0], found[0]), text)
