"""A learned vector per field for keys without a live row: dead, evicted, not admitted, unknown in evaluation."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from sparsegroup.table.graph_lookup import wants_operator
from sparsegroup.table.hashing import mixed
from sparsegroup.table.row_lookup import Found
from sparsegroup.table.table import Table

_SALT = np.int64(0x5EED_F0A1_1BAC_0DE5)
"""Makes the draw that a key is given here another one than those of its start and its admission."""

_MOST = 1 - 2.0**-53
"""The largest share whose bound is below 2⁶⁴."""


def begin_dead(found: Found, live: int, known: int) -> None:
    """Set vectors of keys that have come for the first time to zero, as if their rows were dead: as many as are dead.

    Fallback vectors then stand in for them, and learn what is to be expected of new keys. Which keys do so follows from
    the key alone; the rows themselves stay as they are, and get the gradient.

    Args:
        found: A lookup in training; its vectors are changed.
        live: How many rows are not zero.
        known: How many keys were ever seen, see `live_and_known`.
    """
    places = found.search.new_places
    if not len(places) or not known or live >= known:
        return
    drawn = mixed(found.search.keys[places] ^ _SALT)
    found.search.zeroed = places[drawn < np.uint64(min(1 - live / known, _MOST) * 2.0**64)]
    found.zero()


def live_and_known(table: Table) -> tuple[int, int]:
    """How many rows live, and how many keys training has seen.

    Where these are estimated, which would take its time, they are those that ever had a row; what went and came back
    counts as often as it went.
    """
    with table.at_rest():
        directory = table.directory
        known = directory.num_seen if directory.seen.is_exact else directory.num_rows + directory.counters.evicted
        return table.storage.num_live, known


def stand_in(vectors: Tensor, keys: Tensor, fallback: Tensor, field_bits: int) -> Tensor:
    """`vectors` with the fallback vector of its field for each key whose own is zero.

    Its gradient reaches both: the fallback vector learns, and the row still gathers what its key insists on. Where no
    vector is zero, the gradient of the fallback vectors is zero, not None: as it is in a graph, and as DDP wants it.

    Args:
        vectors: `[*keys.shape, dim]`.
        keys: int64.
        fallback: `[2**field_bits, dim]`, by the number in a key's top `field_bits` bits.
        field_bits: 0 to 16.
    """
    if wants_operator():  # without a shape that depends on the vectors
        dead = (vectors.detach() == 0).all(dim=-1, keepdim=True)
        fields = field_numbers(keys, field_bits).to(fallback.device)
        return torch.where(dead, vectors + fallback[fields], vectors)
    flat = vectors.reshape(-1, vectors.shape[-1])
    at = (flat.detach() == 0).all(dim=1).nonzero().squeeze(1)
    fields = field_numbers(keys.reshape(-1)[at.to(keys.device)], field_bits).to(fallback.device)
    return flat.index_add(0, at, fallback.index_select(0, fields)).view_as(vectors)


def field_numbers(keys: Tensor, field_bits: int) -> Tensor:
    """The number in the top `field_bits` bits of int64 keys, from 0."""
    if not field_bits:
        return torch.zeros_like(keys)
    return (keys >> (64 - field_bits)) & ((1 << field_bits) - 1)


def check_fallback(
    fallback: nn.Parameter | None,
    name: str,
    state_dict: Mapping[str, Tensor],
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
) -> Tensor | None:
    """The fallback vectors that a state dict has under `name`, if they fit; see `nn.Module._load_from_state_dict`."""
    given = state_dict.get(name)
    if fallback is None:
        unexpected_keys.extend([] if given is None else [name])
    elif given is None:
        missing_keys.append(name)
    elif given.shape != fallback.shape:
        error_msgs.append(f"{name} must have shape {list(fallback.shape)}, got {list(given.shape)}")
    elif not given.isfinite().all():
        error_msgs.append(f"{name} has NaN or infinite elements")
    else:
        return given
    return None
