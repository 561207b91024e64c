"""Exports of trained models and of any module: written, tested, and loaded as a module again."""

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from sparsegroup.artifact.folder import atomic_folder, name_errors
from sparsegroup.artifact.manifest import FileFacts, facts_of_files
from sparsegroup.artifact.tensor_file import facts_of_tensors, write_tensors
from sparsegroup.data.batches import Bags, Batch
from sparsegroup.data.keys import fields_of
from sparsegroup.data.local_files import scan_parquet, write_parquet
from sparsegroup.data.schema import LogSchema
from sparsegroup.reporting.run_record import AnyMetrics, ClassMetrics, Metrics, NumberMetrics, RankMetrics, TaskMetrics
from sparsegroup.serving.evaluation import TestRows
from sparsegroup.serving.frozen import FrozenBag, live_rows
from sparsegroup.serving.frozen_model import (
    AnyTable,
    ServingModel,
    frozen_copy,
    load_other_weights,
    other_weights,
    tables_of,
)
from sparsegroup.serving.manifest import (
    EXPORT,
    NETWORK,
    ONNX,
    PROGRAM,
    AnyScores,
    ClassScores,
    ExportContent,
    ExportedTable,
    ExportManifest,
    FieldRows,
    NumberScores,
    PathScores,
    RankScores,
    SizesBefore,
    TaskScores,
    TestResult,
    check_free,
    content_of,
    file_of,
)
from sparsegroup.serving.onnx import OnnxModel, require_onnx, save_onnx, with_rows
from sparsegroup.serving.opening import Export, TrainedModel, read_export
from sparsegroup.serving.rows import Embeddings, ExportError, truncated
from sparsegroup.serving.tracing import (
    ExampleCall,
    evaluating,
    input_names,
    load_program,
    output_names,
    reason,
    save_program,
    signature_of,
    tensors_in,
)
from sparsegroup.settings.names import Dtype, KeyFormat, ProgramName
from sparsegroup.table import HashEmbeddingBag
from sparsegroup.training.metrics import measure
from sparsegroup.training.model import LookupModel
from sparsegroup.training.predictions import check_logits, numbers_named
from sparsegroup.training.run_folder import VOCABULARY

MODEL_FILES: Mapping[str, str] = {"onnx": ONNX, "program": PROGRAM}
"""Format of a model → its file."""

_PROGRAM: tuple[ProgramName, ...] = ("program",)
Runner = Callable[[ExampleCall], list[Tensor]]
Scorer = Callable[[Batch], npt.NDArray[np.floating]]
TOLERANCE = 1e-5
"""Largest difference between two ways to compute the same prediction, relative to one above 1."""


