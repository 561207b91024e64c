"""How long a feature has stayed away, as people write it."""

import pytest

from over import over
from sparsegroup.settings.declared import age_of


@over(
    ("given", "age"),
    [
        (0, {"steps": 0}),
        (5000, {"steps": 5000}),
        ("5000", {"steps": 5000}),
        ("90s", {"seconds": 90}),
        (" 30 min", {"seconds": 1_800}),
        ("12h", {"seconds": 43_200}),
        ("7d", {"seconds": 604_800}),
        ("2w", {"seconds": 1_209_600}),
    ],
)
def test_ages(given: object, age: dict[str, int]) -> None:
    assert age_of(given) == age


@over("given", [-1, True, 1.5, "", "d", "7 days", "-3h", "1.5h", None])
def test_what_is_none(given: object) -> None:
    with pytest.raises(ValueError, match="wants a number of steps"):
        age_of(given)
