"""How far float32 is from float64 when the learning rate falls and restarts, for two ways to compute the closed form.

*textbook* is x⁺ = k s / c, u⁺ = z + σ x̂; *library* is `regularized_step` of `sparsegroup.kernels.eager`,
which cancels the large terms by hand. Adam, lasso, all λ > 0, fixed gradients; the figure is max |a - b| / max |b| over
the weights after the last step, b being the library's float64.

    python benchmarks/precision.py
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from sparsegroup import prox
from sparsegroup.groups import Along
from sparsegroup.kernels import eager
from sparsegroup.kernels.step import Regularizer
from sparsegroup.rules import ADAM

Step = Callable[..., tuple[Tensor, Tensor]]
REGULARIZER = Regularizer(l1=0.01, l21=0.05, l2=1e-4)
LR, PERIOD = 0.01, 500
SCHEDULES: dict[str, Callable[[int], float]] = {
    "constant": lambda t: LR,
    "restart_1e3": lambda t: LR * 10 ** (-3 * (t % PERIOD) / (PERIOD - 1)),
    "restart_1e5": lambda t: LR * 10 ** (-5 * (t % PERIOD) / (PERIOD - 1)),
    "cosine_5000": lambda t: LR * (1 + math.cos(math.pi * (t % 5000) / 5000)) / 2,
}


def textbook(x: Tensor, u: Tensor, m: Tensor, sigma: Tensor, r: Regularizer, groups: Along, dtype: torch.dtype):
    zero = torch.zeros((), dtype=x.dtype)
    z = u + m - sigma * x
    s = prox.soft_threshold(z, r.l1, zero)
    norm = groups.norm(s)
    tau = groups.sqrt_size * r.l21
    k = torch.where(norm > tau, (norm - tau) / norm, zero)
    x = k * s / (sigma + 2 * r.l2)
    return x, z + sigma * x


def train(step: Step, x: Tensor, gradients: list[Tensor], schedule: Callable[[int], float]) -> Tensor:
    groups = Along(x.shape, 0)
    u, state = torch.zeros_like(x), [torch.zeros_like(x), torch.zeros_like(x)]
    for t, g in enumerate(gradients, start=1):
        scalars = ADAM.host_scalars({"betas": (0.9, 0.999), "eps": 1e-8}, t, schedule(t - 1))
        m, sigma, *state = ADAM.update(g.to(x.dtype), *state, *scalars)
        x, u = step(x, u, m, sigma, REGULARIZER, groups, x.dtype)
    return x.double()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1,001 steps instead of 5,001")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as a flat object")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(16, 4, generator=generator).double() / 2
    pull = torch.randn(16, 1, generator=generator) * 0.3
    gradients = [
        0.1 * (pull * math.sin(t / 100) + torch.randn(16, 4, generator=generator)).double()
        for t in range(1001 if arguments.quick else 5001)
    ]
    figures = {}
    print(f"{'learning rate':<16}{'textbook':>12}{'library':>12}{'ratio':>10}")
    for name, schedule in SCHEDULES.items():
        exact = train(eager.regularized_step, start, gradients, schedule)
        errors = [
            float((train(step, start.float(), gradients, schedule) - exact).abs().max() / exact.abs().max())
            for step in (textbook, eager.regularized_step)
        ]
        print(f"{name:<16}{errors[0]:>12.1e}{errors[1]:>12.1e}{errors[0] / errors[1]:>10.1f}", flush=True)
        figures |= {f"{name}.textbook": errors[0], f"{name}.library": errors[1]}
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
