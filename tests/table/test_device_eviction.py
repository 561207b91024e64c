"""Rows of a table on a GPU, or in Triton's interpreter, that go by themselves, as those of a table on the CPU do."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from gpu_cases import DEVICE
from sparsegroup import GroupAdam, HashEmbedding, UnusedFor
from sparsegroup.kernels.gpu import runtime


def on_device() -> Any:
    return runtime.rehearsal() if DEVICE.type == "cpu" else nullcontext()


@pytest.mark.parametrize(
    "options",
    [
        {"eviction": UnusedFor(steps=2, every=2)},
        {"eviction": UnusedFor(steps=1, live=True, every=1)},
        {"max_bytes": "64MB"},
    ],
)
def test_the_same_rows_go_as_on_the_host(options: dict[str, Any]) -> None:
    count = 6
    found = []
    for device in ("cpu", DEVICE):
        with on_device() if device == DEVICE else nullcontext(), np.errstate(all="ignore"):
            table = HashEmbedding(8, std=0.1, seed=2, device=device, huge_pages=False, **options)
            optimizer = GroupAdam(table.parameters(), lr=0.1, l21=0.02)
            assert table.table.config.on_device is (device == DEVICE)
            for step in range(8):
                optimizer.zero_grad()
                vectors = table(torch.arange(count) + step * count // 2)
                (vectors.square() * 1e-3).sum().backward()
                optimizer.step()
            keys = torch.arange(10 * count)
            found.append((table.contains(keys), table.lookup(keys).cpu(), table.num_seen, table.num_evicted))
    ours, theirs = found
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-6, atol=1e-7)
    assert torch.equal(ours[0], theirs[0])
    assert ours[2:] == theirs[2:]
    assert (ours[3] > 0) is ("eviction" in options)


def test_a_limit_below_a_devices_page_is_refused() -> None:
    with on_device(), pytest.raises(ValueError, match=r"max_bytes must be at least 3\d,"):
        HashEmbedding(8, device=DEVICE, max_bytes="4MB")
