"""Fallback vectors of a table on a GPU, or in Triton's interpreter: they stand in where they do on the CPU."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from gpu_cases import DEVICE
from sparsegroup import GroupAdagrad, HashEmbedding
from sparsegroup.kernels.gpu import runtime
from sparsegroup.kernels.gpu.backend import Watch


def test_they_stand_in_and_learn_as_on_the_host() -> None:
    found = []
    for device in (torch.device("cpu"), DEVICE):
        rehearsal = runtime.rehearsal() if device is DEVICE and DEVICE.type == "cpu" else nullcontext()
        with rehearsal, np.errstate(all="ignore"):
            table = HashEmbedding(4, std=0.1, seed=2, field_bits=8, device=device, huge_pages=False, fallback=True)
            assert table.fallback is not None
            assert table.fallback.device.type == device.type
            groups = [{"params": [table.weight], "l21": 0.05}, {"params": [table.fallback], "l21": 0.0}]
            optimizer = GroupAdagrad(groups, lr=0.1)
            stood_in = []
            for step in range(6):
                optimizer.zero_grad()
                keys = torch.arange(12) + 4 * step
                vectors = table(keys)
                stood_in.append((vectors == table.fallback[0]).all(dim=1).cpu())
                scale = torch.where(keys % 3 == 0, 1.0, 0.01).to(vectors.device)
                ((vectors - 0.3).square() * scale[:, None]).sum().backward()
                optimizer.step()
            table.eval()
            found.append((torch.stack(stood_in), table(torch.arange(40)).detach().cpu(), table.fallback.detach().cpu()))
    ours, theirs = found
    assert torch.equal(ours[0], theirs[0])
    assert ours[0][1:].any()
    assert not ours[0].all()
    for one, other in zip(ours[1:], theirs[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_lookup_without_new_keys_does_not_wait_for_the_counts_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = runtime.rehearsal() if DEVICE.type == "cpu" else nullcontext()
    with rehearsal, np.errstate(all="ignore"):
        table = HashEmbedding(4, device=DEVICE, huge_pages=False, fallback=True)
        vectors = table(torch.arange(12))
        monkeypatch.setattr(Watch, "now", None)
        assert torch.equal(table(torch.arange(12)), vectors)
