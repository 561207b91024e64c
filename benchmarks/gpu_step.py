"""Steps on a GPU: of dense tensors, of sparse gradients, of a table, and a whole training step, in one run.

*dense* is one weight of 64M × 16, *small tensors* the 40 of a deep DCN; *sparse* an `nn.Embedding(sparse=True)` and
*table* a `HashEmbedding`, with 64k and 1M distinct rows in a step (*zipf*: 256k keys, 64k of them distinct); *end to
end* a DCN over 26 fields and 13 numbers, d = 16. They are set against torch.optim.Adam(fused=True),
torch.optim.SparseAdam, and the bytes that a step cannot but move, at the speed at which the device copies 4 GiB.

Times are medians between two events on the device, after a warm-up. Before each repetition 4 GiB are read: so that the
second-level cache holds nothing that is wanted, and the host is done with its part of a step before the device begins.
(SparseAdam waits for the device, so that the host's part is in its times.) Bytes that must move: for each element of a
dense float32 weight 28 (x, g and two moments read; x and the moments written), 36 with u; for each row of d elements
36 d and its number, 8, in a table also its key's place, 4; for each key that is looked up 8 d + 8.

    python benchmarks/gpu_step.py               # on a GPU; the weight of 64M × 16 takes 24 GiB of its memory
    python benchmarks/gpu_step.py --rehearse    # without one: shows that the benchmark runs, not how fast
"""

import gc
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

import timing
from sparsegroup import GroupAdam, HashEmbedding, param_groups
from sparsegroup.kernels.cpu.threads import set_num_threads
from sparsegroup.kernels.gpu import runtime
from sparsegroup.kernels.step import ParameterMemory
from sparsegroup.models import DCN
from sparsegroup.optim.step import GroupStep

LR, L21, ZIPF = 1e-3, 1e-4, 1.05
DENSE_DIM, DCN_DIM, FIELDS, NUMBERS = 16, 16, 26, 13
DENSE_ASKED, ROWS_ASKED, ASKED_FROM = 0.85, 0.6, 32  # shares of the bandwidth; of rows, from this d on
Run = Callable[[], object]
Figures = dict[str, float | str]


@dataclass(frozen=True)
class Contender:
    """Who steps a dense weight of `dtype`, moving so many `bytes` per element."""

    dtype: torch.dtype
    bytes: int
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    rival: str = "adam"


adam = partial(torch.optim.Adam, lr=LR, fused=True)
regularized = partial(GroupAdam, lr=LR, l21=L21)
bf16_state = partial(regularized, state_dtype=torch.bfloat16)
CONTENDERS = {
    "adam": Contender(torch.float32, 28, adam),
    "unregularized": Contender(torch.float32, 28, partial(GroupAdam, lr=LR)),
    "regularized": Contender(torch.float32, 36, regularized),
    "bf16_adam": Contender(torch.bfloat16, 14, adam, "bf16_adam"),
    "bf16_regularized": Contender(torch.bfloat16, 30, regularized, "bf16_adam"),
    "bf16_state_regularized": Contender(torch.bfloat16, 18, bf16_state, "bf16_adam"),
}


@dataclass(frozen=True)
class Sizes:
    """Of everything.

    Attributes:
        copied: Bytes, see `timing.DeviceClock`.
        dense: Rows of the dense weight.
        layer: Neurons of each deep layer of the network of 40 tensors.
        elements: Of the weights of an embedding, unless `rows` are more.
        rows: Of a table; of an embedding, at least.
        touched: Rows of a step.
        zipf: Keys of the batch in which keys repeat, and how many are distinct.
        values: Of each field, end to end.
        steps: Of a repetition, end to end.
        repeats: Of which medians are taken.
    """

    copied: int = 4 << 30
    dense: int = 64 << 20
    layer: int = 64
    elements: int = 128 << 20
    rows: int = 4 << 20
    dims: tuple[int, ...] = (8, 16, 64, 128)
    touched: tuple[int, ...] = (64 << 10, 1 << 20)
    zipf: tuple[int, int] = (256 << 10, 64 << 10)
    values: int = 200_000
    batches: tuple[int, ...] = (4096, 16384)
    steps: int = 50
    repeats: int = 30


