"""The self-test of an export."""

import numpy as np
import pytest
import torch

from sparsegroup.data.batches import Batch
from sparsegroup.data.schema import LogSchema
from sparsegroup.serving import ExportError
from sparsegroup.serving.exporting import compare, random_batches


def test_a_probability_that_is_no_number_in_one_of_the_models() -> None:
    columns = LogSchema(("a", "b"), (), ())

    def score(batch: Batch) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return np.full(len(batch), 0.5, np.float32)

    def wrong(batch: Batch) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return np.where(np.arange(len(batch)) == 0, np.nan, score(batch)).astype(np.float32)

    for scorers, name in (
        ({"export": score, "onnx": wrong}, "onnx"),
        ({"training": wrong, "export": score}, "training"),
        ({"export": wrong, "onnx": wrong}, "export"),
    ):
        with pytest.raises(ExportError, match=f"^{name} gives a probability that is no number"):
            compare(random_batches(torch.arange(4), columns, 8), scorers, torch.nn.Identity())
