"""What a user may type wrongly: each is named in one line, with status 2, and nothing is written."""

import shlex
from pathlib import Path

from cli_cases import click_log
from command import Run

FILES = {
    "list.yaml": "- 1\n",
    "one.csv": "label,color\n1,red\n",
    "other.csv": "label,a,b\n" + "0,1,2\n1,2,3\n" * 25,
    "unlabelled.csv": "id,ts,color,size\n1,1,c1,2\n",
    "s.yaml": "label: label\ncategorical: [color, size]\n",
    "shade.csv": "label,shade,size\n1,x,2\n",
    "shade.yaml": "label: label\ncategorical: [shade, size]\n",
    "full/mine.txt": "not a run",
}
WRONG = [
    # train: the log
    ("train no.csv", "error: no.csv: no such file\n"),
    ("train log.csv --label bought", "error: log.csv:1: no label column 'bought'; name it with --label, such as"),
    ("train log.csv --schema s.yaml --label label", "--label and --schema cannot both be given"),
    ("train one.csv", "error: one.csv: has 1 row, 1 for training; a run needs at least 2 rows to train on\n"),
    ("train log.csv --max-bad few", "data.max_bad: must be a share like 5% or .05, got 'few'"),
    ("train log.csv --continue no", "no: no run (there is no such folder)"),
    ("train --continue {run}", "error: --continue needs the log to train on next\n"),
    ("train log.csv --continue {run} --out next --model mlp",
     "model.name cannot change to mlp: the run to continue has dcn"),
    ("train log.csv --continue {run} --out next --exclude size",
     "log.csv: its fields are color; the run was trained with color, size"),
    ("train log.csv --continue {run} --out next --set 'model.dims={{color: 4}}'",
     "model.dims cannot change to {'color': 4}"),
    ("train log.csv --continue {run} --out next --epochs 2 --after-first-epoch reset",
     "give --epochs=1, or --after-first-epoch=train or freeze\n"),
    ("train log.csv --continue {run} --out {run} --overwrite", "is the run to continue; give another --out"),
    ("train log.csv --overwrite", "--overwrite needs --out"),
    ("train log.csv --out full", "error: full is not empty; give another --out, or --overwrite\n"),
    ("train log.csv --out full --overwrite", "full holds no run to overwrite"),
    ("train --resume {run} --l21 0 --checkpoint-minutes 0",
     "--resume takes everything from the run, and no l21, checkpoint-minutes"),
    ("train log.csv -q -v", "--quiet and --verbose cannot both be given"),
    ("train --colour", "No such option: --colour"),
    # train: settings
    ("train log.csv --l21 -1", "error: the command line: optimizer: l21 must be >= 0, got -1"),
    ("train log.csv --optimizer ftrl", "the optimizer ftrl has no default learning rate: give lr"),
    ("train log.csv --network-lr -1", "optimizer: network_lr: lr must be finite and >= 0, got -1"),
    ("train log.csv --norm l2", "'l2' is not one of 's'"),
    ("train log.csv --set optimiser.lr=1", "no setting 'optimiser.lr'; did you mean 'optimizer.lr'?"),
    ("train log.csv --set lr", "--set wants key=value, as in optimizer.l21=1e-3, got 'lr'"),
    ("train log.csv --set model.name=ffm", "model.name: input should be 'lr', 'fm', "),
    ("train no.yaml", "no.yaml: No such file"),
    ("train list.yaml", "list.yaml: keys and values are expected, got list"),
    ("train log.csv --patience 1", "training.patience needs rows that are held out: give training.validation, such as"),
    ("train log.csv --target-bytes many", "a size must be a number of bytes"),
    ("train log.csv --admit-after 2 --admit-sketch 10", "sketch_bytes must be >= 4,096"),
    ("train log.csv --evict-unseen -1", "wants a number of steps, such as 5000, or a time, such as 90s"),
    ("train --rows 1000 --evict-unseen 7d",
     "model.evict_unseen: 7d goes by the log's own clock, but synthetic has no column of times"),
    ("train log.csv --set 'model.dims={{colour: 2}}'",
     "there is no field 'colour'; did you mean 'color'? the fields are color, size"),
    ("train log.csv --model lr --set 'model.dims={{color: 1}}'", "dims: lr has one weight per feature"),
    ("train log.csv --max-table-bytes 1MB --set 'model.dims={{color: 2}}'", "max_table_bytes is the limit of one"),
    ("train log.csv --pairs color*x", "model.pairs: 'color*x' is not of two fields of one value; those are color"),
    # path
    *((f"path log.csv --rates '{rates}'", "--rates wants feature rates between 0 and") for rates in (".1,1", "a")),
    ("path log.csv --set data.test_fraction=0", "has no test rows"),
    # prepare
    ("prepare . out", "out: lies in ., all of whose files are the log; give another folder"),
    ("prepare log.csv log.csv", "log.csv: File exists"),
    ("prepare log.csv full", "full: holds mine.txt, of no unfinished prepared log; give an empty folder"),
    ("prepare log.csv out --exclude C1 --dataset criteo",
     "--exclude is for logs whose columns come from a header; the format 'criteo' is fixed"),
    ("prepare log.csv out --schema missing.yaml", "no schema missing.yaml; say with --schema what the"),
    # what a model is used for
    ("predict {run} other.csv", "other.csv:1: no column 'color'; the columns are label, a, b"),
    ("predict none log.csv", "error: none"),
    ("predict {run} log.csv --out scores.txt", "--out must end with .csv, .csv.gz, .parquet, got 'scores.txt'"),
    ("predict {run} log.csv --json", "--json wants --out"),
    ("predict {run} shade.csv --schema shade.yaml", "shade.csv: its fields are shade, size"),
    ("predict {run} log.csv --avazu-hour raw", "--avazu-hour is for Avazu's log; the columns of the run's log"),
    ("evaluate {run} log.csv --by colour", "has no field 'colour'; did you mean 'color'? its fields are color, size"),
    ("export {run} full", "full: is not empty; give another folder, or --overwrite"),
    ("export {run} full --overwrite", "full: holds no export that could be overwritten"),
    ("export nothing new", "nothing: no run"),
    ("export {run} new --no-onnx --test unlabelled.csv", "unlabelled.csv: has no labels, which a test set needs\n"),
    ("export {run} new --since {run}", "no export (manifest.json is missing)"),
    ("export {run} new --since {served} --onnx", "a delta holds no model"),
    ("apply {served} new", "BASE DELTA... OUT"),
    ("apply {served} {served} new", "a whole export, no delta"),
]  # fmt: skip


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_wrong_arguments_are_named_and_nothing_is_written(trained: Path, tmp_path: Path, run: Run) -> None:
    click_log(tmp_path / "log.csv", rows=60)
    (tmp_path / "full").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    before, failures = [files(tmp_path), files(trained)], []
    for command, message in WRONG:
        done = run(*shlex.split(command.format(run=trained / "run", served=trained / "served")))
        said = " ".join(done.stderr.replace("│", " ").split()) + "\n"
        one_error = (done.returncode, done.stdout, "Traceback" in said) == (2, "", False) and said.count("error: ") <= 1
        if not (one_error and message in said and [files(tmp_path), files(trained)] == before):
            failures.append(f"{command}: {message}: {done}")
    assert not failures, "\n".join(failures)
