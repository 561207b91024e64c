"""What rates of their own for some fields of a table cost: the step, setting λ21, the sweep, and memory.

The table of `target_rate.py`: 33.8M rows of 39 fields, d = 8, under Group Adam. Timed in turns, with one λ21 for all
fields, with three fields that have their own (one of 10M features, one of 12,517, one of 24), and with 26: a training
step of 512 × 39 keys, from keys to updated rows; setting λ21 by a sample; and, once, looking at all rows and a sweep.
And a step over 6,000 rows, spread evenly over 26 fields.

    python benchmarks/field_targets.py    # 6 GiB of memory
"""

import numpy as np
import torch

import timing
from sparsegroup import TargetRate
from sparsegroup.kernels.cpu.threads import set_num_threads
from table_step import BATCH, CARDINALITIES, DIM, Clicks, key
from target_rate import STEPS, filled

FIELDS: dict[str, tuple[int, ...]] = {"none": (), "three": (2, 6, 5), "all": tuple(range(26))}


def balanced(clicks: Clicks, count: int, rng: np.random.Generator) -> torch.Tensor:
    """Distinct keys, as many as can be of each of the 26 fields, and what is missing of the largest."""
    share, keys = count // 26, []
    for field, c in enumerate(clicks.cardinalities[:26].tolist()):
        if field != 2:
            keys.append(key(field, rng.choice(c, min(c, share), replace=False)))
    missing = count - sum(len(some) for some in keys)
    return torch.cat([*keys, key(2, rng.choice(int(clicks.cardinalities[2]), missing, replace=False))])


def main() -> None:
    arguments = timing.parser(__doc__, quick="a table of 340,000 rows").parse_args()
    set_num_threads(arguments.threads)
    torch.set_num_threads(1)
    print(timing.machine(), flush=True)
    rng = np.random.default_rng(1)
    clicks = Clicks.scaled(0.01 if arguments.quick else 1.0, rng)
    table, optimizer = filled(clicks, 1e-3)
    group, plain_index = optimizer.param_groups[0], table.memory().index
    batches = key(np.arange(len(CARDINALITIES)), clicks.of_ranks(clicks.ranks(20, rng))).view(20, BATCH, -1)
    few = torch.stack([balanced(clicks, 6_000, rng) for _ in batches])
    gradients = {keys: 1e-3 * torch.randn(*keys.shape[1:], DIM) for keys in (batches, few)}

    def steps(keys: torch.Tensor, fields: tuple[int, ...], count: int) -> float:
        group["field_l21"] = {field: 1e-4 * (1 + field) for field in fields}

        def run(number: int) -> None:
            optimizer.zero_grad()
            table(keys[number % len(keys)]).backward(gradients[keys])
            optimizer.step()

        run(0)
        return sum(timing.seconds(run, number) for number in range(count)) / count

    targets = {
        name: TargetRate(optimizer, 0.03, steps=STEPS, ramp=0, fields=dict.fromkeys(fields, 0.1))
        for name, fields in FIELDS.items()
    }

    def control(target: TargetRate) -> None:
        target.count += 1  # another sample
        target.set_l21(target.sample)

    rounds = 3 if arguments.quick else 7
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, fields in FIELDS.items():
            times.setdefault(f"ms_step_{name}", []).append(steps(batches, fields, 20))
            times.setdefault(f"ms_step_of_6000_{name}", []).append(steps(few, fields, 40))
            times.setdefault(f"ms_sample_{name}", []).append(timing.seconds(control, targets[name]))
    for name in ("none", "three", "all"):
        times[f"ms_all_rows_{name}"] = [timing.seconds(targets[name].set_l21, 0)]
        times[f"ms_sweep_{name}"] = [timing.seconds(lambda: optimizer.sweep(drop_untrained=True))]
    figures = {name: 1e3 * float(np.median(found)) for name, found in sorted(times.items())}
    figures["rows"] = float(table.num_rows)
    figures["bytes_per_row"] = (table.memory().index - plain_index) / table.num_rows
    timing.show(
        f"{table.num_rows:,} rows, {arguments.threads} threads, {figures['bytes_per_row']:.2f} more bytes per row",
        ("", *FIELDS),
        [
            (what, *(f"{figures[f'ms_{what}_{name}']:.2f}" for name in FIELDS))
            for what in ("step", "step_of_6000", "sample", "all_rows", "sweep")
        ],
    )
    timing.write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
