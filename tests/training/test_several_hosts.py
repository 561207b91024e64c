"""The example that trains on several ranks."""

import re

import torch

import several_ranks
from distributed_cases import Ranks


def test_the_example_trains_one_table_on_two_ranks(ranks: Ranks) -> None:
    told = ranks.call(several_ranks.train, 12, 64, None)
    sent = []
    for rank, line in enumerate(told):
        found = re.fullmatch(
            rf"rank {rank} of 2: .* rows, loss ([\d.]+) to ([\d.]+), .*, (\d+) bytes sent per sample", line
        )
        assert found is not None
        assert float(found[2]) < float(found[1])
        sent.append(int(found[3]))
    rounded = re.findall(r"(\d+) bytes", ranks.call(several_ranks.train, 12, 64, torch.bfloat16)[0])
    assert int(rounded[0]) < 0.6 * sent[0]
