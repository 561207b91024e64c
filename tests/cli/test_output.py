"""What goes to stdout and what to stderr: --json, --quiet, --verbose, -h, heartbeats, shell completion."""

import io
import json
import logging
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from cli_cases import click_log, summary_of
from command import Run
from endings import Refused
from over import over
from sparsegroup.cli import output
from sparsegroup.cli.output import logged, progress, training_bar
from sparsegroup.data.batches import Batch
from sparsegroup.models import MLP
from sparsegroup.reporting.progress import Heartbeat
from sparsegroup.table import HashEmbedding
from sparsegroup.training import HistoryPoint, TrainedBatch, Trainer

RUN_GUIDE = Path(__file__).parents[2] / "docs" / "runs.md"
FAST = ("--selection", "never", "--no-baseline")


def result_of(ok: Run, *arguments: object) -> dict[str, Any]:
    """The one object on stdout."""
    done = ok(*arguments, "--json")
    assert done.stdout.count("\n") == 1
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_every_command_prints_one_object_on_request(tmp_path: Path, ok: Run) -> None:
    log = click_log(tmp_path / "log.csv", 600)
    trained = result_of(ok, "train", log, "--lr", 0.05, "--l21", 1e-4, "--selection", "never")
    folder = Path(trained["folder"])
    assert trained["test_auc"] == summary_of(folder)["test"]["auc"]
    assert (trained["samples"], trained["test_rows"], trained["bad_rows"]) == (540, 60, 0)
    assert Path(trained["report"]).is_file()
    assert not any(isinstance(value, dict | list) for value in trained.values())
    guide = RUN_GUIDE.read_text(encoding="utf-8")
    assert [name for name in trained if f"`{name}`" not in guide] == []
    assert result_of(ok, "train", "--resume", folder) == trained
    prepared = result_of(ok, "prepare", log, "prepared")
    assert (prepared["rows"], prepared["fields"]) == (600, 2)
    assert prepared["positive_rate"] == pytest.approx(2 / 7, abs=1e-2)
    exported = result_of(ok, "export", folder, "served", "--no-onnx", "--test", log)
    assert (exported["live_rows"], exported["test_rows"]) == (trained["live_rows"], 60)
    assert exported["training_auc"] == pytest.approx(trained["test_auc"])
    scored = result_of(ok, "predict", folder, log, "--out", "scores.csv")
    assert (scored["rows"], len(Path("scores.csv").read_text().splitlines())) == (600, 601)
    assert result_of(ok, "inspect", folder)["live_rows"] == trained["live_rows"]
    path = result_of(ok, "path", log, "--rates", ".5", "--out", "path", "--model", "lr")
    assert path == {"folder": "path", **json.loads((tmp_path / "path" / "path.json").read_text())}
    assert result_of(ok, "synthesize", "made.csv", "--rows", 200) == {"out": "made.csv", "rows": 200}
    assert result_of(ok, "train", log, "--test-fraction", 0, "--model", "lr", *FAST)["test_auc"] is None


def test_quiet_leaves_warnings_and_errors_and_a_bad_row_stops_or_is_skipped(
    tmp_path: Path, ok: Run, refused: Refused
) -> None:
    header, *rows = click_log(tmp_path / "log.csv", 600).read_text().splitlines()
    flipped = [f"{1 - int(row[0])}{row[1:]}" if i % 5 == 1 else row for i, row in enumerate(rows)]
    lines = [header, *flipped]  # so that no column predicts the label
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    good = ("--lr", 0.05, "--l21", 0, "--batch-size", 32, *FAST, "--quiet")
    ok("train", "log.csv", *good, "--out", "first")  # compiles kernels
    done = ok("train", "log.csv", *good, "--out", "second")
    assert (done.stdout, done.stderr) == ("", "")
    (tmp_path / "log.csv").write_text("\n".join([*lines, "1,2000,20"]) + "\n")
    assert refused("train", "log.csv", "-q") == "error: log.csv:602: 3 columns where 5 are expected: '1,2000,20'\n"
    assert not (tmp_path / "runs").exists()
    warned = ok("train", "log.csv", *good, "--on-bad-row", "skip", "--max-bad", "1%")
    assert warned.stdout == ""
    assert "skipped 1 bad row" in warned.stderr
    assert "line 602: 3 columns where 5 are expected: '1,2000,20'" in warned.stderr