@dataclass(frozen=True)
class Draft:
    """An export to be written."""

    manifest: ExportManifest  # without files, content, id and test
    rows: Mapping[str, Embeddings]  # table → live rows
    model: nn.Module  # with lookups of these
    vocabularies: Sequence[Path] = ()  # files of key, field and value

    @contextmanager
    def writing(self, out: Path, overwrite: bool) -> Iterator[tuple[Path, ExportManifest]]:
        """A folder with rows and other weights, and the manifest so far; it becomes `out` when the block has ended."""
        check_free(out, overwrite)
        with atomic_folder(out.absolute(), replace=overwrite) as folder:
            for name, rows in self.rows.items():
                rows.save(folder / self.manifest.tables[name].file)
            write_tensors(folder / NETWORK, other_weights(self.model))
            manifest = replace(self.manifest, content=content_of(self.manifest.tables, facts_of_files(folder)))
            yield folder, replace(manifest, id=manifest.expected_id())

    def add_models(
        self,
        folder: Path,
        manifest: ExportManifest,
        trained: LookupModel | None,
        formats: Collection[ProgramName] = (),
        test: TestRows | None = None,
        threads: int = 1,
        *,
        graph: bytes | None = None,
    ) -> TestResult | None:
        """Write the model in some formats, and compare its predictions with PyTorch's and the trained model's.

        `graph` is the ONNX file of other rows, see `with_rows`; if it fits, the model is not traced.
        """
        assert isinstance(self.model, LookupModel)
        columns, _ = manifest.columns_and_config()
        served = ServingModel(self.model, columns)
        runs: dict[str, Runner] = {"export": partial(ExampleCall.outputs_of, model=served)}
        if trained is not None:
            runs = {"training": partial(ExampleCall.outputs_of, model=ServingModel(trained, columns)), **runs}
        metadata = served.metadata() | {"export": manifest.id}
        if "onnx" in formats and graph is not None and (content := with_rows(graph, served, metadata)) is not None:
            formats = [name for name in formats if name != "onnx"]
            with name_errors(folder / ONNX):
                (folder / ONNX).write_bytes(content)
            runs["onnx"] = _runner_of(folder / ONNX, threads)
        if formats:
            runs |= _save_models(
                served.trace(), folder, formats, served.inputs, self.model.objective.output_names, metadata, threads
            )
        tasks = len(self.model.objective.tasks)
        batches = random_batches(keys_of(self.rows), columns, tasks=tasks) if test is None else test.batches()

        def scorer(run: Runner) -> Scorer:
            def score(batch: Batch) -> npt.NDArray[np.floating]:
                outputs = run(ExampleCall(served.arguments(batch), {}))
                return (torch.stack(outputs, dim=1) if tasks else outputs[0]).numpy()

            return score

        scores = compare(batches, {name: scorer(run) for name, run in runs.items()}, self.model, test)
        for name, score in scores.items():
            # The trained model has all rows, their keys, and float32.
            exact = name != "training" or (
                manifest.dtype == "float32" and manifest.keys == "full" and not manifest.dropped_rows
            )
            if exact and not score.max_abs_difference <= TOLERANCE:
                raise ExportError(
                    f"{name} and the export in PyTorch differ by {score.max_abs_difference:.3g}, more than "
                    f"{TOLERANCE:g}; please report it"
                )
        return None if test is None else TestResult(test.log.name, len(test), scores)


def save_vocabulary(vocabularies: Sequence[Path], tables: Iterable[Embeddings], folder: Path) -> None:
    """Write key, field and value of the known ones of the keys of `tables`, by key, if there are vocabularies.

    Where there are fingerprints, the keys have only their bits, and the first name that has them is taken.
    """
    if not vocabularies:
        return
    path, found = folder / VOCABULARY, []
    for rows in tables:
        names = scan_parquet(vocabularies)
        if (bits := rows.bits) is not None:
            names = names.with_columns(
                pl.col("key").map_batches(lambda keys: _truncated(keys, bits), return_dtype=pl.Int64)
            )
        wanted = pl.LazyFrame({"key": rows.keys.numpy()}, schema={"key": pl.Int64})
        found.append(names.join(wanted, on="key", how="semi").collect())
    known = pl.concat(found).unique("key", keep="first", maintain_order=True).sort("key")
    with name_errors(path):
        write_parquet(path, known.lazy())


def _truncated(keys: pl.Series, bits: Tensor) -> pl.Series:
    return pl.Series(truncated(torch.from_numpy(keys.to_numpy(writable=True)), bits).numpy())


def completed(folder: Path, manifest: ExportManifest, test: TestResult | None = None) -> ExportManifest:
    """Write the manifest of a folder that holds all its files."""
    return EXPORT.write(folder, replace(manifest, files=facts_of_files(folder), test=test))


def keys_of(rows: Mapping[str, Embeddings]) -> Tensor:
    """The keys of all tables, one table after the other."""
    return torch.cat([some.keys for some in rows.values()])


