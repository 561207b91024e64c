"""Programs as ONNX files, and running one."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor
from torch.export import ExportedProgram

from sparsegroup.artifact.folder import name_errors
from sparsegroup.errors import MissingExtraError, missing, require
from sparsegroup.objectives import LOGISTIC
from sparsegroup.serving.frozen_model import STRUCTURE, ServingModel
from sparsegroup.serving.rows import ExportError
from sparsegroup.serving.tracing import quiet, reason

TRANSPOSED = ".T"
"""End of the name of an initializer that is the transpose of a weight."""

_ONNX_TYPES = {
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
    torch.float16: "FLOAT16",
    torch.bfloat16: "BFLOAT16",
    torch.int8: "INT8",
    torch.uint8: "UINT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.bool: "BOOL",
}

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
                optimize=False,
            )
            assert converted is not None
            _optimize(converted, program.state_dict)
        except Exception as error:  # torch's errors have no class in common
            raise ExportError(f"{path.name}: torch.onnx cannot convert the program ({reason(error)})") from error
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
        with name_errors(path):
            converted.save(path, external_data=weights >= external_bytes)
    with quiet():
        onnx.checker.check_model(str(path), full_check=True)


def _optimize(converted: Any, weights: Mapping[str, Any]) -> None:
    """Let onnxscript simplify a `torch.onnx.ONNXProgram` so that its initializers remain the weights, by their names.

    It would fold small ones into constants, and merge equal ones. A transposed matrix becomes an initializer
    `<name>.T`; a buffer that is not in the `state_dict` is `constant.<name>`.
    """
    import onnx_ir

    graph = converted.model.graph
    own = [value for name, value in graph.initializers.items() if name in weights]
    tensors = {value.name: value.const_value for value in own}
    for constant in [value for name, value in graph.initializers.items() if name not in weights]:
        del graph.initializers[constant.name]
        constant.name = f"constant.{constant.name}"
        graph.initializers[constant.name] = constant
    for value in own:
        del graph.initializers[value.name]
        value.const_value = None
        graph.inputs.append(value)
    converted.optimize()
    for value in own:
        graph.inputs.remove(value)
        value.const_value = tensors[value.name]
        for use in [*value.uses()]:
            node = use.node
            if node.op_type == "Transpose" and len(value.shape) == 2 and node.graph is graph:
                array = value.const_value.numpy().T
                name = value.name + TRANSPOSED
                if name not in graph.initializers:
                    graph.register_initializer(onnx_ir.Value(name=name, const_value=onnx_ir.tensor(array.copy())))
                node.outputs[0].replace_all_uses_with(graph.initializers[name])
                graph.remove(node, safe=True)
        if value.uses():
            graph.initializers[value.name] = value


def _gather() -> Any:
    """A plain Gather; torch's translation adds a Reshape and a Cast to int64 to each."""
    from onnxscript import opset20 as op

    def gather(values: Any, dim: int, index: Any) -> Any:
        return op.Gather(values, index, axis=dim)

    return gather


def with_rows(onnx: bytes, model: ServingModel, metadata: Mapping[str, str] | None = None) -> bytes | None:
    """A `model.onnx` with the rows and weights of another export of the same network, without tracing it again.

    Args:
        onnx: The content of a `model.onnx` of a `ServingModel`, or of `graph_of` it.
        model: The rows, of which there may be more or fewer, and the weights.
        metadata: The new file's; None: the model's, which do not name an export.

    Returns:
        The content of the file. None if the operators would be others (another
        network or format, other columns, or tables that take more steps to search), or if the file would be larger than
        one can be.
    """
    require_onnx()
    from onnx import ModelProto, TensorProto

    proto = ModelProto.FromString(onnx)
    structure = next((entry.value for entry in proto.metadata_props if entry.key == STRUCTURE), None)
    weights = model.state_dict()
    size = sum(values.nbytes for values in weights.values())
    if structure != model.structure() or size >= EXTERNAL_BYTES:
        return None
    for initializer in proto.graph.initializer:
        name = initializer.name
        if not name.startswith(_OF_MODEL):  # a constant of the network
            continue
        weight = weights[name.removesuffix(TRANSPOSED)]
        values = weight.T if name.endswith(TRANSPOSED) else weight
        data_type = getattr(TensorProto, _ONNX_TYPES[values.dtype])
        initializer.CopyFrom(TensorProto(name=name, data_type=data_type, dims=values.shape))
        initializer.raw_data = values.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    del proto.metadata_props[:]
    for key, value in (model.metadata() if metadata is None else metadata).items():
        proto.metadata_props.add(key=key, value=value)
    content: bytes = proto.SerializeToString()
    return content


_OF_MODEL = "model."
"""Beginning of the names of a `ServingModel`'s weights; constants have others."""


def graph_of(onnx: bytes) -> bytes:
    """A `model.onnx` without its rows and weights: some kilobytes, for `with_rows`."""
    require_onnx()
    from onnx import ModelProto, TensorProto

    proto = ModelProto.FromString(onnx)
    for initializer in proto.graph.initializer:
        if initializer.name.startswith(_OF_MODEL):
            initializer.CopyFrom(TensorProto(name=initializer.name, data_type=initializer.data_type, dims=[0]))
    content: bytes = proto.SerializeToString()
    return content


def structure_in(onnx: bytes) -> str | None:
    """What `ServingModel.structure` was of the model in a file; None of a file that does not have it."""
    from onnx import ModelProto

    return {entry.key: entry.value for entry in ModelProto.FromString(onnx).metadata_props}.get(STRUCTURE)


def session_for(graph: bytes, model: ServingModel, threads: int = 1) -> Any:
    """An `onnxruntime.InferenceSession` of a graph with a model's rows and weights, without making a file of them.

    Nothing of the rows' size happens while Python's lock is held, so that other threads continue.

    Args:
        graph: What `graph_of` gives.
        model: The rows and weights; they are copied.
        threads: Threads of one scoring, which leave the cores to others when they are idle.

    Returns:
        The session; None where `with_rows` gives None because of the operators.

    Raises:
        ExportError: onnxruntime cannot open it.
    """
    require_onnx()
    import onnxruntime
    from onnx import ModelProto, TensorProto

    proto = ModelProto.FromString(graph)
    if {entry.key: entry.value for entry in proto.metadata_props}.get(STRUCTURE) != model.structure():
        return None
    weights, values = model.state_dict(), {}
    for initializer in proto.graph.initializer:
        name = initializer.name
        if not name.startswith(_OF_MODEL):
            continue
        weight = weights[name.removesuffix(TRANSPOSED)]
        weight = (weight.T if name.endswith(TRANSPOSED) else weight).contiguous()
        kind = getattr(TensorProto, _ONNX_TYPES[weight.dtype])
        initializer.CopyFrom(TensorProto(name=name, data_type=kind, dims=weight.shape, data_location="EXTERNAL"))
        initializer.external_data.add(key="location", value="in memory")
        array = weight.view(torch.int16).numpy().view("uint16") if weight.dtype == torch.bfloat16 else weight.numpy()
        values[name] = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, kind)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_external_initializers(list(values), list(values.values()))
    try:
        return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no class in common
        raise ExportError(f"onnxruntime cannot open the model ({error})") from error


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