QUICK = replace(Sizes(), dense=4 << 20, dims=(16, 64), touched=(64 << 10,), batches=(4096,), repeats=10)
REHEARSAL = Sizes(
    1 << 16, 96, 4, 1 << 12, 128, (8, 128), touched=(8, 40), zipf=(80, 8), values=20, batches=(4,), steps=2, repeats=1
)


class Bench(timing.DeviceClock):
    """Where, how and how much is measured."""

    def __init__(self, device: torch.device, sizes: Sizes) -> None:
        super().__init__(device, sizes.copied, sizes.repeats)
        self.sizes = sizes

    def normal(self, *shape: int, std: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device).normal_(std=std)


def verdict(share: float, asked: float | None) -> str:
    return f"{share:.0%}" + ("" if asked is None else " reached" if share >= asked else " not reached")


def timed(ms: float, share: float, asked: float | None = None) -> tuple[str, str]:
    return f"{ms:.3f}", verdict(share, asked)


def asked_of(dim: int) -> float | None:
    return ROWS_ASKED if dim >= ASKED_FROM else None


def short(count: int) -> str:
    return f"{count >> 20}m" if count >= 1 << 20 else f"{count >> 10}k" if count >= 1 << 10 else str(count)


def dense_ms(bench: Bench, contender: Contender, rows: int) -> float:
    gc.collect()
    weight = nn.Parameter(bench.normal(rows, DENSE_DIM, std=0.1, dtype=contender.dtype))
    weight.grad = bench.normal(rows, DENSE_DIM, std=0.01, dtype=contender.dtype)
    return bench.ms(contender.make([weight]).step)


def dense(bench: Bench) -> Figures:
    """One large weight."""
    rows = bench.fitting(bench.sizes.dense, 5 * 4 * DENSE_DIM)  # x, g, u and the moments
    ms = {name: dense_ms(bench, contender, rows) for name, contender in CONTENDERS.items()}
    figures: Figures = {"dense_rows": rows}
    lines = []
    for name, contender in CONTENDERS.items():
        moved = contender.bytes * rows * DENSE_DIM
        share, speed, ratio = bench.share(moved, ms[name]), moved / ms[name] / 1e6, ms[name] / ms[contender.rival]
        figures |= {f"dense_ms_{name}": ms[name], f"dense_gb_per_second_{name}": speed}
        figures |= {f"dense_share_{name}": share, f"dense_ratio_{name}": ratio}
        state = verdict(share, None if name == contender.rival else DENSE_ASKED)
        lines.append((name, f"{ms[name]:.3f}", f"{speed:,.0f}", state, f"{ratio:.2f}"))
    columns = ("", "ms", "GB/s", f"share of the bandwidth, {DENSE_ASKED:.0%} asked", "ratio to Adam")
    timing.show(f"dense: {rows:,} × {DENSE_DIM}", columns, lines)
    return figures


def small_tensors(bench: Bench) -> Figures:
    """The tensors of one network."""
    network = DCN(FIELDS, DCN_DIM, NUMBERS, hidden=(bench.sizes.layer,) * 18).to(bench.device)
    weights = list(network.parameters())
    for weight in weights:
        weight.grad = bench.normal(*weight.shape, std=0.01)
    figures: Figures = {}
    times: dict[str, tuple[float, float]] = {}
    lines = []
    for name in ("adam", "unregularized", "regularized"):
        step = CONTENDERS[name].make(weights).step
        times[name] = bench.ms(step), bench.host_ms(step)
        ratios = [ms / adams for ms, adams in zip(times[name], times["adam"], strict=True)]
        for kind, ms, ratio in zip(("", "host_"), times[name], ratios, strict=True):
            figures |= {f"small_tensors_{kind}ms_{name}": ms, f"small_tensors_{kind}ratio_{name}": ratio}
        lines.append((name, *(f"{ms:.3f}" for ms in times[name]), *(f"{ratio:.2f}" for ratio in ratios)))
    columns = ("", "ms, device", "ms, host", "ratio to Adam, device", "ratio to Adam, host")
    timing.show(f"small tensors: {len(weights)} of a DCN", columns, lines)
    return figures


