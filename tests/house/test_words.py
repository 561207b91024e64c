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
    r"\b(?:is|are|was|were|be) told\b": 4,  # reported, passed, notified
    r"\b(?:goes|go|going|went|gone) on\b(?! (?:the|a) )": 3,  # continues, resumes
    r"\bwhat (?:is|are|was) left\b|\bis left of\b": 3,  # the remaining …
    r"\b(?:that|which) (?:is|are) none\b": 3,  # is not a …
    r"\bthose (?:that|who|of|which)\b": 142,  # the noun
    r"\bso (?:many|much)\b": 29,  # n, the number of
    r"\bstands?\b(?! for)": 11,  # is, is written
    r"\banew\b": 5,  # again
    r"\bbeside\b": 17,  # with, next to, compared with
    r"\bof (?:its|your|their|one's|a run's) own\b": 40,  # separate, custom, your
    r"\bat once\b": 5,  # immediately
    r"\b(?:whoever|whatever|whichever)\b": 16,  # any …
    r"\bask(?:s|ed)? for\b": 21,  # target, requested
    r", too\b": 21,  # also
    r"\bnobody\b": 5,  # not set, no caller
    r"\blikewise\b|\bmeanwhile\b": 5,
    r"\bbut for\b": 3,  # except
    r"\bas (?:it is|they are|it does|they do)\b": 31,  # unchanged
    r"\b(?:lies|lie)\b": 16,  # is stored in
}
"""Pattern → the most occurrences in README, CONTRIBUTING, the guides and the source."""


@pytest.fixture(scope="module")
def text() -> str:
    return " ".join(" ".join(path.read_text(encoding="utf-8").split()) for path in TEXTS)


@over("pattern", MOST)
def test_words_that_a_reader_must_translate_become_fewer(pattern: str, text: str) -> None:
    found = len(re.findall(pattern, text, re.IGNORECASE))
    assert found <= MOST[pattern], "use the plain word: see the table in CONTRIBUTING.md"