def _manifest_of(
    tables: Mapping[str, AnyTable],
    rows: Mapping[str, Embeddings],
    source: str,
    dtype: Dtype,
    keys: KeyFormat = "full",
    earlier: ExportManifest | None = None,
    kept: Mapping[str, Tensor] | None = None,
    **more: Any,
) -> ExportManifest:
    """The manifest of a draft; an `earlier` export knows what training has seen, otherwise the tables do."""
    kept = {} if kept is None else kept
    dropped = {name: int((~kept[name]).sum()) if name in kept else 0 for name in tables}
    entries = {
        name: ExportedTable(
            file=file_of(name),
            dim=table.dim,
            pooling=table.mode if isinstance(table, HashEmbeddingBag | FrozenBag) else None,
            live_rows=len(rows[name]),
            features_seen=table.num_seen if earlier is None else earlier.tables[name].features_seen,
            zero_rows=table.num_live - len(rows[name]) - rows[name].merged - dropped[name],
            merged_rows=rows[name].merged,
            dropped_rows=dropped[name],
            false_hits=rows[name].false_hits,
        )
        for name, table in tables.items()
    }
    before = SizesBefore(
        dense=sum(entry.features_seen * entry.dim * 4 for entry in entries.values()),
        table=sum(table.memory().content for table in tables.values()),
    )
    return ExportManifest(
        kind="export",
        source=source,
        dtype=dtype,
        keys=keys,
        tables=entries,
        before=before if earlier is None else earlier.before,
        content=ExportContent({}, FileFacts(0, "")),
        **more,
    )


def _save_models(
    program: ExportedProgram,
    folder: Path,
    formats: Collection[str],
    inputs: Sequence[str],
    outputs: Sequence[str],
    metadata: Mapping[str, str],
    threads: int = 1,
) -> dict[str, Runner]:
    """Write a program in some formats; returns format → the outputs of the file for a call."""
    runs: dict[str, Runner] = {}
    if "onnx" in formats:
        save_onnx(program, folder / ONNX, inputs, outputs, metadata=metadata)
        runs["onnx"] = _runner_of(folder / ONNX, threads)
    if "program" in formats:
        save_program(program, folder / PROGRAM)
        loaded = load_program(folder / PROGRAM)
        runs["program"] = partial(ExampleCall.outputs_of, model=loaded)
    return runs


def _runner_of(path: Path, threads: int) -> Runner:
    onnx = OnnxModel(path, threads)
    return lambda call: [torch.from_numpy(array) for array in onnx(call.tensors())]


def export_trained(
    trained: TrainedModel,
    out: str | Path,
    dtype: Dtype = "float32",
    formats: Collection[ProgramName] = (),
    *,
    keys: KeyFormat | None = None,
    test: TestRows | None = None,
    threads: int = 1,
    overwrite: bool = False,
) -> ExportManifest:
    """Write the live rows and the network of a trained model into a folder.

    Args:
        trained: The model, of `open_trained`.
        out: The folder; it appears when it is complete.
        dtype: Format of the vectors.
        formats: What to write in addition: "onnx", the file `model.onnx`, and "program", the file `model.pt2`.
        keys: "full", or "fingerprints": some 2.3 bytes a row instead of 8. About one absent key in 5,900 to 12,000 is
            then taken for one that is there, and of rows whose fingerprints are equal, some in 20,000, the one with
            the largest norm remains. None: as an export that is exported again, otherwise full.
        test: The rows to test all of it on. None tests on made-up rows, and records no AUC.
        threads: Number of threads of onnxruntime in the test.
        overwrite: Replace an existing export.

    Raises:
        ExportError: `out` is taken; vectors that the format does not have; keys that are no hashes, with fingerprints;
            whole keys of an export that has none; ONNX's packages are missing; a file that does not compute what
            PyTorch does. Nothing is written then.
        ClickLogError: The test log has other columns.
        ValueError: An unknown format.
    """
    check_target(trained, out, formats, test, overwrite=overwrite)
    if keys is None:
        keys = "full" if trained.manifest is None else trained.manifest.keys
    draft = draft_of(trained, snapshot_of(trained, dtype, keys))
    return write_draft(draft, trained, out, formats, test, threads, overwrite=overwrite)


