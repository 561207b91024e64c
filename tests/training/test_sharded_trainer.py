"""A `Trainer` on several ranks does what one does with the same batches."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import several_ranks
from distributed_cases import Ranks
from trainer_cases import CASES, TrainerCase, cut_off_and_resumed, failing, global_batches, refused, trained


def assert_alike(alone: dict[str, Any], answers: list[dict[str, Any]]) -> None:
    rows = {key: row for answer in answers for key, row in answer["rows"].items()}
    assert sum(len(answer["rows"]) for answer in answers) == len(rows)
    assert rows.keys() == alone["rows"].keys()
    for key, row in rows.items():
        torch.testing.assert_close(row, alone["rows"][key], rtol=2e-5, atol=2e-6)
    for rank, answer in enumerate(answers):
        assert answer["reported"] == ([] if rank else [point["samples"] for point in answer["history"]])
        assert torch.equal(answer["network"], answers[0]["network"])
        torch.testing.assert_close(answer["network"], alone["network"], rtol=2e-5, atol=2e-6)
        assert answer["samples"] == alone["samples"]
        assert answer["auc"] == pytest.approx(alone["auc"], abs=1e-4)  # a pair of equal scores
        assert len(answer["history"]) == len(alone["history"])
        for ours, theirs in zip(answer["history"], alone["history"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-4)


Trained = Callable[[str, int], list[dict[str, Any]]]
ALL = CASES | {"normalized": TrainerCase(normalized=True)}
"""And one whose statistics are of each rank's rows, so that ranks do not train as one process."""


@pytest.fixture(scope="module")
def trained_once(ranks: Ranks, four_ranks: Ranks) -> Trained:
    """What each rank has after the training of a case on so many ranks, which is trained once."""
    worlds = {2: ranks, 4: four_ranks}
    return cache(lambda name, count: worlds[count].call(trained, ALL[name]) if count > 1 else [trained(ALL[name])])


@pytest.mark.parametrize("name", CASES)
def test_ranks_train_as_one_process(trained_once: Trained, name: str) -> None:
    (alone,) = trained_once(name, 1)
    for count in (2, 4) if name in ("uneven", "some have none", "numbers") else (2,):
        answers = trained_once(name, count)
        assert_alike(alone, answers)
        assert sum(answer["own"] for answer in answers) == alone["samples"]


def test_ranks_standardize_by_the_moments_of_all_rows(trained_once: Trained) -> None:
    alone = trained_once("numbers", 1)[0]["encoder"]
    rows = torch.cat([batch.numbers for batch in global_batches(CASES["numbers"])])[:, 1].double().numpy()
    rows = rows[~np.isnan(rows)]
    for count in (2, 4):
        one, *others = (answer["encoder"] for answer in trained_once("numbers", count))
        for name, value in one.items():
            assert all(torch.equal(value, other[name]) for other in others), name
            torch.testing.assert_close(value, alone[name], rtol=1e-5 if name == "embedding" else 1e-11, atol=1e-6)
        assert one["count"][1] == len(rows)
        assert one["mean"][1].item() == pytest.approx(rows.mean(), rel=1e-14)
        assert one["m2"][1].item() == pytest.approx(
            rows.var() * len(rows), rel=1e-9
        )  # of numbers near 1e4: 1e-16 x 1e8


def test_ranks_that_run_out_of_batches_continue_with_the_others(ranks: Ranks) -> None:
    one, two = ranks.call(trained, TrainerCase(), (5, 99))
    assert torch.equal(one["network"], two["network"])
    assert (one["own"], two["own"]) == (50, 11 * 30 + 15)
    assert one["samples"] == one["own"] + two["own"]
    assert one["history"] == two["history"]


def assert_same_bits(answers: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    for one, other in zip(answers, others, strict=True):
        assert torch.equal(one["network"], answers[0]["network"])
        assert torch.equal(one["network"], other["network"])
        assert all(torch.equal(row, other["rows"][key]) for key, row in one["rows"].items())
        assert (one["history"], one["auc"]) == (other["history"], other["auc"])


@pytest.mark.parametrize("name", ["uneven", "some have none", "fallback and target", "numbers", "normalized"])
def test_ranks_that_were_stopped_end_with_the_same_bits(ranks: Ranks, trained_once: Trained, name: str) -> None:
    assert_same_bits(trained_once(name, 2), ranks.call(cut_off_and_resumed, ALL[name], 5))


def test_tables_on_other_ranks_than_others_are_refused(ranks: Ranks) -> None:
    assert all("all have process_group" in said for said in ranks.call(refused))


def test_a_part_that_cannot_be_read_or_diverges_ends_all_before_it_is_learnt(ranks: Ranks) -> None:
    (one, *_), (two, *_) = ranks.call(failing, TrainerCase(), False)
    assert two == "ValueError: line 7 is damaged"
    assert one == "ExchangeError: rank 1 of 2: ValueError: line 7 is damaged"
    for error, steps, is_finite in ranks.call(failing, TrainerCase(), True):
        assert error.startswith("FloatingPointError: training has diverged after 120 samples")
        assert (steps, is_finite) == ({3.0}, True)


def test_the_example_trains_one_table_on_two_ranks(ranks: Ranks) -> None:
    sent = []
    for rank, line in enumerate(ranks.call(several_ranks.train, 12, 64, None)):
        found = re.fullmatch(
            rf"rank {rank} of 2: .* rows, loss ([\d.]+) to ([\d.]+), .*, (\d+) bytes sent per sample", line
        )
        assert float(found[2]) < float(found[1])
        sent.append(int(found[3]))
    rounded = re.findall(r"(\d+) bytes", ranks.call(several_ranks.train, 12, 64, torch.bfloat16)[0])
    assert int(rounded[0]) < 0.6 * sent[0]
