"""Exports of trained models and of any module: written, tested, and as a module again."""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from torch import Tensor, nn

from sparsegroup.artifact.folder import atomic_folder, name_errors
from sparsegroup.artifact.manifest import FileFacts, facts_of, facts_of_files
from sparsegroup.artifact.tensor_file import write_tensors
from sparsegroup.data.batches import Batch
from sparsegroup.data.keys import fields_of
from sparsegroup.data.local_files import scan_parquet, write_parquet
from sparsegroup.data.schema import LogSchema
from sparsegroup.serving.acceptance import RandomRows, Scorer, TestRows, as_test, check_agreement, compare
from sparsegroup.serving.frozen import Embeddings, ExportError, live_rows
from sparsegroup.serving.frozen_model import (
    AnyTable,
    FrozenModel,
    ServingModel,
    frozen_copy,
    load_other_weights,
    other_weights,
    pooling_of,
    tables_of,
)
from sparsegroup.serving.manifest import (
    EMBEDDINGS,
    EXPORT,
    NETWORK,
    ONNX,
    PROGRAM,
    TABLE,
    ExportContent,
    ExportedTable,
    ExportManifest,
    FieldRows,
    SizesBefore,
    TestResult,
    check_free,
    file_of,
)
from sparsegroup.serving.onnx import OnnxModel, require_onnx, save_onnx
from sparsegroup.serving.opening import TrainedModel, check_rows
from sparsegroup.serving.reading import read_export
from sparsegroup.serving.tracing import (
    ExampleCall,
    evaluating,
    input_names,
    load_program,
    output_names,
    reason,
    save_program,
    signature_of,
)
from sparsegroup.settings.names import Dtype, ProgramName
from sparsegroup.training.lookup_model import LookupModel
from sparsegroup.training.run_dir import VOCABULARY


@dataclass(frozen=True)
class ExportRequest:
    """What to write beside embeddings and network, and what to test it on.

    Attributes:
        onnx: `model.onnx`.
        program: `model.pt2`.
        test: None tests on made up rows; then no AUC is recorded.
        threads: That share onnxruntime's work in the test.
    """

    onnx: bool = False
    program: bool = False
    test: TestRows | None = None
    threads: int = 1

    def check(self, columns: LogSchema) -> None:
        """Whether this can be had of a model with such columns.

        Raises:
            ExportError: ONNX's packages are missing.
            ClickLogError: The test log has other columns.
        """
        if self.onnx:
            require_onnx()
        if self.test is not None:
            columns.check_fits(self.test.log.schema, self.test.log.name)


def save_vocabulary(sources: Sequence[Path], keys: Tensor, path: Path) -> None:
    """Write those rows of key, field and value whose key is among `keys` `[n]`, by key; once each."""
    wanted = pl.LazyFrame({"key": keys.numpy()}, schema={"key": pl.Int64})
    names = scan_parquet(sources)
    found = names.join(wanted, on="key", how="semi").unique("key").sort("key").collect()
    with name_errors(path):
        write_parquet(path, found.lazy())


NO_FILE = FileFacts(0, "")
"""Until a file is written."""


@dataclass(frozen=True)
class ExportDraft:
    """What is to be written.

    Attributes:
        draft: The manifest, but for what follows from the files.
        tables: Name → the live rows of a table.
        model: What serves them.
        vocabularies: Files of key, field and value.
        trained: The model as it was trained, if it is at hand.
    """

    draft: ExportManifest
    tables: Mapping[str, Embeddings]
    model: FrozenModel
    vocabularies: Sequence[Path]
    trained: LookupModel | None = None

    @property
    def keys(self) -> Tensor:
        """The keys of all tables."""
        return torch.cat([rows.keys for rows in self.tables.values()])


def draft_of(trained: TrainedModel, dtype: Dtype) -> ExportDraft:
    """The live rows in a format, the network, and what a manifest says of them.

    Raises:
        ExportError: Vectors that the format does not have.
        RunError: Vectors that are not finite.
    """
    check_rows(trained.path, trained.model.rows)
    tables = tables_of(trained.model)
    rows = {name: live_rows(table, dtype) for name, table in tables.items()}
    earlier = trained.manifest
    counts = trained.field_counts()
    seen = {
        name: table.num_seen if earlier is None else earlier.tables[name].features_seen
        for name, table in tables.items()
    }
    live = _live_by_field(torch.cat([one.keys for one in rows.values()]), trained.columns.fields)
    draft = ExportManifest(
        kind="export",
        source=str(trained.path),
        dtype=dtype,
        tables={
            name: ExportedTable(
                file=EMBEDDINGS if name == TABLE else file_of(name),
                dim=table.dim,
                live_rows=len(rows[name]),
                features_seen=seen[name],
                zero_rows=table.num_live - len(rows[name]),
            )
            for name, table in tables.items()
        },
        columns=json.loads(json.dumps(asdict(trained.columns))),
        config=trained.config.as_dict(),
        fields={name: FieldRows(live=live[name], seen=counts[name].seen) for name in trained.columns.fields},
        before=(
            SizesBefore(
                dense=sum(seen[name] * table.dim * 4 for name, table in tables.items()),
                table=sum(table.memory().content for table in tables.values()),
            )
            if earlier is None
            else earlier.before
        ),
        content=ExportContent(tables=dict.fromkeys(tables, NO_FILE), network=NO_FILE),
    )
    vocabularies = () if trained.vocabulary is None else (trained.vocabulary,)
    return ExportDraft(draft, rows, FrozenModel.of(trained.model, rows), vocabularies, trained.model)


