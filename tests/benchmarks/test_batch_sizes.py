"""What the benchmark of batch sizes counts and shows."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

import batch_sizes
from batch_page import batches_of, page_of, plot_sizes
from sparsegroup.reporting.charts import COLOURS
from sparsegroup_paper.public_shapes import DATASETS, synthesize


def test_both_train_on_the_same_samples_and_the_page_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_sizes, "NETWORKS", {"small": (4,), "wide": (8, 4)})
    log = synthesize(DATASETS["avazu"], 3000, tmp_path / "log")
    figures = batch_sizes.measure(log, 2048, 400, (64, 128), 1)
    assert figures["small.flop_per_sample"] == 6 * ((len(log.fields) * 8) * (2 + 4 + 1) + 4)  # cross, deep, output
    for network in ("small", "wide"):
        assert batches_of(figures, network) == [64, 128]
        for batch in (64, 128):
            assert 0 < figures[f"{network}.{batch}.ours.feature_rate"] <= 0.11
            assert all(0 < figures[f"{network}.{batch}.{who}.auc"] < 1 for who in ("ours", "theirs"))
    page = page_of({**figures, "machine": "this one", "others_cores": 0.0})
    assert page.count("| 64 |") == 2
    plot_sizes(figures, tmp_path / "sizes.png")
    colours = imread(tmp_path / "sizes.png")[:, :, :3]
    assert np.isclose(colours, to_rgb(COLOURS["orange"]), atol=0.01).all(2).any()  # our lines


def test_the_page_is_made_of_the_figures() -> None:
    report = batch_sizes.ROOT / "docs" / "results" / "batch-sizes"
    assert (report / "index.md").read_text() == page_of(json.loads((report / "results.json").read_text()))