def write_draft(
    draft: Draft,
    trained: TrainedModel,
    out: str | Path,
    formats: Collection[ProgramName],
    test: TestRows | None,
    threads: int,
    *,
    overwrite: bool,
) -> ExportManifest:
    """Write and test a draft of a trained model; see `export_trained`."""
    with draft.writing(Path(out), overwrite) as (folder, manifest):
        save_vocabulary(draft.vocabularies, draft.rows.values(), folder)
        return completed(folder, manifest, draft.add_models(folder, manifest, trained.model, formats, test, threads))


def check_target(
    trained: TrainedModel,
    out: str | Path,
    formats: Collection[str],
    test: TestRows | None,
    *,
    overwrite: bool,
) -> None:
    """Raise unless a model has rows to export to a folder, in these formats, and fits these test rows."""
    check_free(Path(out), overwrite)
    if os.path.realpath(out) == os.path.realpath(trained.path):
        raise ExportError(f"{out}: an export cannot take the place of what it is made of")
    check_request(trained.columns, formats, test)
    trained.check_rows()


def check_request(columns: LogSchema, formats: Collection[str], test: TestRows | None) -> None:
    """Raise unless a model with these columns can be written in these formats, and tested on these rows."""
    check_formats(formats)
    if test is not None:
        columns.check_fits(test.log.schema, test.log.name)


def check_formats(formats: Collection[str]) -> None:
    """Raise ValueError for an unknown format, and ExportError if ONNX's packages are missing."""
    known = get_args(ProgramName)
    if isinstance(formats, str) or (unknown := [name for name in formats if name not in known]):
        what = formats if isinstance(formats, str) else unknown[0]
        raise ValueError(f"formats must be a list of {' and '.join(known)}, or empty; got {what!r}")
    if "onnx" in formats:
        require_onnx()


def draft_of(trained: TrainedModel, export: Export) -> Draft:
    """The draft of a trained model's export in memory."""
    return Draft(export.manifest, export.tables, frozen_copy(trained.model, export.tables), export.vocabularies)


def snapshot_of(
    trained: TrainedModel,
    dtype: Dtype,
    keys: KeyFormat = "full",
    base: Mapping[str, Embeddings] | None = None,
    kept: Mapping[str, Tensor] | None = None,
) -> Export:
    """The export of a trained model in memory, with copies of live rows and weights; `identified` gives it an id.

    Args:
        trained: The model.
        dtype, keys: Formats of vectors and keys.
        base: Earlier rows of the tables, whose fingerprints have as many bits unless the tables have grown too much.
        kept: Which of each table's `sorted_rows` to take, `[n]` bool; None: all.

    Raises:
        ExportError: Vectors that the format does not have, or that are not finite; keys that are no hashes.
    """
    tables, columns, counts = tables_of(trained.model), trained.columns, trained.field_counts()
    kept = {} if kept is None else kept
    rows = {
        name: live_rows(table, dtype, keys, (base or {}).get(name), kept.get(name)) for name, table in tables.items()
    }
    names = trained.config.model.vocabularies(columns)
    live = np.bincount(fields_of(keys_of(rows).numpy()), minlength=1 + max(names, default=0)).tolist()
    manifest = _manifest_of(
        tables,
        rows,
        str(trained.path),
        dtype,
        keys,
        trained.manifest,
        kept,
        columns=json.loads(json.dumps(asdict(columns))),
        config=trained.config.as_dict(),
        fields={name: FieldRows(live[number], counts[name].seen) for number, name in names.items()},
    )
    vocabularies = () if trained.vocabulary is None else (trained.vocabulary,)
    no_rows = {name: some[torch.empty(0, dtype=torch.int64)] for name, some in rows.items()}
    weights = other_weights(frozen_copy(trained.model, no_rows))
    return Export(trained.path, manifest, rows, weights, vocabularies)


def identified(export: Export) -> Export:
    """An export in memory with the id that it has on a disk."""
    tables = {name: facts_of_tensors(rows.tensors()) for name, rows in export.tables.items()}
    manifest = replace(export.manifest, content=ExportContent(tables, facts_of_tensors(export.network)))
    return replace(export, manifest=replace(manifest, id=manifest.expected_id()))


