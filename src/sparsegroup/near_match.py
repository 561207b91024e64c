"""The names that a misspelled one may mean."""

import difflib
from collections.abc import Iterable


def did_you_mean(given: str, known: Iterable[str], most: int = 1, likeness: float = 0.6) -> str:
    """A question for an error message with at most `most` known names, or "" if none is like `given`.

    `likeness`, from 0 to 1, is how similar a name must be.

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
