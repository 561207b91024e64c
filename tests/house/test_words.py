"""Words that a reader must translate: how often each may still occur. The numbers may only fall."""

import re
from pathlib import Path

import pytest

from over import over

ROOT = Path(__file__).parents[2]
TEXTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "src").rglob("*.py")),
    *sorted((ROOT / "paper" / "src").rglob("*.py")),
]
MOST = {
    r"\b(?:is|are|was|were|be) told\b": 1,  # reported, passed, notified
    r"\b(?:goes|go|going|went|gone) on\b(?! (?:the|a) )": 3,  # continues, resumes
    r"\bwhat (?:is|are|was) left\b|\bis left of\b": 3,  # the remaining …
    r"\b(?:that|which) (?:is|are) none\b": 3,  # is not a …
    r"\bthose (?:that|who|of|which)\b": 62,  # the noun
    r"\bso (?:many|much)\b": 3,  # n, the number of
    r"\bstands?\b(?! for)": 2,  # is, is written
    r"\banew\b": 3,  # again
    r"\bbeside\b": 3,  # with, next to, compared with
    r"\bof (?:its|your|their|one's|a run's) own\b": 26,  # separate, custom, your
    r"\bat once\b": 1,  # immediately
    r"\b(?:whoever|whatever|whichever)\b": 9,  # any …
    r"\bask(?:s|ed)? for\b": 11,  # target, requested
    r", too\b": 13,  # also
    r"\bnobody\b": 4,  # not set, no caller
    r"\blikewise\b|\bmeanwhile\b": 3,
    r"\bbut for\b": 1,  # except
    r"\bas (?:it is|they are|it does|they do)\b": 13,  # unchanged
    r"\b(?:lies|lie)\b": 7,  # is stored in
}
"""Pattern → the most occurrences in README, CONTRIBUTING, the guides and the source."""


@pytest.fixture(scope="module")
def text() -> str:
    return " ".join(" ".join(path.read_text(encoding="utf-8").split()) for path in TEXTS)


@over("pattern", MOST)
def test_words_that_a_reader_must_translate_become_fewer(pattern: str, text: str) -> None:
    found = len(re.findall(pattern, text, re.IGNORECASE))
    assert found <= MOST[pattern], "use the plain word: see the table in CONTRIBUTING.md"
