"""Programs as ONNX files, and running one."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor
from torch.export import ExportedProgram

from sparsegroup.errors import MissingExtraError, missing, require
from sparsegroup.objectives import LOGISTIC
from sparsegroup.serving.frozen import ExportError
from sparsegroup.serving.tracing import quiet, reason

BATCH = "batch"
"""Name of the number of samples."""

_SYMBOL = re.compile(r"[A-Za-z_]\w*")


def name_sizes(graph: Any) -> None:
    """Name the open sizes of an `onnx_ir.Graph`, in place.

    The first size of the outputs is `batch`; if none is open, that of the inputs. Another is named after the first
    input that has it, `<input>_size`, followed by the axis if it is not the first. Sums and products of sizes are those
    of the new names: `batch + 1`.
    """
    firsts = (size for value in (*graph.outputs, *graph.inputs) for size in _symbols(value)[:1])
    names = {size: BATCH for size in [next(filter(None, firsts), None)] if size is not None}
    for value in graph.inputs:
        for axis, size in enumerate(_symbols(value)):
            if size is not None:
                place = f"_{axis}" if axis else ""
                names.setdefault(size, re.sub(r"\W", "_", value.name) + "_size" + place)

    def renamed(size: Any) -> Any:
        text = getattr(size, "value", None)
        return _SYMBOL.sub(lambda match: names.get(match[0], match[0]), text) if isinstance(text, str) else size

    for value in (*graph.inputs, *(output for node in graph.all_nodes() for output in node.outputs)):
        if value.shape is not None:
            value.shape = type(value.shape)([renamed(size) for size in value.shape])


def _symbols(value: Any) -> list[str | None]:
    """A tensor's sizes: the symbol of an open one that is no sum or product, otherwise None."""
    sizes = [] if value.shape is None else [getattr(size, "value", None) for size in value.shape]
    return [size if isinstance(size, str) and _SYMBOL.fullmatch(size) else None for size in sizes]


OPSET = 20
EXTERNAL_BYTES = 1_500_000_000
"""Weights of at least this size get a separate file: protobuf ends at 2 GiB."""


def has_onnx() -> bool:
    """Whether the packages for ONNX files are installed."""
    return not missing("onnx")


def require_onnx() -> None:
    """Raise ExportError if they are not."""
    try:
        require("onnx", "an ONNX file")
    except MissingExtraError as error:
        raise ExportError(f"{error}, or leave the ONNX file out") from None


def save_onnx(
    program: ExportedProgram,
    path: Path,
    inputs: Sequence[str],
    outputs: Sequence[str] = (LOGISTIC.prediction,),
    *,
    metadata: Mapping[str, str],
    external_bytes: int = EXTERNAL_BYTES,
) -> None:
    """Write a model: one file, and `<name>.data` for large weights.

    The IR version is the oldest with the operators' set, 9 for opset 20; `name_sizes` names open sizes.
    """
    require_onnx()
    import onnx

    with quiet():
        try:
            converted = torch.onnx.export(
                program,
                (),
                dynamo=True,
                opset_version=OPSET,
                input_names=list(inputs),
                output_names=list(outputs),
                custom_translation_table={torch.ops.aten.index_select.default: _gather()},
                verbose=False,
            )
        except Exception as error:  # torch's errors have no class in common
            raise ExportError(f"{path.name}: torch.onnx cannot convert the program ({reason(error)})") from error
        assert converted is not None
        weights = sum(tensor.nbytes for tensor in program.state_dict.values())
        for node in converted.model.graph.all_nodes():
            node.metadata_props.clear()  # torch's notes on its origin, larger than the node
        for value in converted.model.graph.initializers.values():
            value.shape = value.type = None  # the tensor has both; onnxruntime's quantizer contradicts a repetition
        name_sizes(converted.model.graph)
        opsets = [onnx.helper.make_opsetid(*opset) for opset in converted.model.opset_imports.items()]
        # torch writes a newer one than its operators need, and older runtimes refuse that.
        converted.model.ir_version = onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True)
        converted.model.metadata_props.update(metadata)
        converted.save(path, external_data=weights >= external_bytes)
    with quiet():
        onnx.checker.check_model(str(path), full_check=True)


def _gather() -> Any:
    """A plain Gather; torch's translation adds a Reshape and a Cast to int64 to each."""
    from onnxscript import opset20 as op

    def gather(values: Any, dim: int, index: Any) -> Any:
        return op.Gather(values, index, axis=dim)

    return gather


class OnnxModel:
    """An ONNX file in onnxruntime, on the CPU."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        require_onnx()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors have no class in common
            raise ExportError(f"{path}: onnxruntime cannot open it ({error})") from error
        self._names = [each.name for each in self._session.get_inputs()]

    def __call__(self, arguments: Sequence[Tensor]) -> list[npt.NDArray[Any]]:
        """The outputs in order, for the inputs in order."""
        feeds = {name: tensor.numpy() for name, tensor in zip(self._names, arguments, strict=True)}
        results: list[npt.NDArray[Any]] = self._session.run(None, feeds)
        return results
