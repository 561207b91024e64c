"""`sparsegroup export` and `sparsegroup apply`."""

import logging
from collections.abc import Iterator
from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsegroup.cli.app import UsageError, starting
from sparsegroup.cli.options import THREADS, Threads
from sparsegroup.cli.output import figures, show
from sparsegroup.errors import pip_install
from sparsegroup.names import bytes_of
from sparsegroup.reporting.formatting import size, titles_of
from sparsegroup.settings.names import Dtype, KeyFormat, ProgramName

if TYPE_CHECKING:
    from sparsegroup.serving import ExportManifest, TestRows
    from sparsegroup.training import Config

_logger = logging.getLogger(__name__)

Keys = Annotated[
    KeyFormat | None,
    typer.Option(
        help="Whole keys, or 16 bits of each, by which one or two absent keys in 10,000 get another's vector.",
        show_default="full, or that of --since or of an export RUN",
    ),
]
Onnx = Annotated[
    bool | None,
    typer.Option(
        "--onnx/--no-onnx", help="Write model.onnx.", show_default="if the extra sparsegroup[onnx] is installed"
    ),
]
Program = Annotated[bool, typer.Option("--program", help="Write model.pt2, a program of torch.export.")]
TestLog = Annotated[
    str | None,
    typer.Option(
        metavar="LOG",
        help="Test set for AUC and log loss before and after: a raw log or a prepared folder. Of the run's own log and "
        "of a prepared one the test rows are used, of any other log all rows.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the export that OUT holds.")]


def export_command(
    model: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a trained model.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    dtype: Annotated[
        Dtype | None, typer.Option(help="Format of the vectors.", show_default="float32, or that of --since")
    ] = None,
    keys: Keys = None,
    onnx: Onnx = None,
    program: Program = False,
    bytes_: Annotated[
        str | None,
        typer.Option(
            "--bytes",
            metavar="SIZE",
            help="Limit of embeddings and network together, such as 20MB. The format and number of rows with the "
            "lowest loss on the first half of --test are taken, with fingerprints unless --keys is given.",
        ),
    ] = None,
    since: Annotated[
        Path | None, typer.Option(metavar="EXPORT", help="Write a delta: what has changed since this export or delta.")
    ] = None,
    recalibrate: Annotated[
        str | None,
        typer.Option(
            metavar="LOG",
            help="Shift all logits so that the predictions for this log add up to its positives: newer rows, say. The "
            "same rows are taken as by --test.",
        ),
    ] = None,
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep", help="First apply the last λ to all rows, including those that no batch has touched since."
        ),
    ] = False,
    test: TestLog = None,
    overwrite: Overwrite = False,
    threads: Threads = THREADS,
) -> None:
    """Write the live rows of a trained model and its network, for servers."""
    if since is not None and (onnx or program):
        raise UsageError("a delta holds no model; write --onnx and --program when it is applied")
    limit = None if bytes_ is None else _limit(bytes_)
    if limit is not None:
        if dtype is not None or since is not None:
            raise UsageError("--bytes chooses the format: it goes with neither --dtype nor --since")
        if test is None:
            raise UsageError("--bytes chooses by held-out rows: give --test")
    with starting(threads):
        from sparsegroup.serving import export_delta, export_trained, export_within, open_trained, recalibrate_on
        from sparsegroup.serving.manifest import check_free

    check_free(out, overwrite)
    trained = open_trained(model, sweep=sweep)
    newer = _test_rows(recalibrate, trained.config, threads)
    shift = None if newer is None else recalibrate_on(trained, newer)
    rows = _test_rows(test, trained.config, threads)
    if since is not None:
        manifest = export_delta(trained, out, since, dtype, keys=keys, test=rows, overwrite=overwrite)
    elif limit is not None:
        assert rows is not None
        how: dict[str, Any] = {"threads": threads, "overwrite": overwrite} | ({} if keys is None else {"keys": keys})
        manifest = export_within(trained, out, limit, rows, _formats(onnx, program), **how)
    else:
        formats = _formats(onnx, program)
        manifest = export_trained(
            trained, out, dtype or "float32", formats, keys=keys, test=rows, threads=threads, overwrite=overwrite
        )
    _show(manifest, out, shift)


def _limit(given: str) -> int:
    try:
        return bytes_of(given)
    except ValueError as error:
        raise UsageError(f"--bytes: {error}") from error


