"""Keys that a user gives, as the table takes them."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.table.table_config import check_int

Int64s = npt.NDArray[np.int64]


def as_int64(ids: Tensor) -> Tensor:
    """int32 as int64, as `nn.Embedding` takes both; other dtypes unchanged."""
    return ids.to(torch.int64) if ids.dtype == torch.int32 else ids


def checked_keys(keys: Tensor) -> Tensor:
    """`keys` as int64. Raises TypeError unless they are a tensor of int64 or int32."""
    if not isinstance(keys, Tensor):
        hint = ": give its values(), or pool it in a HashEmbeddingBag" if hasattr(keys, "lengths") else ""
        raise TypeError(f"keys must be an int64 or int32 tensor, got {type(keys).__name__}{hint}")
    keys = as_int64(keys)
    if keys.dtype != torch.int64:
        raise TypeError(f"keys must be int64 or int32, got {keys.dtype}")
    return keys


def key_array(keys: Tensor, *, may_be_on_device: bool) -> Int64s:
    """Checked keys of any shape as a contiguous array `[n]` on the host. Raises ValueError on another device."""
    keys = checked_keys(keys)
    if keys.device.type != "cpu":
        if not may_be_on_device or keys.device.type != "cuda":
            raise ValueError(f"keys must be on cpu, where the table's index is, got {keys.device}")
        keys = keys.cpu()
    flat: Int64s = keys.numpy().reshape(-1)
    return flat if flat.flags.c_contiguous else np.ascontiguousarray(flat)


def field_keys(ids: Tensor, field: int | None = None, *, field_bits: int = 8) -> Tensor:
    """Keys that hold a field's number in their top bits and an id in the others: one table then serves all fields.

    The same id gets another row in each field, and `fallback`, `field_counts` and `FieldTables` know the fields. The
    keys of click logs have this form, with 8 `field_bits`.

    Args:
        ids: int64 or int32, of any shape. Only the low 64 - `field_bits` bits count.
        field: The number of the field that all ids belong to, in [0, 2**`field_bits`). None: the ids are
            `[..., fields]`, and the last dimension's index is the number.
        field_bits: How many high bits of a key hold the field, 1 to 16: those of the table.

    Returns:
        int64, shaped as `ids`.

    Raises:
        TypeError: `ids` of another dtype.
        ValueError: A field, or more fields, than `field_bits` can hold, or ids without a dimension and no `field`.

    Examples:
        >>> import torch
        >>> from sparsegroup import HashEmbedding, field_keys
        >>> table = HashEmbedding(4, field_bits=8)
        >>> ids = torch.tensor([[7, 7, 9], [7, 8, 9]])  # [batch, fields]
        >>> table(field_keys(ids)).shape, {field: count.rows for field, count in table.field_counts().items()}
        (torch.Size([2, 3, 4]), {0: 1, 1: 2, 2: 1})
        >>> torch.equal(field_keys(ids[:, 2], 2), field_keys(ids)[:, 2])
        True
    """
    check_int("field_bits", field_bits, 1, 16)
    ids, shift, most = checked_keys(ids), 64 - field_bits, 1 << field_bits
    if field is not None:
        check_int(f"field (field_bits={field_bits})", field, 0, most - 1)
        top: Tensor | int = (field if 2 * field < most else field - most) << shift  # in two's complement
    else:
        if not ids.ndim or ids.shape[-1] > most:
            raise ValueError(
                f"ids must be [..., fields] with at most {most:,} fields for field_bits={field_bits}, got shape "
                f"{list(ids.shape)}; or give the field of all of them"
            )
        top = torch.arange(ids.shape[-1], device=ids.device) << shift
    return ids & (1 << shift) - 1 | top
