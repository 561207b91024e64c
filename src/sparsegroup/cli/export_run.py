"""What `sparsegroup export` and `sparsegroup apply` do."""

import logging
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any

from rich.table import Table

from sparsegroup.cli.output import show
from sparsegroup.cli.progress import reading_bar
from sparsegroup.data.raw.file_listing import short_name
from sparsegroup.errors import pip_install
from sparsegroup.serving.acceptance import TestRows, open_test_rows
from sparsegroup.serving.deltas import apply_deltas, export_delta
from sparsegroup.serving.exporting import ExportRequest, export_trained
from sparsegroup.serving.manifest import MANIFEST, ExportManifest, TestResult, check_free, read_manifest
from sparsegroup.serving.onnx import has_onnx
from sparsegroup.serving.opening import open_trained
from sparsegroup.settings.names import Dtype
from sparsegroup.training import Config

_logger = logging.getLogger(__name__)


def export_run(
    model: Path,
    out: Path,
    dtype: Dtype,
    onnx: bool | None,
    test: str | None,
    *,
    program: bool,
    sweep: bool,
    overwrite: bool,
    threads: int,
) -> None:
    """Write an export; the arguments are those of the command."""
    check_free(out, overwrite)
    opened = open_trained(model, sweep=sweep)
    rows = None if test is None else _open_test(test, opened.config, threads)
    wanted = ExportRequest(_wants_onnx(onnx), program, rows, threads)
    _show(export_trained(opened, out, dtype, wanted, overwrite=overwrite), out)


def delta_run(
    model: Path,
    out: Path,
    since: Path,
    dtype: Dtype | None,
    test: str | None,
    *,
    sweep: bool,
    overwrite: bool,
    threads: int,
) -> None:
    """Write what has changed since an export; the arguments are those of the command."""
    check_free(out, overwrite)
    opened = open_trained(model, sweep=sweep)
    rows = None if test is None else _open_test(test, opened.config, threads)
    manifest = export_delta(opened, out, since, dtype, ExportRequest(test=rows), overwrite=overwrite)
    _show(manifest, out)


def apply_run(
    base: Path,
    deltas: Sequence[Path],
    out: Path,
    onnx: bool | None,
    test: str | None,
    *,
    program: bool,
    overwrite: bool,
    threads: int,
) -> None:
    """Write the export that deltas lead to; the arguments are those of the command."""
    check_free(out, overwrite)
    rows = None if test is None else _open_test(test, read_manifest(base).columns_and_config()[1], threads)
    wanted = ExportRequest(_wants_onnx(onnx), program, rows, threads)
    _show(apply_deltas(base, deltas, out, wanted, overwrite=overwrite), out)


def _wants_onnx(onnx: bool | None) -> bool:
    if onnx is not None:
        return onnx
    if not has_onnx():
        _logger.warning("model.onnx is left out; for ONNX: %s", pip_install("onnx"))
        return False
    return True


def _open_test(log: str, config: Config, threads: int) -> TestRows:
    with reading_bar(short_name(log)) as on_progress:
        return open_test_rows(log, config, threads, on_progress)


def _show(manifest: ExportManifest, out: Path) -> None:
    changes, test = manifest.changes, manifest.test
    result: dict[str, Any] = {
        "folder": str(out),
        "dtype": manifest.dtype,
        "live_rows": manifest.live_rows,
        "features_seen": manifest.features_seen,
        "feature_rate": manifest.feature_rate,
        "zero_rows": manifest.zero_rows,
        "bytes": sum(file.bytes for file in manifest.files.values()),
        "upserts": None if changes is None else changes.upserts,
        "tombstones": None if changes is None else changes.tombstones,
        "test_rows": None if test is None else test.rows,
    }
    for name, score in {} if test is None else test.scores.items():
        result |= {f"{name}_auc": score.auc, f"{name}_log_loss": score.log_loss}
    show(result, _outcome(manifest, out))


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