def apply_command(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="BASE DELTA... OUT", help="An export, deltas in order, and the folder to write."),
    ],
    onnx: Onnx = None,
    program: Program = False,
    test: TestLog = None,
    overwrite: Overwrite = False,
    threads: Threads = THREADS,
) -> None:
    """Apply deltas to an export, and write the result as a new export."""
    if len(folders) < 3:
        raise UsageError("apply wants an export, one or more deltas, and the folder to write: BASE DELTA... OUT")
    with starting(threads):
        from sparsegroup.serving import apply_deltas, read_manifest
        from sparsegroup.serving.manifest import check_free

    base, *deltas, out = folders
    check_free(out, overwrite)
    rows = None if test is None else _test_rows(test, read_manifest(base).columns_and_config()[1], threads)
    formats = _formats(onnx, program)
    _show(apply_deltas(base, deltas, out, formats, test=rows, threads=threads, overwrite=overwrite), out)


def _test_rows(test: str | None, config: "Config", threads: int) -> "TestRows | None":
    """The rows of `--test` for a model with these settings."""
    from sparsegroup.cli.logs import reading_bar
    from sparsegroup.serving import open_test_rows

    if test is None:
        return None
    with reading_bar(test) as on_progress:
        return open_test_rows(test, config, threads, on_progress)


def _formats(onnx: bool | None, program: bool) -> list[ProgramName]:
    from sparsegroup.serving.onnx import has_onnx

    if onnx is None:
        onnx = has_onnx()
        if not onnx:
            _logger.warning("model.onnx is left out; for ONNX: %s", pip_install("onnx"))
    wanted: dict[ProgramName, bool] = {"onnx": onnx, "program": program}
    return [name for name in wanted if wanted[name]]


def _show(manifest: "ExportManifest", out: Path, shift: float | None = None) -> None:
    changes, test = manifest.changes, manifest.test
    result: dict[str, Any] = {
        "folder": str(out),
        **{
            name: getattr(manifest, name)
            for name in (
                *("dtype", "keys", "live_rows", "features_seen", "feature_rate", "zero_rows"),
                *("merged_rows", "dropped_rows", "false_hits"),
            )
        },
        "bytes": manifest.bytes,
        "upserts": None if changes is None else changes.upserts,
        "tombstones": None if changes is None else changes.tombstones,
        "candidates": [asdict(one) for one in manifest.candidates],
        "test_rows": None if test is None else test.rows,
        "shift": shift,
    }
    for name, score in {} if test is None else test.scores.items():
        result |= {f"{name}_{measure}": getattr(score, measure) for measure in _shown(score)}
    show(result, figures(_outcome(manifest, out, shift)))


def _shown(score: Any) -> dict[str, str]:
    """The two measures of a model on the test rows that are shown, and their titles."""
    return dict(list(titles_of(score).items())[:2])


def _exactly(value: float) -> str:
    return "–" if isnan(value) else f"{value:.6f}"


def _outcome(manifest: "ExportManifest", out: Path, shift: float | None) -> Iterator[tuple[str, str]]:
    from sparsegroup.serving.manifest import MANIFEST

    changes, before = manifest.changes, manifest.before
    features = f"{manifest.live_rows:,} of {manifest.features_seen:,} features"
    yield "feature rate", f"{manifest.feature_rate:.4f}  ({features})"
    if manifest.zero_rows:
        yield "left out", f"{manifest.zero_rows:,} rows that are all zeros in {manifest.dtype}"
    if manifest.dropped_rows:
        yield "for the bytes", f"{manifest.dropped_rows:,} rows of the smallest norms left out"
    for one in manifest.candidates:
        yield f"candidate {one.dtype}", f"{one.rows:,} rows in {size(one.bytes)}: loss {one.loss:.6f}"
    if manifest.keys == "fingerprints":
        rate = f"1 in {1 / manifest.false_hits:,.0f}" if manifest.false_hits else "none"
        yield (
            "false hits",
            f"{rate} absent keys, at most; {manifest.merged_rows:,} rows with equal fingerprints left out",
        )
    if shift is not None:
        yield "recalibrated", f"all logits shifted by {shift:+.4f}"
    yield "before", f"{size(before.table)} table in training, {size(before.dense)} dense float32 vectors"
    if changes is not None:
        yield "changes", f"{changes.upserts:,} upserts, {changes.tombstones:,} tombstones, the network"
    sizes = ", ".join(f"{name} {size(file.bytes)}" for name, file in manifest.files.items())
    yield f"after, {manifest.dtype}", sizes
    if (test := manifest.test) is not None:
        yield "tested on", f"{test.rows:,} rows of {test.log}"
        trained = test.scores.get("training")
        for name, score in test.scores.items():
            if name != "training":
                parts = []
                for measure, title in _shown(score).items():
                    earlier = "" if trained is None else f"{_exactly(getattr(trained, measure))} → "
                    parts.append(f"{title} {earlier}{_exactly(getattr(score, measure))}")
                if name != "export":
                    parts.append(f"largest difference to PyTorch {score.max_abs_difference:.1e}")
                yield name, ", ".join(parts)
    yield "written to", f"{out}; see {out / MANIFEST}"
