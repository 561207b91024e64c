"""One baseline of those that several ranks have taught, each with its own rows."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.training.baseline import COUNT, MEAN, MOMENTS, PARTS, SQUARES, SUM


def merged_baseline(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The state of a baseline whose weights are the means of those of several.

    A weight counts by its sum of squared gradients, so that a feature that one of them has seen alone keeps its weight:
    the mean of models that were trained on parts (Zinkevich et al., NeurIPS 2010), by what each knows of a feature. The
    sums add up. The moments of numbers are those of all rows (Chan, Golub and LeVeque 1983).

    Args:
        states: See `LogisticBaseline.state_dict`; at least one.

    Examples:
        >>> import torch
        >>> from sparsegroup.training.baseline_merge import merged_baseline
        >>> def state(*weights):
        ...     places = torch.arange(len(weights), dtype=torch.int32)
        ...     return {"places": places, "weights": torch.tensor(weights), "moments": torch.zeros(0, 3).double()}
        >>> merged_baseline([state([1.0, 0.0, 3.0]), state([5.0, 0.0, 1.0], [2.0, 0.0, 1.0])])["weights"].tolist()
        [[2.0, 0.0, 4.0], [2.0, 0.0, 1.0]]
    """
    places = np.unique(np.concatenate([state["places"].numpy() for state in states]))
    sums = np.zeros((len(places), PARTS))
    for state in states:
        at, weights = np.searchsorted(places, state["places"].numpy()), state["weights"].double().numpy()
        share = weights[:, SUM : SUM + 1]
        sums[at] += weights * share
        sums[at, SUM] += share[:, 0] - weights[:, SUM] * share[:, 0]
    total = sums[:, SUM : SUM + 1].copy()
    merged = np.divide(sums, total, out=np.zeros_like(sums), where=total > 0)
    merged[:, SUM] = total[:, 0]
    return {
        "places": torch.from_numpy(places),
        "weights": torch.from_numpy(merged.astype(np.float32)),
        "moments": torch.from_numpy(_moments([state["moments"].numpy() for state in states])),
    }


def _moments(parts: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    known = [part for part in parts if len(part)]  # one that has seen no row knows of no numbers
    result = np.zeros((len(known[0]) if known else 0, MOMENTS))
    for part in known:
        count = result[:, COUNT] + part[:, COUNT]
        share = np.divide(part[:, COUNT], count, out=np.zeros_like(count), where=count > 0)
        distance = part[:, MEAN] - result[:, MEAN]
        result[:, SQUARES] += part[:, SQUARES] + distance**2 * result[:, COUNT] * share
        result[:, MEAN] += distance * share
        result[:, COUNT] = count
    return result
