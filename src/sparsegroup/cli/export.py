"""`sparsegroup export`, `sparsegroup apply` and `sparsegroup inspect`."""

import logging
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sparsegroup.cli.app import UsageError, starting
from sparsegroup.cli.options import THREADS, Model, Threads
from sparsegroup.cli.output import figures, show
from sparsegroup.errors import pip_install
from sparsegroup.reporting.formatting import size, titles_of
from sparsegroup.settings.names import Dtype, ProgramName

if TYPE_CHECKING:
    from sparsegroup.serving import ExportManifest, TestRows
    from sparsegroup.serving.inspection_views import Section
    from sparsegroup.training import Config

_logger = logging.getLogger(__name__)

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
    onnx: Onnx = None,
    program: Program = False,
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
    with starting(threads):
        from sparsegroup.serving import export_delta, export_trained, open_trained, recalibrate_on
        from sparsegroup.serving.manifest import check_free

    check_free(out, overwrite)
    trained = open_trained(model, sweep=sweep)
    newer = _test_rows(recalibrate, trained.config, threads)
    shift = None if newer is None else recalibrate_on(trained, newer)
    rows = _test_rows(test, trained.config, threads)
    if since is not None:
        manifest = export_delta(trained, out, since, dtype, test=rows, overwrite=overwrite)
    else:
        formats = _formats(onnx, program)
        manifest = export_trained(
            trained, out, dtype or "float32", formats, test=rows, threads=threads, overwrite=overwrite
        )
    _show(manifest, out, shift)


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
            for name in ("dtype", "live_rows", "features_seen", "feature_rate", "zero_rows")
        },
        "bytes": manifest.bytes,
        "upserts": None if changes is None else changes.upserts,
        "tombstones": None if changes is None else changes.tombstones,
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


def inspect_command(
    model: Model,
    top: Annotated[int, typer.Option(min=0, help="Number of features to list, those of the largest norms.")] = 10,
    html: Annotated[Path | None, typer.Option(help="Also write the same to an HTML page, with charts.")] = None,
) -> None:
    """Look into a trained model: sizes, feature rate per field, norms, the largest features, and what λ did."""
    with starting():
        from sparsegroup.artifact.folder import write_atomically
        from sparsegroup.serving.inspection import inspect
        from sparsegroup.serving.inspection_views import lead_of, render_inspection, sections, title_of
        from sparsegroup.serving.opening import open_trained

    found = inspect(open_trained(model), top)
    if html is not None:
        page = render_inspection(found)
        write_atomically(html, lambda path: path.write_text(page, encoding="utf-8"))
    parts: list[RenderableType] = [Text(title_of(found), style="bold"), Text(lead_of(found), style="dim")]
    for section in sections(found).values():
        parts += [Text(f"\n{section.title}", style="bold"), Padding(_section_table(section), (0, 0, 0, 1))]
        if section.note:
            parts.append(Padding(Text(section.note, style="dim"), (0, 0, 0, 2)))
    show(found.as_plain(), Group(*parts), *([] if html is None else [f"written to {html}"]))


def _section_table(section: "Section") -> Table:
    """A section as a table, in which the sums of all fields are emphasized."""
    table = Table(box=None, show_header=bool(section.columns), header_style="dim", pad_edge=False, padding=(0, 2, 0, 1))
    for number, name in enumerate(section.columns):
        is_text = number < section.texts
        table.add_column(name, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    if section.bars:
        table.add_column("", no_wrap=True)
    ends = [max(share, 1 / 160) if share > 0 else 0 for share in section.bars]  # at least an eighth of a character
    bars = [[Bar(1, 0, end, width=20, color="yellow")] for end in ends] or [[]] * len(section.rows)
    for row, bar in zip(section.rows, bars, strict=True):
        table.add_row(*map(Text, row), *bar, style="bold" if row[0] == "all fields" else None)
    return table
