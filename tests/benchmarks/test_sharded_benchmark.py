"""The benchmark of several ranks: the bytes that it counts, its AUCs, and its page."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import sharded
from distributed_cases import Ranks

ROWS = 2048


def test_a_rank_sends_little_more_than_the_least(ranks: Ranks, tmp_path: Path) -> None:
    sharded.write_log(tmp_path, ROWS)
    for wire, size in ((None, 4), (torch.bfloat16, 2)):
        done = ranks.call(sharded.run, tmp_path, True, 0, 3, 256, wire)
        assert all(0 < one.away < one.distinct for one in done)
        least = sum(one.away for one in done) * (8 + 2 * 16 * size)
        assert 1 <= sum(one.sent for one in done) / least < 1.2


def test_rounded_vectors_change_predictions_a_little(ranks: Ranks, tmp_path: Path) -> None:
    keys = torch.arange(400)[:, None] % torch.tensor([7, 31])
    file = tmp_path / "log.pt"
    torch.save([keys, torch.empty(400, 0), (keys[:, 0] < 3).float(), torch.tensor(320)], file)
    exact, rounded = (torch.cat(ranks.call(sharded.predictions, file, wire, 1)) for wire in (None, torch.bfloat16))
    assert len(exact) == 80
    assert 0 < (exact - rounded).abs().max() < 0.02


def test_the_page_is_made_of_the_figures() -> None:
    figures = json.loads((sharded.PAGE / "results.json").read_text())
    assert (sharded.PAGE / "index.md").read_text() == sharded.page_of(figures)
    ratios = [value for name, value in figures.items() if name.startswith("bytes.") and name.endswith(".ratio")]
    assert len(ratios) == 4
    assert np.all(np.array(ratios) < 1.2)


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path) -> None:
    sharded.main(["--quick", "--json", str(tmp_path / "figures.json"), "--report", str(tmp_path)])
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["bytes.2_ranks.float32.ratio"] < 1.2
    assert "## From one process to two" in (tmp_path / "index.md").read_text()
