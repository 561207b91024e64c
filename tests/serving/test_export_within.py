"""The export of a limited size: it fits, keeps the largest rows, and is the candidate that loses least."""

from pathlib import Path
from typing import Any

import pytest
import torch

from over import over
from serving_cases import FIELDS, opened_model
from sparsegroup.data import MemoryLog
from sparsegroup.serving import ExportError, TrainedModel, export_within, open_trained
from sparsegroup.serving.evaluation import TestRows
from sparsegroup.serving.frozen import sorted_rows
from sparsegroup.serving.frozen_model import tables_of
from sparsegroup.training import predict


def rows_of(opened: TrainedModel, count: int = 400) -> TestRows:
    """Rows of present and absent keys, whose labels are drawn from the model's predictions."""
    generator = torch.Generator().manual_seed(0)
    every = torch.cat([sorted_rows(table)[0] for table in tables_of(opened.model).values()])
    columns = []
    for field in range(len(FIELDS)):
        own = every[(every >> 56) == field]
        absent = (field << 56) + torch.randint(0, 1 << 56, (20,), generator=generator)
        known = torch.cat([own, absent])
        columns.append(known[torch.randint(0, len(known), (count,), generator=generator)])
    keys = torch.stack(columns, 1).numpy()
    blank = MemoryLog("rows", FIELDS, keys, torch.zeros(count).numpy(), 0)
    chances = torch.from_numpy(predict(opened.model, blank.batches(0, count, 100)).logits()).sigmoid()
    labels = (torch.rand(count, generator=generator) < chances).to(torch.float32).numpy()
    return TestRows(MemoryLog("rows", FIELDS, keys, labels, 0), 0)


@over("settings", [{}, {"dims": {"user": 2}}, {"fallback": True}])
def test_it_fits_keeps_the_largest_rows_and_is_the_best_candidate(settings: dict[str, Any], tmp_path: Path) -> None:
    opened = opened_model("mlp", rows=3_000, **settings)
    folder = tmp_path / "-".join(["out", *settings])
    whole = export_within(opened, folder / "whole", 10**9, rows_of(opened))
    network = whole.files["network.safetensors"].bytes
    norms = torch.cat([sorted_rows(table)[1].norm(dim=1) for table in tables_of(opened.model).values()])
    assert whole.live_rows == len(norms)
    for limit in (network + 12_000, network + 30_000):
        out = folder / str(limit)
        manifest = export_within(opened, out, limit, rows_of(opened))
        best = manifest.candidates[0]
        assert best.loss == min(one.loss for one in manifest.candidates)
        assert (best.dtype, best.rows) == (manifest.dtype, manifest.live_rows)
        written = sum(file.bytes for name, file in manifest.files.items() if name.endswith(".safetensors"))
        assert written == best.bytes <= limit
        for one in manifest.candidates:
            assert one.rows == len(norms) or one.bytes > 0.97 * limit
        kept = torch.cat([sorted_rows(table)[1].norm(dim=1) for table in tables_of(open_trained(out).model).values()])
        expected = norms.sort(descending=True).values[: len(kept)]
        torch.testing.assert_close(kept.sort(descending=True).values, expected, rtol=0.1, atol=0.02)


def test_a_limit_below_the_network_is_refused_with_the_least_size(tmp_path: Path) -> None:
    opened = opened_model("mlp")
    with pytest.raises(ExportError, match=r"`bytes`: 1\.0 kB are too few: the network and the files without a row"):
        export_within(opened, tmp_path / "out", 1_000, rows_of(opened))
    with pytest.raises(ExportError, match="has 1 test rows; a choice by `bytes` needs two"):
        export_within(opened, tmp_path / "out", 10**6, rows_of(opened, 1))
    assert not list(tmp_path.iterdir())
