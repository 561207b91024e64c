"""A model of a step's time: each part by what it has to do, with constants fitted to the measured parts.

b samples with F fields on each of n ranks, vectors of d numbers. Of the busiest rank: u distinct keys in its batch,
m keys that it is asked for, r rows that it steps, o keys that it asks of others, i that others ask of it. G bytes of
gradients of the network. All c are constants, α the time of an exchange with one other rank without content, π what
each further rank adds, β seconds per byte: gloo's own, or the link's where that is slower.

    sorting keys          c + c b F + c u
    lookup                c + c m + c m d
    vectors spread        c + c b F d + c u d
    network               c + c b + c b d, and c more under DistributedDataParallel
    gradients summed      c + c m d
    optimizer step        c + c r + c r d
    threads               c
    each exchange         α + π (n - 2) + β bytes: 8 (n - 1) of numbers of keys, 8 max(o, i) of keys, and twice
                          w max(o, i) of vectors and gradients, where w is 4 d, or 2 d in bfloat16
    all-reduce            2 (n - 1) h + β 2 G (n - 1) / n, for gloo's goes round in a ring; h is the time of a hop

On a link, an exchange and a hop take its latency besides.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from ranks.ctr_training import FIELDS
from ranks.key_load import KeyLoad
from ranks.step_parts import (
    COMPUTED,
    EXCHANGES,
    FINDING,
    NETWORK,
    REDUCED,
    SORTING,
    SPREADING,
    STEP,
    SUMMING,
    THREADS,
)

OWN = (*COMPUTED, THREADS)
"""The parts that are not exchanges."""

_FIELDS = ("start", "peer", "byte", "hop", "crowding")
HEADERS = 1538 / 1448
"""Bytes on an Ethernet of 1,500 bytes a packet, with the gap between packets, for one of TCP's content."""


@dataclass(frozen=True)
class StepShape:
    """What a step has to do.

    Attributes:
        ranks: n.
        batch: b, of each rank.
        dim: d.
        load: u, m, r, o and i.
        wire: Bytes of a number on the wire.
        network_bytes: G.
    """

    ranks: int
    batch: int
    dim: int
    load: KeyLoad
    wire: int
    network_bytes: int

    def work(self, part: str) -> list[float]:
        """What the constants of a part of `OWN` are multiplied by."""
        load, samples = self.load, self.batch
        return {
            SORTING: [1, samples * FIELDS, load.distinct],
            FINDING: [1, load.asked, load.asked * self.dim],
            SPREADING: [1, samples * FIELDS * self.dim, load.distinct * self.dim],
            NETWORK: [1, samples, samples * self.dim, self.ranks > 1],
            SUMMING: [1, load.asked * self.dim],
            STEP: [1, load.rows, load.rows * self.dim],
            THREADS: [1],
        }[part]

    def bytes(self) -> dict[str, float]:
        """Bytes of each exchange at the rank that sends or gets most."""
        most = max(self.load.out, self.load.into) if self.ranks > 1 else 0.0
        vectors = self.wire * self.dim * most
        return dict(zip(EXCHANGES.values(), (8.0 * (self.ranks - 1), 8 * most, vectors, vectors), strict=True))

    def reduced_bytes(self) -> float:
        """Those of the all-reduce that each rank sends."""
        return 2 * self.network_bytes * (self.ranks - 1) / self.ranks


@dataclass(frozen=True)
class Link:
    """What is between two ranks.

    Attributes:
        gigabits: 10⁹ bits per second that a rank can send; infinite: gloo's own speed.
        shared: So many ranks send over one link.
        latency: Seconds that an exchange without content takes longer than between two processes of one host.
    """

    gigabits: float = np.inf
    shared: int = 1
    latency: float = 0.0

    def per_byte(self, own: float) -> float:
        """Seconds for a byte, where gloo itself takes `own`."""
        return max(own, HEADERS * 8 * self.shared / (1e9 * self.gigabits))


