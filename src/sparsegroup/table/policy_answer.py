"""What policies, which may be anybody's, have said: checked before it is acted upon."""

from typing import Any

import numpy as np
import numpy.typing as npt


def checked_answer(policy: object, method: str, given: object, count: int, dtype: type) -> npt.NDArray[Any]:
    """What a policy's `method` has said of `count` keys or rows: an array `[count]` of `dtype`.

    Raises:
        ValueError: It is none.
    """
    result = np.asarray(given)
    if result.dtype != dtype or result.shape != (count,):
        raise ValueError(
            f"{type(policy).__name__}.{method} must give {np.dtype(dtype)} {[count]}, got {result.dtype} "
            f"{list(result.shape)}"
        )
    return result
