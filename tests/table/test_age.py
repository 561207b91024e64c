"""How long a feature has stayed away, as people write it."""

import pytest

from over import over
from sparsegroup.settings.declared import Age, age_of


@over(
    ("given", "age"),
    [
        (0, Age(steps=0)),
        (5000, Age(steps=5000)),
        ("5000", Age(steps=5000)),
        ("90s", Age(seconds=90)),
        (" 30 min", Age(seconds=1_800)),
        ("12h", Age(seconds=43_200)),
        ("7d", Age(seconds=604_800)),
        ("2w", Age(seconds=1_209_600)),
    ],
)
def test_ages(given: object, age: Age) -> None:
    assert age_of(given) == age


@over("given", [-1, True, 1.5, "", "d", "7 days", "-3h", "1.5h", None])
def test_what_is_none(given: object) -> None:
    with pytest.raises(ValueError, match="wants a number of steps"):
        age_of(given)
