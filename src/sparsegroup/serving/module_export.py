"""Exports of any module with tables, and such an export as a module again."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from sparsegroup.artifact.folder import atomic_folder
from sparsegroup.artifact.manifest import facts_of, facts_of_files
from sparsegroup.artifact.tensor_file import write_tensors
from sparsegroup.serving.embeddings import Embeddings, live_rows
from sparsegroup.serving.example_call import ExampleCall, evaluating, input_names, output_names, signature_of
from sparsegroup.serving.export_draft import NO_FILE
from sparsegroup.serving.export_error import ExportError
from sparsegroup.serving.export_folder import check_free, file_of
from sparsegroup.serving.export_manifest import (
    EXPORT,
    NETWORK,
    ONNX,
    PROGRAM,
    ExportContent,
    ExportedTable,
    ExportManifest,
    SizesBefore,
)
from sparsegroup.serving.export_reader import read_export
from sparsegroup.serving.frozen_copy import (
    AnyTable,
    frozen_copy,
    load_other_weights,
    other_weights,
    pooling_of,
    tables_of,
)
from sparsegroup.serving.onnx import OnnxModel, require_onnx, save_onnx
from sparsegroup.serving.program import load_program, save_program
from sparsegroup.serving.torch_errors import reason
from sparsegroup.settings.names import Dtype, ProgramName

_PROGRAM_ALONE: tuple[ProgramName, ...] = ("program",)


def export(
    model: nn.Module,
    folder: str | Path,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    tables: Mapping[str, AnyTable] | None = None,
    formats: Collection[ProgramName] = _PROGRAM_ALONE,
    dtype: Dtype = "float32",
    dynamic_shapes: Any = None,
    strict: bool = False,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    tolerance: float = 1e-5,
    overwrite: bool = False,
) -> ExportManifest:
    """Write a module with one or several tables into a folder: live rows, other weights, and what runs without it.

    In what is written each `HashEmbedding` and `HashEmbeddingBag` is a lookup of standard operators over its live rows;
    any other key has the zero vector, or the fallback vector of its field, as in evaluation. The module itself stays as
    it is. What is written is run on the example and compared before the folder appears: with the module, and where
    `dtype` rounds, with what it rounds to.

    Args:
        model: Any module, wherever its tables are, also one that uses a table in several places.
        folder: It appears when it is complete.
        args: An example of the module's arguments by position: a batch of two rows or more, real ones best, as it is
            what the export is tested on.
        kwargs: An example of those by name.
        tables: Names for the tables, see `tables_of`; also for those that are no submodules. None: the submodules'.
        formats: What to write beside rows and weights: "program", a program of `torch.export`, and "onnx". Without any
            of them the module need not be one that can be traced.
        dtype: Format of the vectors.
        dynamic_shapes: Which sizes are open, as of `torch.export.export`. None: the first of each tensor; those that
            the module takes to be equal are one.
        strict: As of `torch.export.export`.
        inputs: Names of the tensors it takes, in ONNX; None: those of the module's parameters.
        outputs: Names of the tensors it gives; None: the keys of a mapping, "output" of one tensor, "output_0" and so
            on of several.
        tolerance: How far numbers may be apart in the test, in parts of the largest of their tensor, or of 1.
        overwrite: Replace an export that is there.

    Raises:
        ExportError: The module has no table; it cannot be copied or traced, or ONNX has no operators for what it does,
            and what that is; `folder` is taken; ONNX's packages are missing; vectors that the format does not have; a
            parameter or vector that is not finite, by its name; a file that does not compute what the module does.
            Nothing is written then.
        TypeError: `args` is no tuple, or `model` no module.
        ValueError: A format that is not known.
    """
    _check(model, args, formats)
    folder, call = Path(folder), ExampleCall(args, kwargs or {})
    check_free(folder, overwrite)
    if "onnx" in formats:
        require_onnx()
    found = tables_of(model, tables)
    rows = {name: _rows_of(name, table, dtype) for name, table in found.items()}
    frozen = frozen_copy(model, found, rows)
    _check_finite(frozen)
    with evaluating(model):
        live = call.outputs_of(model)
    given = call.on_cpu()
    expected = _frozen_outputs(frozen, given)
    if dtype == "float32":
        _check_agreement("the export in PyTorch", expected, live, tolerance)
    draft = _draft(model, found, rows, dtype)
    program = None
    if formats:
        program = given.trace(frozen, dynamic_shapes, strict=strict)
        names = input_names(program) if inputs is None else list(inputs)
        results = output_names(given.result_of(frozen)) if outputs is None else list(outputs)
        draft = replace(draft, signature=signature_of(program, names, results))
    with atomic_folder(folder.absolute(), replace=overwrite) as place:
        for name, one in rows.items():
            one.save(place / file_of(name))
        write_tensors(place / NETWORK, other_weights(frozen))
        content = {name: facts_of(place / file_of(name)) for name in rows}
        draft = replace(draft, content=ExportContent(tables=content, network=facts_of(place / NETWORK))).with_id()
        if program is not None and "program" in formats:
            save_program(program, place / PROGRAM)
            _check_agreement(PROGRAM, given.outputs_of(load_program(place / PROGRAM)), expected, tolerance)
        if program is not None and "onnx" in formats:
            save_onnx(program, place / ONNX, names, results, metadata={"export": draft.id})
            runs = [torch.from_numpy(array) for array in OnnxModel(place / ONNX).outputs(given.tensors())]
            _check_agreement(ONNX, runs, expected, tolerance)
        return EXPORT.write(place, replace(draft, files=facts_of_files(place)))


def load_export(
    folder: str | Path, like: nn.Module | None = None, tables: Mapping[str, AnyTable] | None = None
) -> nn.Module:
    """An export as a module in evaluation mode. All its files are checked.

    Args:
        folder: An export of any module, or of a trained model.
        like: A module of the class that was exported, however it is initialized: a copy of it is given, with the
            export's weights and tables. None: the program of `torch.export`; of a trained model, its `ServingModel`.
        tables: The tables of `like`, if they were named in `export`.

    Raises:
        ExportError: No export, or a damaged one, by file; there is no program; `like` has other tables or weights.
    """
    folder = Path(folder)
    export = read_export(folder)
    if export.manifest.has_columns:
        if like is not None:
            raise ExportError(f"{folder}: of a trained model, which is built by its settings: leave `like` out")
        return export.serving_model()
    if like is None:
        if PROGRAM not in export.manifest.files:
            raise ExportError(
                f"{folder}: holds no program; give `like`, a module of the class {export.manifest.source}, or export "
                'that with formats=["program"]'
            )
        return load_program(folder / PROGRAM)
    found = tables_of(like, tables)
    if found.keys() != export.tables.keys():
        theirs, ours = (", ".join(names) for names in (export.tables, found))
        raise ExportError(f"{folder}: holds the tables {theirs}, `like` has {ours}")
    for name, table in found.items():
        if table.dim != export.tables[name].dim:
            raise ExportError(f"{folder}: {name} has dimension {export.tables[name].dim}, that of `like` {table.dim}")
    frozen = frozen_copy(like, found, export.tables)
    try:
        load_other_weights(frozen, export.network)
    except ExportError as error:
        raise ExportError(f"{folder / NETWORK}: does not fit `like` ({error})") from error
    return frozen


def _check(model: nn.Module, args: tuple[Any, ...], formats: Collection[str]) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be an nn.Module, got {type(model).__name__}; `export_trained` takes what `open_trained` gives"
        )
    if not isinstance(args, tuple):
        raise TypeError(f"args must be a tuple of the arguments by position, got {type(args).__name__}")
    known = get_args(ProgramName)
    if isinstance(formats, str) or (unknown := [name for name in formats if name not in known]):
        what = formats if isinstance(formats, str) else unknown[0]
        raise ValueError(f"formats must be a list of {' and '.join(known)}, or empty; got {what!r}")


def _draft(
    model: nn.Module, tables: Mapping[str, AnyTable], rows: Mapping[str, Embeddings], dtype: Dtype
) -> ExportManifest:
    entries = {
        name: ExportedTable(
            file=file_of(name),
            dim=table.dim,
            pooling=pooling_of(table),
            live_rows=len(rows[name]),
            features_seen=table.num_seen,
            zero_rows=table.num_live - len(rows[name]),
        )
        for name, table in tables.items()
    }
    return ExportManifest(
        kind="export",
        source=type(model).__qualname__,
        dtype=dtype,
        tables=entries,
        before=SizesBefore(
            dense=sum(table.num_seen * table.dim * 4 for table in tables.values()),
            table=sum(table.memory().content for table in tables.values()),
        ),
        content=ExportContent(tables=dict.fromkeys(entries, NO_FILE), network=NO_FILE),
    )


def _rows_of(name: str, table: AnyTable, dtype: Dtype) -> Embeddings:
    try:
        return live_rows(table, dtype)
    except ExportError as error:
        raise ExportError(f"{name}: {error}") from error


def _check_finite(frozen: nn.Module) -> None:
    """Raise ExportError for a parameter that is not finite, or a buffer with NaN (a mask may have -inf)."""
    parameters = dict(frozen.named_parameters(remove_duplicate=False))
    for name, values in other_weights(frozen).items():
        wrong = ~values.isfinite() if name in parameters else values.isnan()
        if bool(wrong.any()):
            raise ExportError(
                f"{name}: {int(wrong.sum()):,} of {values.numel():,} values are not finite: training has diverged; "
                "there is nothing to serve"
            )


def _frozen_outputs(frozen: nn.Module, call: ExampleCall) -> list[Tensor]:
    try:
        return call.outputs_of(frozen)
    except Exception as error:
        raise ExportError(
            f"{type(frozen).__name__}: fails on the example once its tables are lookups, which can only be called "
            f"with keys ({reason(error)})"
        ) from error


def _check_agreement(what: str, found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    if len(found) != len(expected):
        raise ExportError(f"{what} gives {len(found)} tensors, the module {len(expected)}")
    for place, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if ours.shape != theirs.shape:
            raise ExportError(
                f"output {place} of {what} has shape {list(ours.shape)}, the module's {list(theirs.shape)}"
            )
        a, b = ours.to(torch.float64), theirs.to(torch.float64)
        gap = (a - b).abs().masked_fill((a == b) | (a.isnan() & b.isnan()), 0)
        scale = max(1.0, float(b.nan_to_num(0, 0, 0).abs().max())) if b.numel() else 1.0
        if not bool((gap <= tolerance * scale).all()):
            raise ExportError(
                f"output {place} of {what} differs from the module's by {float(gap.max()):.3g}, more than "
                f"{tolerance * scale:.3g} (`tolerance`). It does so where the module's result is not a function of its "
                "arguments and weights alone, or depends on their values in a way that torch.export cannot see"
            )
