"""DeepCTR-Torch's own penalty on whole embeddings, which it adds by default, and Group Adam."""

import warnings

import numpy as np
import pytest
import torch

from sparsegroup import GroupAdam, param_groups

pytest.importorskip("deepctr_torch")

pytestmark = pytest.mark.filterwarnings("ignore")
VALUES, HELD = 400, 40


def trained(**penalties: float) -> tuple[torch.Tensor, list[str]]:
    """Which embeddings are not zero after an epoch, `[VALUES]`, and what was warned of."""
    from deepctr_torch.inputs import SparseFeat
    from deepctr_torch.models import DeepFM

    draw = np.random.default_rng(0)
    columns = [SparseFeat(name, VALUES, embedding_dim=4) for name in "ab"]
    model = DeepFM(columns, columns, dnn_hidden_units=(8,), device="cpu", **penalties)
    model.compile(GroupAdam(param_groups(model, l21=1e-3)), "binary_crossentropy")
    values = {name: draw.integers(0, HELD, 256) for name in "ab"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(values, (values["a"] < HELD / 2).astype(float), batch_size=64, epochs=1, verbose=0)
    live = (model.embedding_dict["a"].weight != 0).any(dim=1)
    return live, [str(one.message) for one in caught if "updates every row" in str(one.message)]


def test_the_default_penalty_is_warned_of_and_zeroes_what_no_batch_held():
    live, (warning,) = trained()
    assert "2e-05 times the weights" in warning
    assert "and so for 3 more parameters" in warning
    assert not live[HELD:].any()


def test_without_it_rows_that_no_batch_held_stay_and_nothing_is_said():
    live, warned = trained(l2_reg_embedding=0, l2_reg_linear=0)
    assert warned == []
    assert live[HELD:].all()
