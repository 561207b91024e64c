"""What policies, which may be anybody's, have answered: checked before it is acted upon."""

from typing import Any

import numpy as np
import numpy.typing as npt


def checked_answer(policy: object, method: str, answer: object, count: int, dtype: type) -> npt.NDArray[Any]:
    """The answer of a policy's `method`; raises ValueError unless it is an array `[count]` of `dtype`."""
    result = np.asarray(answer)
    if result.dtype != dtype or result.shape != (count,):
        raise ValueError(
            f"{type(policy).__name__}.{method} must give {np.dtype(dtype)} {[count]}, got {result.dtype} "
            f"{list(result.shape)}"
        )
    return result
