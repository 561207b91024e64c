"""What the model of a step says of more ranks than this machine has cores, and of what could be done for them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ranks.ctr_training import network_bytes
from ranks.key_load import KeyDraws, KeyLoad
from ranks.step_model import Link, StepModel, StepShape
from ranks.step_parts import EXCHANGES, REDUCED

DIM = 16
LINKS = (10, 400)
"""10⁹ bits per second."""

REPLICATED = (256, 1024, 4096)
KINDS = ("uniform", "skewed")


@dataclass(frozen=True)
class Crowd:
    """Which ranks are asked about.

    Attributes:
        ranks: How many, ascending.
        batch: Samples of each in a step.
        whole: Samples of all together in a step, where their number does not change that.
        per_host: So many share a host where exchanges are made by host.
    """

    ranks: tuple[int, ...] = (8, 64, 512)
    batch: int = 2048
    whole: int = 1 << 16
    per_host: int = 8


@dataclass(frozen=True)
class Projection:
    """Steps of many ranks, by the model.

    Attributes:
        model: It.
        draws: Kinds of keys, those of `KINDS`.
        alone: Seconds of a step of a rank's batch on one process without a group.
        crowd: The ranks.
    """

    model: StepModel
    draws: Mapping[str, KeyDraws]
    alone: float
    crowd: Crowd

    def figures(self) -> dict[str, float]:
        """All that the page shows."""
        found: dict[str, float] = {}
        for kind in KINDS:
            found |= self._weak(kind) | self._strong(kind)
        return found | {"strong.samples": float(self.crowd.whole)} | self._remedies()

    def _shape(self, ranks: int, load: KeyLoad, batch: int | None = None, wire: int = 4) -> StepShape:
        return StepShape(ranks, batch or self.crowd.batch, DIM, load, wire, network_bytes(DIM))

    def _weak(self, kind: str) -> dict[str, float]:
        """Each rank has the same batch, however many there are."""
        found: dict[str, float] = {}
        loads = {ranks: self.draws[kind].load(ranks, self.crowd.batch) for ranks in self._powers()}
        for gigabits in LINKS:
            link = Link(gigabits)
            efficient = [1]
            for ranks, load in loads.items():
                parts = self.model.parts(self._shape(ranks, load), link)
                total = sum(parts.values())
                if self.alone / total >= 0.5:
                    efficient.append(ranks)
                if ranks in self.crowd.ranks:
                    label = f"weak.{kind}.{ranks}_ranks.{gigabits}gbit"
                    found |= {f"{label}.busiest": load.asked / load.mean, f"{label}.ms": 1e3 * total}
                    found |= self._parted(label, self._shape(ranks, load), link, parts)
                    found[f"{label}.efficiency"] = self.alone / total
                    found[f"{label}.samples_per_s"] = ranks * self.crowd.batch / total
            found[f"weak.{kind}.{gigabits}gbit.half_efficient_ranks"] = float(max(efficient))
        return found

    def _parted(self, label: str, shape: StepShape, link: Link, parts: Mapping[str, float]) -> dict[str, float]:
        exchanged = sum(parts[part] for part in EXCHANGES.values())
        content = sum(link.per_byte(self.model.byte) * size for size in shape.bytes().values())
        return {
            f"{label}.computed_ms": 1e3 * (sum(parts.values()) - exchanged - parts[REDUCED]),
            f"{label}.content_ms": 1e3 * content,
            f"{label}.messages_ms": 1e3 * (exchanged - content),
            f"{label}.all_reduce_ms": 1e3 * parts[REDUCED],
        }

    def _strong(self, kind: str) -> dict[str, float]:
        """The same samples in a step, divided among ever more ranks."""
        found: dict[str, float] = {}
        loads = {ranks: self.draws[kind].load(ranks, self.crowd.whole // ranks) for ranks in self._powers()}
        for gigabits in LINKS:
            times = {
                ranks: self.model.seconds(self._shape(ranks, load, self.crowd.whole // ranks), Link(gigabits))
                for ranks, load in loads.items()
            }
            label = f"strong.{kind}.{gigabits}gbit"
            fastest = min(times, key=times.__getitem__)
            found |= {f"{label}.fastest_ranks": float(fastest), f"{label}.fastest_ms": 1e3 * times[fastest]}
            found |= {f"{label}.{ranks}_ranks.ms": 1e3 * times[ranks] for ranks in (1, *self.crowd.ranks)}
        return found

    def _remedies(self) -> dict[str, float]:
        """With skewed keys: half the bytes, hot rows on all ranks, and exchanges by host, whose ranks share a link."""
        found: dict[str, float] = {}
        draws, per_host = self.draws["skewed"], self.crowd.per_host
        for ranks in self.crowd.ranks:
            flat = draws.load(ranks, self.crowd.batch)
            hot = {count: self._with_hot_rows(ranks, count) for count in REPLICATED}
            by_host = draws.load(ranks // per_host, self.crowd.batch * per_host) if ranks > per_host else None
            for gigabits in LINKS:
                label, link = f"remedies.{ranks}_ranks.{gigabits}gbit", Link(gigabits)
                seconds = {
                    "none": self.model.seconds(self._shape(ranks, flat), link),
                    "bfloat16": self.model.seconds(self._shape(ranks, flat, wire=2), link),
                    **{f"replicated_{count}": self.model.seconds(shape, link) for count, shape in hot.items()},
                    "shared_link": self._shared_flat(ranks, flat, gigabits),
                    "by_host": self._by_host(ranks, flat, by_host, gigabits),
                }
                found |= {f"{label}.{name}_ms": 1e3 * taken for name, taken in seconds.items()}
        return found

    def _with_hot_rows(self, ranks: int, count: int) -> StepShape:
        """Where the hottest rows are on all ranks, each of which steps them by their all-reduced gradients."""
        draws = self.draws["skewed"]
        load = draws.load(ranks, self.crowd.batch, draws.hottest(count, self.crowd.batch))
        load = replace(load, asked=load.asked + count, rows=load.rows + count)
        return replace(self._shape(ranks, load), network_bytes=network_bytes(DIM) + 4 * DIM * count)

    def _shared_flat(self, ranks: int, load: KeyLoad, gigabits: float) -> float:
        """As it is, where the ranks of a host share its link; what goes between them does not take that."""
        per_host = self.crowd.per_host
        share = (ranks - per_host) / (ranks - 1)
        outside = replace(load, out=load.out * share, into=load.into * share)
        shape = replace(self._shape(ranks, outside), network_bytes=network_bytes(DIM) // per_host)
        link = Link(gigabits if ranks > per_host else float("inf"), shared=per_host)
        return self.model.seconds(shape, link)

    def _by_host(self, ranks: int, flat: KeyLoad, by_host: KeyLoad | None, gigabits: float) -> float:
        """Keys are united within a host first, so that each crosses its link once; a rank talks to one of each host."""
        per_host = self.crowd.per_host
        inside = sum(self.model.parts(self._shape(per_host, flat), Link()).values())
        if by_host is None:
            return inside
        share = replace(by_host, out=by_host.out / per_host, into=by_host.into / per_host)
        shape = replace(self._shape(ranks // per_host, share), network_bytes=network_bytes(DIM) // per_host)
        outside = self.model.parts(shape, Link(gigabits, shared=per_host))
        return inside + sum(outside[part] for part in (*EXCHANGES.values(), REDUCED))

    def _powers(self) -> Iterator[int]:
        ranks = 1
        while ranks <= self.crowd.ranks[-1]:
            yield ranks
            ranks *= 2
