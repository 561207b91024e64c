"""`sparsegroup-paper run`: its report, its runs on disk, and one line for what cannot be done."""

from math import isfinite

import pytest
import yaml

from experiment_cases import click_log, dataset_of, tiny_log
from sparsegroup.data import prepare
from sparsegroup.training import predict
from sparsegroup_paper.datasets import open_dataset
from sparsegroup_paper.lab import Lab
from sparsegroup_paper.published import published
from sparsegroup_paper.report import read_report

DATASET = ["learning-rate", "--dataset"]
TINY_DATA = [*DATASET, "tiny.yaml", "--data"]


@pytest.fixture
def settings(tmp_path):
    """Settings for a tiny log, beside it."""
    content = {"model": {"name": "mlp", "dim": 2, "hidden": [4]}, "training": {"batch_size": 100}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(content))
    click_log(tmp_path / "tiny.csv")
    return tmp_path / "tiny.yaml"


def test_the_command_makes_a_report_and_makes_no_run_twice(settings, run):
    command = ["run", "learning-rate", "--dataset", settings, "--data", "tiny.csv"]
    command += ["--runs", 1, "--workers", 1, "--out", "out"]
    done = run(*command)
    notices = [line for line in done.stderr.splitlines() if not line.startswith("sparsegroup: compil")]
    assert (done.returncode, notices) == (0, [])
    out = settings.parent / "out"
    files = {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}

    (section,) = read_report(out).sections
    (table,) = section.tables
    assert len(files) == 2 * len(table.rows)
    assert [column.name for column in table.columns] == ["optimizer", "learning rate", "validation AUC", "± sd", "mark"]
    assert len(table.rows) == 2 * len(published()["setup"]["learning_rate_grid"])
    pages = [(out / name).read_text() for name in ("report.html", "report.md")]
    for _, _, auc, deviation, _ in table.rows:
        assert deviation is None
        assert all(f"{auc:.4f}" in page for page in pages)
    assert "sparsegroup-paper run learning-rate --dataset" in pages[1]
    assert "1,800 for training, 200 for testing" in pages[0]

    (out / "report.html").unlink()
    again = run(*command, "--report", "shown")
    assert (again.returncode, again.stderr) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()} == files
    assert not (out / "report.html").exists()
    shown = settings.parent / "shown"
    assert read_report(shown).sections == (section,)
    assert (shown / "report.md").exists()

    (shown / "report.html").unlink()
    assert run("report", shown).returncode == 0
    assert (shown / "report.html").exists()
    nothing = run("report", out / "runs")
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert "no report of `sparsegroup-paper run` is here" in nothing.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["learning-rat", "--dataset", "tiny.yaml"], "no experiment 'learning-rat'; did you mean 'learning-rate'?"),
        (["colour"], "no experiment 'colour'; there are learning-rate, sparsity-vs-auc, "),
        (["learning-rate"], "learning-rate wants a data set: give --dataset, one of avazu, criteo, "),
        (["regret", "--data", "tiny.csv"], "--data and --test are for a --dataset"),
        ([*DATASET, "criteo"], "--dataset criteo wants its log: give --data"),
        ([*DATASET, "tiny.yaml"], "--dataset tiny wants its log: give --data"),
        ([*DATASET, "cifar"], "--dataset is one of avazu, criteo, ipinyou, "),
        ([*DATASET, "no.yaml"], "no.yaml: No such file"),
        ([*TINY_DATA, "no.csv"], "no.csv: no such file"),
        ([*DATASET, "synthetic", "--test", "tiny.csv"], "--test is for raw logs"),
        ([*TINY_DATA, "prepared", "--test", "tiny.csv"], "--test is for raw logs; prepared is a folder, prepared"),
        ([*DATASET, "untested.yaml", "--data", "tiny.csv"], "tiny.csv: it has no test rows, and experiments need them"),
        ([*DATASET, "weighted.yaml", "--data", "tiny.csv"], "tiny.csv: its rows have weights, which the"),
        ([*TINY_DATA, "prepared"], "out: holds results on another log, or on another part of it (fields ["),
        ([*TINY_DATA, "empty"], "empty: holds no files"),
    ],
)
def test_what_cannot_be_done_is_one_line(settings, run, arguments, message):
    folder = settings.parent
    (folder / "empty").mkdir()
    (folder / "untested.yaml").write_text("data: {test_fraction: 0}\n")
    (folder / "weighted.yaml").write_text("data: {schema: schema.yaml}\n")
    (folder / "schema.yaml").write_text("label: label\nweight: size\ncategorical: [color]\n")
    prepare([click_log(folder / "other.csv", 500)], folder / "prepared")
    if "prepared" in arguments and "--test" not in arguments:
        Lab(dataset_of(tiny_log(200)), folder / "out", workers=1)
    done = run("run", *arguments, "--runs", 1, "--workers", 1, "--out", "out")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list((folder / "out").glob("runs/*"))


def test_the_columns_of_an_own_log_are_inferred_and_may_lack_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = ["label,color,price"]
    lines += [f"{int(i % 7 in (1, 3))},c{i % 7},{f'{i * 7919 % 613 / 8}' if i % 9 else ''}" for i in range(600)]
    (tmp_path / "shop.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump({"model": {"name": "lr"}, "data": {"log": "shop.csv"}}))
    dataset = open_dataset("shop.yaml", None, None, "small", tmp_path)
    log = dataset.open()
    assert (log.fields, log.numbers) == (("color",), ("price",))
    model, _ = dataset.config.build(log)
    assert isfinite(predict(model, log.batches(0, len(log), 100)).metrics().log_loss)
    public = open_dataset("nycflights", tmp_path / "shop.csv", None, "small", tmp_path / "public")
    assert public.open().fields == ("color", "price")