def _live_by_field(keys: Tensor, fields: tuple[str, ...]) -> Mapping[str, int]:
    counts = np.bincount(fields_of(keys.numpy()), minlength=len(fields))
    return {name: int(counts[number]) for number, name in enumerate(fields)}


def export_trained(
    trained: TrainedModel,
    out: str | Path,
    dtype: Dtype = "float32",
    wanted: ExportRequest | None = None,
    *,
    overwrite: bool = False,
) -> ExportManifest:
    """Write the live rows and the network of a trained model into a folder.

    Args:
        trained: The model, of `open_trained`.
        out: The folder; it appears when it is complete.
        dtype: Format of the vectors.
        wanted: What else to write, and the test set.
        overwrite: Replace an export that is there.

    Raises:
        ExportError: `out` is taken; vectors that the format does not have; ONNX's packages are missing; a file that
            does not compute what PyTorch does. Nothing is written then.
        ClickLogError: The test log has other columns.
    """
    wanted = wanted or ExportRequest()
    check_free(Path(out), overwrite)
    if os.path.realpath(out) == os.path.realpath(trained.path):
        raise ExportError(f"{out}: an export cannot take the place of what it is made of")
    wanted.check(trained.columns)
    return write_export(draft_of(trained, dtype), Path(out), wanted, overwrite=overwrite)


def save_network(model: FrozenModel, path: Path) -> None:
    """Write all weights but the tables' rows; the same weights give the same bytes."""
    write_tensors(path, {name: tensor.contiguous() for name, tensor in model.other_weights.items()})


def write_export(parts: ExportDraft, out: Path, wanted: ExportRequest, *, overwrite: bool = False) -> ExportManifest:
    """Write a whole export; nothing is left behind if it fails.

    Raises:
        ExportError: `out` is taken; ONNX's packages are missing; files that do not compute what PyTorch does.
    """
    check_free(out, overwrite)
    with atomic_folder(out.absolute(), replace=overwrite) as folder:
        files = {name: folder / table.file for name, table in parts.draft.tables.items()}
        for name, rows in parts.tables.items():
            rows.save(files[name])
        save_network(parts.model, folder / NETWORK)
        if parts.vocabularies:
            save_vocabulary(parts.vocabularies, parts.keys, folder / VOCABULARY)
        facts = {name: facts_of(path) for name, path in files.items()}
        content = ExportContent(tables=facts, network=facts_of(folder / NETWORK))
        draft = replace(parts.draft, content=content).with_id()
        test = make_and_test(replace(parts, draft=draft), folder, wanted)
        return EXPORT.write(folder, replace(draft, files=facts_of_files(folder), test=test))


def make_and_test(parts: ExportDraft, folder: Path, wanted: ExportRequest) -> TestResult | None:
    """Write the models that are wanted, and compare what they give.

    Raises:
        ExportError: They differ.
    """
    columns, _ = parts.draft.columns_and_config()
    model = ServingModel(parts.model.embedding, parts.model.network, columns)
    scorers: dict[str, Scorer] = {}
    if parts.trained is not None:
        scorers["training"] = _trained_scorer(parts.trained)
    scorers["export"] = _torch_scorer(model, model)
    traced = model.trace() if wanted.onnx or wanted.program else None
    if wanted.onnx and traced is not None:
        metadata = model.metadata() | {"export": parts.draft.id}
        save_onnx(traced, folder / ONNX, model.inputs, metadata=metadata)
        scorers["onnx"] = _onnx_scorer(model, OnnxModel(folder / ONNX, wanted.threads))
    if wanted.program and traced is not None:
        save_program(traced, folder / PROGRAM)
        scorers["program"] = _torch_scorer(model, load_program(folder / PROGRAM))
    rows = RandomRows(parts.keys, columns) if wanted.test is None else wanted.test
    scores = compare(rows, scorers, parts.model)
    check_agreement(scores, exact=parts.draft.dtype == "float32")
    return None if wanted.test is None else as_test(wanted.test, scores)


def _trained_scorer(model: LookupModel) -> Scorer:
    """Probabilities by the model as it was trained."""

    @torch.no_grad()
    def score(batch: Batch) -> npt.NDArray[np.float32]:
        logits: Tensor = model(batch.keys, batch.numbers, batch.bags)
        return logits.sigmoid().numpy()

    return score


def _torch_scorer(model: ServingModel, runs: nn.Module) -> Scorer:
    @torch.no_grad()
    def score(batch: Batch) -> npt.NDArray[np.float32]:
        probabilities: Tensor = runs(*model.arguments(batch))
        return probabilities.numpy()

    return score


def _onnx_scorer(model: ServingModel, runs: OnnxModel) -> Scorer:
    return lambda batch: runs(model.arguments(batch))


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
