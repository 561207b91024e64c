"""`sparsegroup export` and `sparsegroup apply`: their options."""

from pathlib import Path
from typing import Annotated

import typer

from sparsegroup.cli.app import THREADS, Threads, UsageError, app, starting, use_threads
from sparsegroup.cli.output import Json, Quiet, Verbose
from sparsegroup.settings.names import Dtype

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
        show_default=False,
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the export that OUT holds.")]


@app.command("export")
def export_command(
    model: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a trained model.", show_default=False)],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.", show_default=False)],
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
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep", help="First apply the last λ to all rows, including those that no batch has touched since."
        ),
    ] = False,
    test: TestLog = None,
    overwrite: Overwrite = False,
    threads: Threads = THREADS,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write the live rows of a trained model and its network, for servers."""
    if since is not None and (onnx or program):
        raise UsageError("a delta holds no model; write --onnx and --program when it is applied")
    with starting():
        from sparsegroup.cli.export_run import delta_run, export_run

    use_threads(threads)
    if since is None:
        export_run(
            model,
            out,
            dtype or "float32",
            onnx,
            test,
            program=program,
            sweep=sweep,
            overwrite=overwrite,
            threads=threads,
        )
    else:
        delta_run(model, out, since, dtype, test, sweep=sweep, overwrite=overwrite, threads=threads)


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
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Apply deltas to an export, and write the result as a new export."""
    if len(folders) < 3:
        raise UsageError("apply wants an export, one or more deltas, and the folder to write: BASE DELTA... OUT")
    with starting():
        from sparsegroup.cli.export_run import apply_run

    use_threads(threads)
    base, *deltas, out = folders
    apply_run(base, deltas, out, onnx, test, program=program, overwrite=overwrite, threads=threads)
