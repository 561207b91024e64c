"""What a network is told of a log before training begins."""

import math

import torch
from torch import nn

from sparsegroup.data.log import Log
from sparsegroup.models import NumberEncoder
from sparsegroup.training.evaluation import EVALUATED

SAMPLE_ROWS = 50_000
"""Of a log, the first ones, which are enough for quantiles to a hundredth."""


def start_network(network: nn.Module, log: Log, *, base_rate: bool) -> None:
    """Fit a network to the first training rows of a log, up to 50,000: numbers' statistics, and the logits' level.

    Args:
        network: Its `NumberEncoder`s are fitted to the numbers, whatever the labels are.
        log: The log.
        base_rate: Whether the bias of its logits, `logit_bias` of a network of `sparsegroup.models`, becomes the
            log-odds of the mean label, so that no step is spent on that (Lin et al. 2017, §4.1). Half a positive and
            half a negative are added.

    Raises:
        ClickLogError: The rows cannot be read.
    """
    encoders = [module for module in network.modules() if isinstance(module, NumberEncoder)]
    biases = [bias for bias in map(_logit_bias, network.modules()) if bias is not None] if base_rate else []
    if not encoders and not biases:
        return
    rows, positives, numbers = 0.0, 0.0, []
    for batch in log.batches(0, min(log.train_rows, SAMPLE_ROWS), EVALUATED):
        weights = torch.ones(len(batch)) if batch.weights is None else batch.weights
        rows += float(weights.double().sum())
        positives += float((weights * batch.labels).double().sum())
        numbers.append(batch.numbers)
    sample = torch.cat(numbers) if numbers else torch.empty(0, len(log.numbers))
    for encoder in encoders:
        encoder.fit(sample)
    for bias in biases:
        nn.init.constant_(bias, math.log((positives + 0.5) / (rows - positives + 0.5)))


def _logit_bias(module: nn.Module) -> nn.Parameter | None:
    bias = getattr(module, "logit_bias", None)
    return bias if isinstance(bias, nn.Parameter) else None