def sparse_kernel(optimizer: GroupAdam, weight: nn.Parameter) -> Run:
    """The kernel of a step with a sparse gradient, its rows sorted beforehand."""
    from sparsegroup.kernels.gpu import launch  # needs Triton

    gradient, state, rule = weight.grad, optimizer.state[weight], optimizer.rule
    step = GroupStep(rule, optimizer.param_groups[0])
    slot = ParameterMemory(weight.detach(), state, tuple(rule.state), "rows", wants_kernels=True, capturable=False)
    runs = launch.runs_of(gradient._values(), gradient._indices()[0])
    counters = torch.zeros(3, dtype=torch.int64, device=weight.device)
    numbers = step.scalars(float(state["step"]))
    return lambda: launch.step_rows(rule, slot, runs, counters, step.constants, numbers)


def sparse_ms(bench: Bench, rows: int, dim: int, touched: int) -> dict[str, float]:
    """Of a gradient as autograd gives it."""
    embedding = nn.Embedding(rows, dim, sparse=True, device=bench.device)
    ids = torch.randperm(rows, device=bench.device)[:touched]
    embedding(ids).backward(bench.normal(touched, dim, std=0.01))
    optimizer = regularized(embedding.parameters())
    ms = {"step": bench.ms(optimizer.step), "kernel": bench.ms(sparse_kernel(optimizer, embedding.weight))}
    del optimizer
    return ms | {"sparse_adam": bench.ms(torch.optim.SparseAdam(embedding.parameters(), lr=LR).step)}


