"""The name that was meant by one that there is not."""

import difflib
from collections.abc import Iterable


def did_you_mean(given: str, known: Iterable[str], most: int = 1, likeness: float = 0.6) -> str:
    """A question for an error message, or an empty text where nothing is like what was given.

    Args:
        given: What somebody wrote.
        known: The names that there are.
        most: How many to name.
        likeness: From 0 to 1, how like they must be at least.

    Examples:
        >>> from sparsegroup.near_match import did_you_mean
        >>> did_you_mean("colour", ["color", "noise"])
        "did you mean 'color'?"
        >>> did_you_mean("l12", ["l1", "l21", "lr"], most=3)
        "did you mean 'l1' or 'l21'?"
    """
    near = [repr(name) for name in difflib.get_close_matches(given, list(known), most, likeness)]
    if not near:
        return ""
    *first, last = near
    return f"did you mean {', '.join(first)} or {last}?" if first else f"did you mean {last}?"
