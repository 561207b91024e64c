"""`sparsegroup export` and `sparsegroup apply`."""

from contextlib import nullcontext
from math import isnan
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sparsegroup.cli.app import THREADS, Threads, UsageError, app, console, use_threads
from sparsegroup.cli.progress import reading_bar
from sparsegroup.data.log_errors import ClickLogError
from sparsegroup.serving.acceptance import TestRows, open_test_rows
from sparsegroup.serving.deltas import apply_deltas, export_delta
from sparsegroup.serving.export_folder import check_free
from sparsegroup.serving.export_manifest import MANIFEST, ExportManifest, TestResult, read_manifest
from sparsegroup.serving.export_request import ExportRequest
from sparsegroup.serving.export_writer import export
from sparsegroup.serving.onnx import INSTALL, has_onnx
from sparsegroup.serving.quantize import Dtype
from sparsegroup.serving.trained_model import open_trained
from sparsegroup.training import Config

Onnx = Annotated[
    bool | None,
    typer.Option(
        "--onnx/--no-onnx", help="Write model.onnx.", show_default="if the extra sparsegroup[onnx] is installed"
    ),
]
Program = Annotated[bool, typer.Option("--program", help="Write model.pt2, a program of torch.export.")]
TestLog = Annotated[
    Path | None,
    typer.Option(
        metavar="LOG",
        help="A test set for AUC and log loss before and after: a raw log or a prepared folder. All rows of it are "
        "taken; of the run's own log and of a prepared one, the test rows.",
        show_default=False,
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the export that OUT holds.")]


@app.command("export")
def export_command(
    model: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a trained model.", show_default=False)],
    out: Annotated[Path, typer.Argument(help="Folder to write.", show_default=False)],
    dtype: Annotated[
        Dtype | None, typer.Option(help="Format of the vectors.", show_default="float32, or that of --since")
    ] = None,
    onnx: Onnx = None,
    program: Program = False,
    since: Annotated[
        Path | None,
        typer.Option(
            metavar="EXPORT",
            help="Write a delta: what has changed since this export or delta.",
            show_default=False,
        ),
    ] = None,
    test: TestLog = None,
    overwrite: Overwrite = False,
    threads: Threads = THREADS,
) -> None:
    """Write the live rows of a trained model and its network, for servers."""
    use_threads(threads)
    if since is not None and (onnx or program):
        raise UsageError("a delta holds no model; write --onnx and --program when it is applied")
    check_free(out, overwrite)
    opened = open_trained(model)
    rows = None if test is None else _open_test(test, opened.config, threads)
    if since is not None:
        manifest = export_delta(opened, out, since, dtype, ExportRequest(test=rows), overwrite=overwrite)
    else:
        wanted = ExportRequest(_wants_onnx(onnx), program, rows, threads)
        manifest = export(opened, out, dtype or "float32", wanted, overwrite=overwrite)
    console.print(_outcome(manifest, out), highlight=False)


@app.command("apply")
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
    """Write the export that deltas lead to."""
    if len(folders) < 3:
        raise UsageError("apply wants an export, one or more deltas, and the folder to write: BASE DELTA... OUT")
    use_threads(threads)
    base, *deltas, out = folders
    check_free(out, overwrite)
    rows = None if test is None else _open_test(test, read_manifest(base).columns_and_config()[1], threads)
    wanted = ExportRequest(_wants_onnx(onnx), program, rows, threads)
    console.print(_outcome(apply_deltas(base, deltas, out, wanted, overwrite=overwrite), out), highlight=False)


def _wants_onnx(onnx: bool | None) -> bool:
    if onnx is not None:
        return onnx
    if not has_onnx():
        console.print(f"model.onnx is left out; for ONNX: {INSTALL}", style="yellow", markup=False, highlight=False)
        return False
    return True


def _open_test(path: Path, config: Config, threads: int) -> TestRows:
    with nullcontext() if path.is_dir() else reading_bar([path]) as on_progress:
        try:
            return open_test_rows(path, config, threads, on_progress)
        except ClickLogError:
            raise
        except ValueError as error:  # options that do not go together
            raise UsageError(str(error)) from error


def _outcome(manifest: ExportManifest, out: Path) -> Table:
    table = Table(show_header=False, box=None)
    rate = f"{manifest.feature_rate:.4f}  ({manifest.live_rows:,} of {manifest.features_seen:,} features)"
    table.add_row("feature rate", rate)
    if manifest.zero_rows:
        table.add_row("left out", f"{manifest.zero_rows:,} rows that are all zeros in {manifest.dtype}")
    before = manifest.before
    table.add_row("before", f"{_bytes(before.table)} table in training, {_bytes(before.dense)} dense float32 vectors")
    if manifest.changes is not None:
        changes = manifest.changes
        table.add_row("changes", f"{changes.upserts:,} upserts, {changes.tombstones:,} tombstones, the network")
    sizes = ", ".join(f"{name} {_bytes(file.bytes)}" for name, file in manifest.files.items())
    table.add_row(f"after, {manifest.dtype}", sizes)
    if manifest.test is not None:
        _add_test(table, manifest.test)
    table.add_row("written to", f"{out}; see {out / MANIFEST}")
    return table


def _add_test(table: Table, test: TestResult) -> None:
    table.add_row("tested on", f"{test.rows:,} rows of {test.log}")
    before = test.scores.get("training")
    for name, score in test.scores.items():
        if name == "training":
            continue
        auc = "–" if isnan(score.auc) else f"{score.auc:.6f}"
        loss = f"{score.log_loss:.6f}"
        if before is not None:
            auc, loss = f"{before.auc:.6f} → {auc}", f"{before.log_loss:.6f} → {loss}"
        far = "" if name == "export" else f", largest difference to PyTorch {score.max_abs_difference:.1e}"
        table.add_row(name, f"AUC {auc}, log loss {loss}{far}")


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