def test_the_result_is_on_stdout_and_the_rest_on_stderr_without_a_bar(
    tmp_path: Path, ok: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = click_log(tmp_path / "log.csv", 600)
    monkeypatch.setattr(output, "HEARTBEAT", 0.0)
    plain, verbose = (ok("train", log, "--model", "lr", *FAST, *options) for options in ([], ["-v"]))
    assert plain.stdout.startswith(" test AUC")
    assert "540 training and 60 test rows" in plain.stderr
    assert "LR, adagrad: 540 of 540 samples (100.0%), " in plain.stderr
    assert not {"\x1b", "\r", "━"} & set(plain.stdout + plain.stderr)
    assert " sparsegroup.training.session: checkpoint at 540 samples" in verbose.stderr
    assert "sparsegroup.training" not in plain.stderr
    logger = logging.getLogger("sparsegroup")  # the library leaves no handler behind
    assert (logger.handlers, logger.level) == ([], logging.NOTSET)


def test_warnings_are_one_line_without_the_place_in_the_code() -> None:
    warning = RuntimeWarning("less than one group: nothing will be left")
    with logged():
        assert warnings.formatwarning(warning, RuntimeWarning, "a.py", 3) == f"{warning}\n"
    assert "a.py:3: RuntimeWarning" in warnings.formatwarning(warning, RuntimeWarning, "a.py", 3)


def test_h_is_help_and_the_program_has_a_version(ok: Run) -> None:
    short = ok("train", "-h").stdout
    assert short == ok("train", "--help").stdout
    for words in ("Usage: ", "--json", "--quiet", "--verbose"):
        assert words in short
    assert "completion" not in short
    assert "Usage: " in ok("--help").stdout
    assert re.fullmatch(r"sparsegroup \d+\.\d+\.\d+\n", ok("--version").stdout)


class Clock:
    """Advances by a number of seconds whenever it is read."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_heartbeat_is_a_line_a_minute_and_counts_the_speed_from_where_it_began() -> None:
    lines: list[str] = []
    beat = Heartbeat("DCN, adam", "samples", lines.append, clock=Clock(10.0))
    for batch in range(1, 13):  # after 10 s, 20 s, …
        beat.update(1_000 * batch, 20_000, "AUC 0.7000")
    beat = Heartbeat("preparing log", "bytes", lines.append, clock=Clock(60.0))
    for done in (5_000_000, 11_000_000):
        beat.update(done, None, "")
    assert lines == [
        "DCN, adam: 6,000 of 20,000 samples (30.0%), 2 min 48 s left, 83 samples/s, AUC 0.7000",
        "DCN, adam: 12,000 of 20,000 samples (60.0%), 1 min 27 s left, 92 samples/s, AUC 0.7000",
        "preparing log: 5.0 MB",
        "preparing log: 11.0 MB, 50.0 kB/s",
    ]


def test_a_line_has_what_the_last_point_says(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "HEARTBEAT", 0.0)
    caplog.set_level(logging.INFO, "sparsegroup.cli")
    point = HistoryPoint(512, 0.75, 0.5, 0.9, 1.0, 0.03, 30, 1000, 4_000_000, 1.0, 512.0, scheduled_rate=0.05)
    trainer = Trainer(HashEmbedding(2), MLP(1, 2), ())
    batch = Batch(torch.zeros(512, 1, dtype=torch.int64), torch.empty(512, 0), torch.zeros(512), torch.zeros(512))
    trained = TrainedBatch(batch, torch.zeros(512), 512, torch.tensor(0.6))
    with training_bar(1_024, "DCN, adam") as bar:
        bar.on_batch(trainer, trained)
        bar.on_point(trainer, point)
        bar.on_batch(trainer, trained)
    assert "1,024 of 1,024 samples (100.0%)" in lines_of(caplog)[-1]
    assert "loss 0.5000, AUC 0.7500, rate 0.0300 (scheduled 0.0500), 4 MB" in lines_of(caplog)[-1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@over("width", [60, 80, 120])
def test_a_bar_keeps_share_and_remaining_time_in_a_narrow_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(output, "messages", Console(file=screen, width=width, force_terminal=True, color_system=None))
    with progress("XDEEPFM, rowwise_adagrad", "samples", stays=True) as update:
        for done in (1_000, 1_500):
            update(done, 2_000, "loss 0.4312, AUC 0.7431, NDCG@10 0.3312, rate 0.1034 (scheduled 0.1000), 1,204 MB")
    shown = re.sub(r"\x1b\[[\d?]*\w", "\r", screen.getvalue()).split("\r")
    (*_, last) = [line for line in shown if "%" in line]
    assert re.search(r"XDEE.* 75% [-\d:]+ .*loss", last)
    assert len(last.rstrip()) <= width


@over(
    ("words", "expected"),
    [
        ("sparsegroup ", {"train", "prepare", "export"}),
        ("sparsegroup train --model ", {"mlp", "opnn", "dcn"}),
        ("sparsegroup train --tar", {"--target-rate", "--target-bytes"}),
    ],
)
def test_the_shell_completes_commands_options_and_names(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: str, expected: set[str]
) -> None:
    position = str(len(words.split(" ")) - 1)
    asked = {"_SPARSEGROUP_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": position}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    done = run()
    assert expected <= set(done.stdout.split()), done.stderr