def random_batches(keys: Tensor, columns: LogSchema, rows: int = 512, *, tasks: int = 0) -> Iterator[Batch]:
    """A batch of known and as many absent keys, and its first row alone; labels are 0, of as many tasks."""
    generator = torch.Generator().manual_seed(0)

    def some_keys(*shape: int) -> Tensor:
        absent = torch.randint(-(1 << 63), (1 << 63) - 1, shape, generator=generator)
        if not len(keys):
            return absent
        present = keys[torch.randint(0, len(keys), shape, generator=generator)]
        return torch.where(torch.rand(shape, generator=generator) < 0.5, present, absent)

    bags = []
    for _ in columns.lists:
        offsets = torch.zeros(rows + 1, dtype=torch.int64)
        offsets[1:] = torch.randint(0, 4, (rows,), generator=generator).cumsum(0)
        bags.append(Bags(some_keys(int(offsets[-1])), offsets))
    batch = Batch(
        some_keys(rows, len(columns.fields) - len(columns.lists)),
        torch.randn(rows, len(columns.numbers), generator=generator),
        torch.zeros(rows, tasks) if tasks else torch.zeros(rows),
        torch.zeros(rows, dtype=torch.int64),
        bags=tuple(bags),
    )
    yield batch
    yield batch[:1]


_SCORES: Mapping[type[AnyMetrics], type[AnyScores]] = {
    Metrics: PathScores,
    NumberMetrics: NumberScores,
    RankMetrics: RankScores,
    ClassMetrics: ClassScores,
    TaskMetrics: TaskScores,
}
"""Kind of metrics → the same with a difference."""


def compare(
    batches: Iterable[Batch], scorers: Mapping[str, Scorer], model: LookupModel, test: TestRows | None = None
) -> Mapping[str, AnyScores]:
    """The scores of several models on the same rows; differences are to the one named "export"."""
    parts: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in scorers}
    labels, weights, groups, rows = [], [], [], 0
    for batch in batches:
        for name, score in scorers.items():
            predictions = score(batch).astype(np.float64)
            if np.isnan(predictions).any():
                if test is not None:  # if a number that the model needs is missing in the log, this names it
                    with numbers_named(test.log, test.start), suppress(FloatingPointError):
                        check_logits(model, batch, torch.from_numpy(predictions), rows)
                raise ExportError(f"{name} gives a prediction that is no number in the rows of the test")
            parts[name].append(predictions)
        labels.append(batch.labels.numpy())
        weights += [] if batch.weights is None else [batch.weights.numpy()]
        of_batch = model.objective.groups_of(batch.keys)
        groups += [] if of_batch is None else [of_batch.numpy().copy()]
        rows += len(batch)
    if not rows:
        raise ExportError("the test log has no rows")
    every, counts = np.concatenate(labels), np.concatenate(weights) if weights else None
    within = np.concatenate(groups) if groups else None
    joined = {name: np.concatenate(some) for name, some in parts.items()}
    scores: dict[str, AnyScores] = {}
    for name, predictions in joined.items():
        gap = np.abs(predictions - joined["export"]) / np.maximum(1, np.abs(joined["export"]))
        metrics = measure(model.objective, every, predictions, counts, within)
        scores[name] = _SCORES[type(metrics)](**vars(metrics), max_abs_difference=float(gap.max()))
    return scores


