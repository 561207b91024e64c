"""A dense step of GroupAdam, unregularized and regularized, against torch.optim.Adam(fused=True) on the same shapes.

*dense* is one weight of 4M × 16, *small tensors* are 200 weights of 64 × 8, float32. Timed is `step()` alone, with
gradients that are there already; the contenders take turns, and the figures are medians and their ratios to Adam's.
The least that a dense step can take is the time to copy the words that it moves: 7 for each element (x, g and two
moments read; x and the moments written), 9 with u.

    python benchmarks/optimizer_step.py
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

import timing
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


def measure(name: str, shape: tuple[int, int], count: int, calls: int) -> tuple[dict[str, float], dict[str, float]]:
    """Median ms of the optimizers, and their ratios to Adam's."""
    optimizers = {key: make(weights(shape, count)) for key, make in OPTIMIZERS.items()}
    contenders = {key: lambda _, step=optimizer.step: step() for key, optimizer in optimizers.items()}
    with timing.undisturbed():
        times = timing.alternate(contenders, ROUNDS, dict.fromkeys(contenders, calls))
    ms = {key: 1e3 * float(np.median(taken)) for key, taken in times.items()}
    ratios = {key: ms[key] / ms["adam"] for key in ms}
    print(f"{name}: {count} of {shape[0]:,} × {shape[1]}, medians of {ROUNDS * calls} steps")
    for key in ms:
        print(f"{key:<15}{ms[key]:>9.3f} ms{ratios[key]:>8.2f}", flush=True)
    return ms, ratios


def main() -> None:
    arguments = timing.parser(__doc__, quick="a hundredth of the rows").parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    print(timing.machine())
    rows = 40_000 if arguments.quick else 4_000_000
    bandwidth = timing.copy_bandwidth(4 * rows * 16)
    figures = {"copy_gb_per_second": bandwidth / 1e9}
    for name, shape, count, calls in (("dense", (rows, 16), 1, 5), ("small_tensors", (64, 8), 200, 20)):
        ms, ratios = measure(name, shape, count, calls)
        figures |= {f"{name}_ms_{key}": ms[key] for key in ms}
        figures |= {f"{name}_ratio_{key}": ratios[key] for key in ratios if key != "adam"}
        if name == "dense":
            least = {key: 1e3 * 4 * rows * 16 * words / bandwidth for key, words in WORDS.items()}
            figures |= {f"dense_floor_ms_{key}": least[key] for key in least}
            print(f"to copy the bytes, at {bandwidth / 1e9:.1f} GB/s: ", end="")
            print(", ".join(f"{key} {least[key]:.3f} ms ({ms[key] / least[key]:.2f} times)" for key in least))
    timing.write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