@dataclass(frozen=True)
class Observed:
    """A measured step: its shape, and seconds of its parts."""

    shape: StepShape
    parts: Mapping[str, float]


@dataclass(frozen=True)
class StepModel:
    """See above.

    Attributes:
        constants: Those of the computed parts.
        start: α.
        peer: π.
        byte: β of gloo.
        hop: h.
        crowding: By how much both ranks compute slower while two do on two cores of this machine.
    """

    constants: Mapping[str, list[float]]
    start: float
    peer: float
    byte: float
    hop: float
    crowding: float = 1.0

    @classmethod
    def fitted(cls, observed: Iterable[Observed], peer: float, crowding: float) -> "StepModel":
        """The constants that fit measured parts best, by relative errors; none is negative."""
        all_of = list(observed)
        constants = {}
        for part in OWN:
            ones = [one for one in all_of if one.parts[part] > 0]
            slower = [crowding if one.shape.ranks > 1 else 1.0 for one in ones]
            taken = [one.parts[part] / by for one, by in zip(ones, slower, strict=True)]
            constants[part] = _fit([one.shape.work(part) for one in ones], taken)
        several = [one for one in all_of if one.shape.ranks > 1]
        sizes = [(one.shape.bytes()[part], one.parts[part]) for one in several for part in EXCHANGES.values()]
        start, byte = _fit([[1, size] for size, _ in sizes], [taken for _, taken in sizes])
        hops = [
            (one.parts[REDUCED] - byte * one.shape.reduced_bytes()) / (2 * (one.shape.ranks - 1)) for one in several
        ]
        return cls(constants, start, peer, byte, max(float(np.median(hops)), 0.0), crowding)

    def figures(self) -> dict[str, float]:
        """The model, for `of_figures`."""
        fields = {name: getattr(self, name) for name in _FIELDS}
        constants = {
            f"constant.{part}.{place}": value
            for part, values in self.constants.items()
            for place, value in enumerate(values)
        }
        return {f"model.{name}": value for name, value in (fields | constants).items()}

    @classmethod
    def of_figures(cls, figures: Mapping[str, float]) -> "StepModel":
        """The model that has given such figures."""
        constants: dict[str, list[float]] = {}
        for name, value in figures.items():
            if name.startswith("model.constant."):
                constants.setdefault(name.split(".")[2], []).append(value)
        return cls(constants, **{name: figures[f"model.{name}"] for name in _FIELDS})

    def parts(self, shape: StepShape, link: Link = Link(), *, crowded: bool = False) -> dict[str, float]:
        """Seconds of each part.

        Args:
            shape: What there is to do.
            link: Between the ranks.
            crowded: All ranks are on this machine, each on a core.
        """
        slower = self.crowding if crowded and shape.ranks > 1 else 1.0
        found = {
            part: slower * float(np.dot(constants, shape.work(part))) for part, constants in self.constants.items()
        }
        if shape.ranks == 1:
            return found | dict.fromkeys((*EXCHANGES.values(), REDUCED), 0.0)
        own = self.start + link.latency + self.peer * (shape.ranks - 2)
        byte = link.per_byte(self.byte)
        found |= {part: own + byte * size for part, size in shape.bytes().items()}
        found[REDUCED] = 2 * (shape.ranks - 1) * (self.hop + link.latency) + byte * shape.reduced_bytes()
        return found

    def seconds(self, shape: StepShape, link: Link = Link(), *, crowded: bool = False) -> float:
        """Of a step."""
        return sum(self.parts(shape, link, crowded=crowded).values())


def _fit(work: list[list[float]], taken: list[float]) -> list[float]:
    scaled = np.array(work, dtype=float) / np.array(taken)[:, None]
    sizes = np.maximum(scaled.max(0), 1e-30)
    found: list[float] = (nnls(scaled / sizes, np.ones(len(taken)))[0] / sizes).tolist()
    return found