def export(
    model: nn.Module,
    folder: str | Path,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    tables: Mapping[str, AnyTable] | None = None,
    formats: Collection[ProgramName] = _PROGRAM,
    dtype: Dtype = "float32",
    dynamic_shapes: Any = None,
    strict: bool = False,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    tolerance: float = 1e-5,
    overwrite: bool = False,
) -> ExportManifest:
    """Write a module with one or several tables into a folder: live rows, other weights, and programs that run them.

    In the export each `HashEmbedding` and `HashEmbeddingBag` is a lookup of standard operators over its live rows;
    any other key has the zero vector, or the fallback vector of its field, as in evaluation. The module does not
    change. The export is run on the example before the folder appears, and compared with the module, or, if `dtype`
    rounds, with the module over the rounded vectors.

    Args:
        model: Any module; it may use a table in several places.
        folder: It appears when it is complete.
        args: An example of the module's arguments by position: a batch of two rows or more, best real ones.
        kwargs: An example of those by name.
        tables: Names for the tables, also for tables that are not submodules. None: the names of the submodules.
        formats: What to write in addition to rows and weights: "program", a program of `torch.export`, and "onnx". A
            module that cannot be traced takes neither.
        dtype: Format of the vectors.
        dynamic_shapes: Open sizes, as in `torch.export.export`. None: the first of each tensor; those that the module
            takes to be equal are one.
        strict: As in `torch.export.export`.
        inputs: Names of the input tensors in ONNX; None: the module's parameters'.
        outputs: Names of the output tensors; None: the keys of a mapping, "output" of one tensor, "output_0" and so
            on of several.
        tolerance: Largest difference of numbers in the test, in parts of the largest of their tensor, or of 1.
        overwrite: Replace an existing export.

    Raises:
        ExportError: The module has no table; it cannot be copied or traced, or ONNX lacks an operator, by line or
            operator; `folder` is taken; ONNX's packages are missing; vectors that the format does not have; a
            parameter or vector that is not finite, by its name; a file that does not compute what the module does.
            Nothing is written then.
        TypeError: `args` is no tuple, or `model` no module.
        ValueError: An unknown format.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be an nn.Module, got {type(model).__name__}; `export_trained` takes what `open_trained` gives"
        )
    if not isinstance(args, tuple):
        raise TypeError(f"args must be a tuple of the arguments by position, got {type(args).__name__}")
    folder, call = Path(folder), ExampleCall(args, kwargs or {})
    check_free(folder, overwrite)
    check_formats(formats)
    found, rows = tables_of(model, tables), {}
    for name, table in found.items():
        try:
            rows[name] = live_rows(table, dtype)
        except ExportError as error:
            raise ExportError(f"{name}: {error}") from error
    frozen = frozen_copy(model, rows, found)
    _check_finite(frozen)
    with evaluating(model):
        live = call.outputs_of(model)
    given = call.on_cpu()
    try:
        result = given.result_of(frozen)
    except Exception as error:
        raise ExportError(
            f"{type(frozen).__name__}: fails on the example once its tables are lookups, which can only be called "
            f"with keys ({reason(error)})"
        ) from error
    expected = tensors_in(result)
    if dtype == "float32":
        _check_outputs("the export in PyTorch", expected, live, tolerance)
    manifest = _manifest_of(found, rows, type(model).__qualname__, dtype)
    program, names, results = None, [*(inputs or ())], [*(outputs or ())]
    if formats:
        program = given.trace(frozen, dynamic_shapes, strict=strict)
        names = input_names(program) if inputs is None else names
        results = output_names(result) if outputs is None else results
        manifest = replace(manifest, signature=signature_of(program, names, results))

    with Draft(manifest, rows, frozen).writing(folder, overwrite) as (place, manifest):
        if program is not None:
            runs = _save_models(program, place, formats, names, results, {"export": manifest.id})
            for name, run in runs.items():
                _check_outputs(MODEL_FILES[name], run(given), expected, tolerance)
        return completed(place, manifest)


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
    if export.manifest.columns is not None:
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
        if table.dim != (dim := export.tables[name].dim):
            raise ExportError(f"{folder}: {name} has dimension {dim}, that of `like` {table.dim}")
    frozen = frozen_copy(like, export.tables, found)
    try:
        load_other_weights(frozen, export.network)
    except ExportError as error:
        raise ExportError(f"{folder / NETWORK}: does not fit `like` ({error})") from error
    return frozen


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


def _check_outputs(what: str, found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
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
