"""A dense step of GroupAdam, unregularized and regularized, against torch.optim.Adam(fused=True) on the same shapes.

*dense* is one weight of 4M × 16, *small tensors* are 200 weights of 64 × 8, float32. Timed is `step()` alone, with
gradients that are there already; the contenders take turns, and the figures are medians and their ratios to Adam's.
The least that a dense step can take is the time to copy the words that it moves: 7 for each element (x, g and two
moments read; x and the moments written), 9 with u.

    python benchmarks/optimizer_step.py
"""

from argparse import Namespace
from collections.abc import Callable, Iterator

import torch
from torch import nn

import common
from sparsegroup import GroupAdam

ROUNDS = 10
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "adam": lambda params: torch.optim.Adam(params, lr=1e-3, fused=True),
    "unregularized": lambda params: GroupAdam(params, lr=1e-3),
    "regularized": lambda params: GroupAdam(params, lr=1e-3, l21=1e-4),
}
WORDS = {"adam": 7, "unregularized": 7, "regularized": 9}


def weights(shape: tuple[int, int], count: int) -> list[nn.Parameter]:
    result = [nn.Parameter(torch.randn(shape) / 10) for _ in range(count)]
    for weight in result:
        weight.grad = torch.randn(shape) / 100
    return result


def measure(given: Namespace) -> Iterator[common.Figures]:
    torch.set_num_threads(given.threads)
    torch.manual_seed(1)
    rows = 40_000 if given.quick else 4_000_000
    bandwidth = common.copy_bandwidth(4 * rows * 16)
    figures = {"copy_gb_per_second": bandwidth / 1e9}
    for name, shape, count, calls in (("dense", (rows, 16), 1, 5), ("small_tensors", (64, 8), 200, 20)):
        optimizers = {key: make(weights(shape, count)) for key, make in OPTIMIZERS.items()}
        contenders = {key: lambda _, step=optimizer.step: step() for key, optimizer in optimizers.items()}
        with common.undisturbed():
            ms = common.median_ms(common.alternate(contenders, ROUNDS, dict.fromkeys(contenders, calls)))
        figures |= {f"{name}_ms_{key}": ms[key] for key in ms}
        figures |= {f"{name}_ratio_{key}": ms[key] / ms["adam"] for key in ms if key != "adam"}
    figures |= {f"dense_floor_ms_{key}": 1e3 * 4 * rows * 16 * words / bandwidth for key, words in WORDS.items()}
    yield figures


if __name__ == "__main__":
    common.run(measure, __doc__, quick="a hundredth of the rows")
