"""DeepCTR-Torch's own penalty on whole embeddings, which it adds by default, and Group Adam."""

import numpy as np
import pytest
import torch

from sparsegroup import GroupAdam, param_groups

pytest.importorskip("deepctr_torch")

pytestmark = pytest.mark.filterwarnings("ignore")
VALUES, HELD = 400, 40


def trained(**penalties: float) -> torch.Tensor:
    """Which embeddings are not zero after an epoch, `[VALUES]`."""
    from deepctr_torch.inputs import SparseFeat
    from deepctr_torch.models import DeepFM

    draw = np.random.default_rng(0)
    columns = [SparseFeat(name, VALUES, embedding_dim=4) for name in "ab"]
    model = DeepFM(columns, columns, dnn_hidden_units=(8,), device="cpu", **penalties)
    model.compile(GroupAdam(param_groups(model, l21=1e-3)), "binary_crossentropy")
    values = {name: draw.integers(0, HELD, 256) for name in "ab"}
    model.fit(values, (values["a"] < HELD / 2).astype(float), batch_size=64, epochs=1, verbose=0)
    return (model.embedding_dict["a"].weight != 0).any(dim=1)


def test_the_default_penalty_zeroes_what_no_batch_held():
    assert not trained()[HELD:].any()


def test_without_it_rows_that_no_batch_held_stay():
    assert trained(l2_reg_embedding=0, l2_reg_linear=0)[HELD:].all()
