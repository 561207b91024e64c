"""What a network's `NumberEncoder` is told of a log before training begins."""

import torch
from torch import nn

from sparsegroup.data.log import Log
from sparsegroup.models import NumberEncoder
from sparsegroup.training.evaluation import EVALUATED

SAMPLE_ROWS = 50_000
"""Of a log, the first ones, which are enough for quantiles to a hundredth."""


def fit_numbers(network: nn.Module, log: Log) -> None:
    """Fit the encoders of a network on the first training rows of a log, up to 50,000; labels are not looked at.

    Raises:
        ClickLogError: The rows cannot be read.
    """
    encoders = [module for module in network.modules() if isinstance(module, NumberEncoder)]
    if encoders:
        parts = [batch.numbers for batch in log.batches(0, min(log.train_rows, SAMPLE_ROWS), EVALUATED)]
        sample = torch.cat(parts) if parts else torch.empty(0, len(log.numbers))
        for encoder in encoders:
            encoder.fit(sample)
