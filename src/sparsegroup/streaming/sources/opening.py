"""A source from what a user types."""

import re
from collections.abc import Sequence
from typing import Any, TypedDict, Unpack, get_type_hints
from urllib.parse import parse_qsl, unquote, urlencode

from sparsegroup.addresses import UNCLEAR, is_unclear, public_address
from sparsegroup.data.raw.files import paths_of
from sparsegroup.streaming.sources.files import FilesSource
from sparsegroup.streaming.sources.joined import JoinedSource
from sparsegroup.streaming.sources.kafka import KafkaSource
from sparsegroup.streaming.sources.redis import RedisSource
from sparsegroup.streaming.sources.source import Source, StreamError
from sparsegroup.streaming.sources.stdin import StdinSource

_URL = re.compile(r"(kafka|rediss?)://([^/?]*)/?([^?]*)\??(.*)", re.DOTALL)


class SourceOptions(TypedDict, total=False):
    """Options of a source; None is the default.

    Attributes:
        sort: The order of files, see `FilesSource`.
        settle: Seconds without a change after which a file is complete.
        missing_columns: Whether a file without a column that the model reads is an "error", or the column "empty".
        lost: Whether rows that a broker has deleted before they were read are an "error", or "skip".
        clicks: Where the clicks are from, if the rows are impressions without a label, see `JoinedSource`; then `on`
            and `window` are needed.
        on: Columns by which clicks are joined, or one text with commas between them.
        window: How long an impression waits for its click, in seconds.
        time, click_time: Columns of times.
        joined_label: Name of the column of labels that is added; by default "label".
        late: What becomes of clicks that come later: "drop" or "positive".
        late_window: How many seconds after the window they count, for "positive".
    """

    sort: str | None
    settle: float | None
    missing_columns: str | None
    lost: str | None
    clicks: str | Sequence[str] | None
    on: str | Sequence[str] | None
    window: float | None
    time: str | None
    click_time: str | None
    joined_label: str | None
    late: str | None
    late_window: float | None


_OF_FILES, _OF_STREAMS = ("sort", "settle", "missing_columns"), ("lost",)
_OF_A_JOIN = ("on", "window", "time", "click_time", "joined_label", "late", "late_window")


def open_source(text: str | Sequence[str], **options: Unpack[SourceOptions]) -> Source:
    """The source that a text names.

    Args:
        text: `-` for standard input; `kafka://broker:9092,other:9092/topic`, with `?group=…`, `lost=skip` and settings
            of librdkafka such as `security.protocol=SSL` behind it; `redis://host:6379/0/stream`, or with `?stream=…`
            for a name with a slash; else files, as `open_log` takes them: one, a folder, a pattern, a URI such as
            s3://bucket/day=*/, or several of these.
        **options: See `SourceOptions`.

    Raises:
        StreamError: The text is incomplete, or options do not go together.
        MissingExtraError: A package that the source needs is not installed.

    Examples:
        >>> from sparsegroup.streaming.sources import open_source
        >>> open_source("clicks/*.csv").name
        'clicks/*.csv'
        >>> open_source("impressions/", clicks="clicks/", on="id", window=1800).name
        'impressions/ with clicks of clicks/'
    """
    if unknown := options.keys() - get_type_hints(SourceOptions).keys():
        raise TypeError(f"unexpected option {min(unknown)!r}")
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    joins = {name: given.pop(name) for name in _OF_A_JOIN if name in given}
    clicks = given.pop("clicks", None)
    applicable = {*_options_of(text)} | ({*_options_of(clicks)} - {"missing_columns"} if clicks is not None else set())
    if unused := given.keys() - applicable:
        raise StreamError(
            f"`{min(unused)}` is not for this source: `sort`, `settle` and `missing_columns` are for files, `lost` "
            "is for Kafka and Redis",
            *("sort", "settle", "missing_columns", "lost"),
        )
    if clicks is None:
        if joins:
            name = min(joins)
            raise StreamError(f"`{name}` is for impressions that are joined with `clicks`", name, "clicks")
        return _source(text, given)
    for name in ("on", "window"):
        if name not in joins:
            raise StreamError(f"`{name}` is missing, by which `clicks` are joined to impressions", name, "clicks")
    on = joins.pop("on")
    joins["on"] = on.split(",") if isinstance(on, str) else on
    if "joined_label" in joins:
        joins["label"] = joins.pop("joined_label")
    of_clicks = {
        name: value for name, value in given.items() if name != "missing_columns"
    }  # they have joined columns only
    return JoinedSource(_source(text, given), _source(clicks, of_clicks), **joins)


def _source(text: str | Sequence[str], options: dict[str, Any]) -> Source:
    paths = paths_of(text)
    first = paths[0]
    url = _URL.fullmatch(first)
    if first != "-" and url is None:
        return FilesSource(paths if len(paths) > 1 else first, **_of(_OF_FILES, options))
    if len(paths) > 1:
        raise StreamError(f"{public_address(first)}: only files can be several; give this source alone")
    if url is None:
        return StdinSource()
    name = public_address(first)
    if is_unclear(first):
        raise StreamError(f"{name}: the address is ambiguous; {UNCLEAR}")
    scheme, place, path, query = url.groups()
    try:
        wanted = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if query else {}
    except ValueError:
        raise StreamError(f"{name}: the text after the ? is no list of name=value with & between them") from None
    found = {"lost": wanted.pop("lost", None)} | _of(_OF_STREAMS, options)
    found = {name: value for name, value in found.items() if value is not None}
    if scheme == "kafka":
        if not place or not path:
            raise StreamError(f"{name}: name a broker and a topic, as in kafka://broker:9092/topic")
        if "group" in wanted:
            found["group"] = wanted.pop("group")
        return KafkaSource(place, unquote(path), settings=wanted, **found)
    database, _, stream = path.rpartition("/")
    if "stream" in wanted:
        database, stream = path, wanted.pop("stream")
    if not stream:
        raise StreamError(f"{name}: name a stream, as in redis://host:6379/0/stream")
    rest = f"?{urlencode(wanted)}" if wanted else ""
    return RedisSource(f"{scheme}://{place}/{database or 0}{rest}", unquote(stream), **found)


def _options_of(text: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the options of the source that a text names."""
    first = paths_of(text)[0]
    return () if first == "-" else _OF_FILES if _URL.fullmatch(first) is None else _OF_STREAMS


def _of(names: Sequence[str], options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in names if name in options}
