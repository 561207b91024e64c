"""Which source a text names, and what an error says."""

from typing import Any

import pytest

from over import over
from sparsegroup.streaming.sources import (
    FilesSource,
    JoinedSource,
    KafkaSource,
    RedisSource,
    Source,
    StdinSource,
    open_source,
)


@over(
    ("text", "kind", "name"),
    [
        ("-", StdinSource, "standard input"),
        ("logs/", FilesSource, "logs/"),
        (["a.csv", "b.csv"], FilesSource, "a.csv and 1 more"),
        ("s3://key:secret@bucket/day=*/", FilesSource, "s3://bucket/day=*/"),
        ("kafka://a:9092,b:9092/clicks?group=me&client.id=x&lost=skip", KafkaSource, "kafka://a:9092,b:9092/clicks"),
        ("redis://u:secret@host:6379/2/clicks", RedisSource, "redis://host:6379/2/clicks"),
        ("redis://host/clicks", RedisSource, "redis://host/0/clicks"),
        ("redis://host/1?stream=a/b", RedisSource, "redis://host/1/a/b"),
    ],
)
def test_the_source_that_a_text_names(text: Any, kind: type[Source], name: str) -> None:
    source = open_source(text)
    assert (type(source), source.name) == (kind, name)
    assert source.is_replayable == (kind is not StdinSource)


def test_impressions_with_clicks() -> None:
    source = open_source("i/", clicks="-", on="user,ad", window=60.0, joined_label="y", settle=1.0, sort="time")
    assert isinstance(source, JoinedSource)
    assert source.name == "i/ with clicks of standard input"
    assert not source.is_replayable


@over(
    ("text", "options", "message"),
    [
        ("kafka://broker:9092", {}, "name a broker and a topic, as in kafka://broker:9092/topic"),
        ("redis://host", {}, "name a stream, as in redis://host:6379/0/stream"),
        ("kafka://b/t?x", {}, "'x' is no list of name=value with & between them"),
        (["-", "a"], {}, "-: only files can be several; give this source alone"),
        ("a", {"window": 5}, "`window` is for impressions that are joined with `clicks`"),
        ("a", {"clicks": "b", "on": "c"}, "`window` is missing"),
        ("a", {"sort": "size"}, "`sort` of files is name or time, got 'size'"),
        ([], {}, "got an empty list"),
    ],
)
def test_what_names_none(text: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_source(text, **options)


def test_an_option_that_does_not_exist() -> None:
    with pytest.raises(TypeError, match="unexpected option 'colour'"):
        open_source("a", colour=1)  # type: ignore[call-arg]