def sparse(bench: Bench) -> Figures:
    """Sparse gradients of distinct rows."""
    figures: Figures = {}
    lines = []
    for dim in bench.sizes.dims:
        rows = bench.fitting(max(bench.sizes.rows, bench.sizes.elements // dim), 5 * 4 * dim)
        figures[f"sparse_rows_d{dim}"] = rows
        for touched in (min(count, rows) for count in bench.sizes.touched):
            ms = sparse_ms(bench, rows, dim, touched)
            shares = {name: bench.share((36 * dim + 8) * touched, ms[name]) for name in ("kernel", "step")}
            ratio = ms["step"] / ms["sparse_adam"]
            case = f"{short(touched)}_d{dim}"
            figures |= {f"sparse_ms_{name}_{case}": taken for name, taken in ms.items()}
            figures |= {f"sparse_share_{name}_{case}": share for name, share in shares.items()}
            figures[f"sparse_ratio_{case}"] = ratio
            kernel, step = (timed(ms[name], shares[name], asked_of(dim)) for name in ("kernel", "step"))
            rival = f"{ms['sparse_adam']:.3f}", f"{ratio:.2f}"
            lines.append((f"{dim}", f"{touched:,} of {rows:,}", *kernel, *step, *rival))
    share = f"share, {ROWS_ASKED:.0%} asked"
    columns = ("d", "rows", "ms, kernel", share, "ms, step()", share, "ms, SparseAdam", "step() to SparseAdam")
    timing.show("sparse: the kernel finds the rows sorted, step() sorts them before", columns, lines)
    return figures


def keys_of(ids: Tensor) -> Tensor:
    """64-bit keys, distinct for distinct ids (an odd factor mod 2^64)."""
    return ids * 0x5851F42D4C957F2D


def fill(embedding: HashEmbedding, optimizer: GroupAdam, rows: int) -> None:
    """Give ids below `rows` their rows. A first step comes before, as it gives them their optimizer's state."""
    embedding(keys_of(torch.arange(1))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for keys in keys_of(torch.arange(rows)).split(1 << 18):
            embedding(keys)
    assert embedding.num_rows == rows, "the table does not hold every key once"


def zipf(rng: np.random.Generator, count: int, *shape: int) -> Tensor:
    """Ranks below `count`, drawn from a Zipf distribution."""
    ranks = ((float(count) ** (1 - ZIPF) - 1) * rng.random(shape) + 1) ** (1 / (1 - ZIPF)) - 1
    return torch.from_numpy(np.minimum(ranks.astype(np.int64), count - 1))


def table_batches(sizes: Sizes, rows: int) -> dict[str, Tensor]:
    """Ids, none twice, and of the Zipf distribution."""
    batches = {short(count): torch.randperm(rows)[:count] for count in sizes.touched}
    drawn, distinct = sizes.zipf
    once = torch.randperm(rows)[:distinct]
    again = once[zipf(np.random.default_rng(1), len(once), drawn - len(once))]
    return batches | {"zipf": torch.cat([once, again])[torch.randperm(drawn)]}


def table_ms(bench: Bench, embedding: HashEmbedding, optimizer: GroupAdam, keys: Tensor) -> dict[str, float]:
    optimizer.zero_grad()
    embedding(keys).backward(bench.normal(len(keys), embedding.dim, std=0.01))
    rows = embedding.weight.grad._indices()[0]
    return {
        "gather": bench.ms(lambda: embedding.table.rows.gather(rows)),
        "step": bench.ms(optimizer.step),
        "lookup_host": bench.host_ms(lambda: embedding(keys)),
    }


def table(bench: Bench) -> Figures:
    """A table that holds all its rows."""
    figures: Figures = {}
    lines = []
    for dim in bench.sizes.dims:
        rows = bench.fitting(bench.sizes.rows, 5 * 4 * dim)
        figures[f"table_rows_d{dim}"] = rows
        embedding = HashEmbedding(dim, device=bench.device)
        optimizer = regularized(embedding.parameters())
        fill(embedding, optimizer, rows)
        for kind, ids in table_batches(bench.sizes, rows).items():
            keys, distinct = len(ids), len(ids.unique())
            ms = table_ms(bench, embedding, optimizer, keys_of(ids))
            moved = {
                "gather": (4 * dim + 8) * keys + 4 * dim * distinct,
                "step": (4 * dim + 12) * keys + 32 * dim * distinct,
            }
            shares = {name: bench.share(moved[name], ms[name]) for name in moved}
            figures |= {f"table_ms_{name}_{kind}_d{dim}": taken for name, taken in ms.items()}
            figures |= {f"table_share_{name}_{kind}_d{dim}": share for name, share in shares.items()}
            gather, step = timed(ms["gather"], shares["gather"]), timed(ms["step"], shares["step"], asked_of(dim))
            case = f"{dim}", f"{keys:,}", f"{distinct:,} of {rows:,}"
            lines.append((*case, *gather, *step, f"{ms['lookup_host']:.3f}"))
        del embedding, optimizer
    share = f"share, {ROWS_ASKED:.0%} asked"
    columns = ("d", "keys", "rows", "ms, gather", "share", "ms, step()", share, "ms, lookup, host")
    timing.show("table", columns, lines)
    return figures


def click_model(bench: Bench, embedding: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict({"embedding": embedding, "network": DCN(FIELDS, DCN_DIM, NUMBERS).to(bench.device)})


def training(
    model: nn.ModuleDict, optimizers: list[torch.optim.Optimizer], keys: Tensor, numbers: Tensor, labels: Tensor
) -> Run:
    """A step with each batch of keys; a table looks for those of the next batch in the meantime."""
    embedding, network = model["embedding"], model["network"]

    def run() -> None:
        for index in range(len(keys)):
            for optimizer in optimizers:
                optimizer.zero_grad()
            logits = network(embedding(keys[index]), numbers)
            if isinstance(embedding, HashEmbedding):
                embedding.prefetch(keys[(index + 1) % len(keys)])
            nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
            for optimizer in optimizers:
                optimizer.step()

    return run


def end_to_end(bench: Bench) -> Figures:
    """Forward, backward and step of a click model, what the host does included."""
    sizes, rng = bench.sizes, np.random.default_rng(2)
    figures: Figures = {}
    lines = []
    for batch in sizes.batches:
        rows = bench.fitting(FIELDS * sizes.values, 9 * 4 * DCN_DIM)
        ids = zipf(rng, rows // FIELDS, sizes.steps, batch, FIELDS) + rows // FIELDS * torch.arange(FIELDS)
        numbers, labels = bench.normal(batch, NUMBERS, std=1), (bench.normal(batch, std=1) > 0).float()
        ours = click_model(bench, HashEmbedding(DCN_DIM, device=bench.device))
        optimizer = GroupAdam(param_groups(ours, l21=L21), lr=LR)
        fill(ours["embedding"], optimizer, rows)
        theirs = click_model(bench, nn.Embedding(rows, DCN_DIM, sparse=True, device=bench.device))
        nn.init.normal_(theirs["embedding"].weight, std=0.01)
        sparse_adam = torch.optim.SparseAdam(theirs["embedding"].parameters(), lr=LR)
        runs = {
            "ours": training(ours, [optimizer], keys_of(ids), numbers, labels),
            "sparse_adam": training(
                theirs, [sparse_adam, adam(theirs["network"].parameters())], ids.to(bench.device), numbers, labels
            ),
        }
        ms = bench.in_turns(runs, bench.synchronize)
        speed = {name: 1e3 * sizes.steps * batch / ms[name] for name in ms}
        ratio = speed["ours"] / speed["sparse_adam"]
        figures |= {f"samples_per_s_{name}_{batch}": samples for name, samples in speed.items()}
        figures |= {f"end_to_end_speedup_{batch}": ratio, f"end_to_end_rows_{batch}": rows}
        lines.append((f"{batch:,}", *(f"{samples:,.0f}" for samples in speed.values()), f"{ratio:.2f}"))
    columns = ("batch", "samples/s, keys and GroupAdam", "ready-made ids, SparseAdam and Adam", "ratio")
    timing.show(f"end to end: a DCN, {FIELDS} fields of {rows // FIELDS:,} values, d = {DCN_DIM}", columns, lines)
    return figures


def main() -> int:
    parser = timing.parser(__doc__, quick="4M × 16, 64k rows, d = 16 and 64, batches of 4096, fewer repetitions")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes in Triton's interpreter, on the CPU")
    arguments = parser.parse_args()
    if arguments.rehearse and arguments.json:
        parser.error("a rehearsal has no figures to write: leave --json out")
    if arguments.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
        np.seterr(all="ignore")
        print("A rehearsal in Triton's interpreter, with the host's clock: all figures are meaningless.")
    elif not (torch.cuda.is_available() and runtime.has_triton()):
        print("This benchmark needs a GPU that torch can use, and Triton; --rehearse runs it without.", file=sys.stderr)
        return 2
    torch.manual_seed(1)
    torch.set_num_threads(arguments.threads)
    set_num_threads(arguments.threads)
    device = torch.device("cpu" if arguments.rehearse else "cuda")
    name = "the CPU" if arguments.rehearse else torch.cuda.get_device_name()
    print(timing.machine())
    with runtime.rehearsal() if arguments.rehearse else nullcontext(), timing.undisturbed():
        bench = Bench(device, REHEARSAL if arguments.rehearse else QUICK if arguments.quick else Sizes())
        print(f"{name} copies {bench.bandwidth / 1e9:,.0f} GB/s, read and written", flush=True)
        figures: Figures = {"device": name, "copy_gb_per_second": bench.bandwidth / 1e9}
        for part in (dense, small_tensors, sparse, table, end_to_end):
            figures |= part(bench)
    timing.write_json(arguments.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
