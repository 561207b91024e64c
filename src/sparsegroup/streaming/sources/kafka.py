"""Rows of a Kafka topic, whose messages are JSON objects."""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import polars as pl

from sparsegroup.addresses import public_address, without_secrets
from sparsegroup.data.raw.files import BadRow, LogPaths
from sparsegroup.data.schema import LogFormat
from sparsegroup.errors import require
from sparsegroup.streaming.sources.records import FieldWatch, Record, frame_of, record_of, write_csv
from sparsegroup.streaming.sources.source import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    Away,
    Block,
    Source,
    StreamError,
    block_of,
    checked_lost,
)

_REFRESH = 30.0
"""Seconds between looks for new partitions."""
_PROBE = 1.0
"""Seconds between looks while brokers are away or the topic does not exist."""
_ANSWER = 5.0
"""Seconds in which a broker answers."""
_BUFFERED = 2 * BLOCK_ROWS
"""Messages of a partition that wait in memory while another one is read again."""

_SETTINGS = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": False,
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
    "queued.max.messages.kbytes": 16384,
    "reconnect.backoff.max.ms": 2000,
    "topic.metadata.refresh.interval.ms": 60000,
}
_REFUSED = (
    "_AUTHENTICATION",
    "SASL_AUTHENTICATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "_INVALID_ARG",
)
_OUT_OF_RANGE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")
_BEGINNING = -2
"""librdkafka's name of the oldest offset."""

_logger = logging.getLogger(__name__)

_Message = tuple[int, bytes | None]
"""Offset and value."""


@dataclass
class _Partition:
    """Where reading a partition is.

    Attributes:
        next: Offset of the row that is given next; None before its first.
        fetch: Offset of the message that is fetched next.
        waiting: Messages in between.
        lost: Why no more can be fetched.
    """

    next: int | None = None
    fetch: int = _BEGINNING
    waiting: deque[_Message] = field(default_factory=deque)
    lost: StreamError | None = None
    is_paused: bool = False


class KafkaSource(Source):
    """Rows of a Kafka topic, one JSON object in UTF-8 per message.

    Every partition is read, also those added later, each from its own offset; a position is {partition: next offset}.
    The consumer group's offsets are written for monitors when a checkpoint is acknowledged, and never read. While
    brokers are away it waits for them. Bad rows have their offset, which is also a row's time where no column has one.

    Args:
        brokers: `host:port` of some brokers, separated by commas.
        topic: Name of the topic; it may not exist yet.
        group: Consumer group whose offsets are written.
        lost: Whether rows that the topic's retention has deleted before they were read are an error, or skipped with
            a warning.
        settings: Others of librdkafka, such as `security.protocol`.

    Raises:
        MissingExtraError: confluent-kafka is not installed.
        StreamError: A setting that librdkafka does not know.
    """

    def __init__(
        self,
        brokers: str,
        topic: str,
        *,
        group: str = "sparsegroup",
        lost: str = "error",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        require("kafka", "a source that reads Kafka")
        self.name = public_address(f"kafka://{brokers}/{topic}")
        self._brokers = sorted(one.rpartition("@")[2].strip() for one in brokers.split(","))
        self._topic, self._lost = topic, checked_lost(lost, self.name)
        self._settings = {"bootstrap.servers": brokers, "group.id": group, **_SETTINGS, **(settings or {})}
        self._address = f"{self.name}?{urlencode(settings or {})}"
        self._away, self._closed = Away(self.name, _logger), threading.Event()
        self._watch = FieldWatch(self.name)
        self._refusal: StreamError | None = None
        self._acknowledged: Mapping[str, int] | None = None  # a position whose offsets are to be written
        self._partitions: dict[int, _Partition] = {}
        self._turns: deque[int] = deque()
        self._look_at = 0.0
        self._consumer: Any = None
        self._format: LogFormat | None = None

    @property
    def identity(self) -> Mapping[str, Any]:
        """See `Source.identity`."""
        return {"topic": self._topic, "brokers": self._brokers}

    def difference_from(self, identity: Mapping[str, Any]) -> str:
        """See `Source.difference_from`. Two addresses with a common broker are the same cluster."""
        is_shared = not set(self._brokers).isdisjoint(identity.get("brokers", ()))
        return super().difference_from({**identity, "brokers": self._brokers} if is_shared else identity)

    def open(self, format: LogFormat, position: Any = None) -> None:
        """See `Source.open`."""
        try:
            offsets = {int(number): int(offset) for number, offset in (position or {}).items()}
        except (AttributeError, ValueError, TypeError):
            raise StreamError(f"{self.name}: the position {position!r} is not one of a topic") from None
        self._format = format
        self._connect({number: _Partition(offset, offset) for number, offset in offsets.items()})

    def _connect(self, partitions: dict[int, _Partition]) -> None:
        from confluent_kafka import Consumer, KafkaException

        self.close()
        try:
            self._consumer = Consumer({**self._settings, "error_cb": self._note}, logger=_silent)
        except KafkaException as error:
            raise StreamError(f"{self.name}: {self._text_of(error.args[0])}") from error
        self._partitions, self._turns, self._look_at = partitions, deque(partitions), 0.0
        self._assign()

    def read(self, timeout: float) -> Block | None:
        """See `Source.read`."""
        end = time.monotonic() + timeout
        while True:
            for _ in range(len(self._turns)):
                number = self._turns[0]
                self._turns.rotate(-1)
                if self._partitions[number].waiting:
                    return self._block(number, self._next_of(number))
            for partition in self._partitions.values():
                if partition.lost is not None:
                    raise partition.lost
            left = end - time.monotonic()
            self._look(left)
            self._fetch(min(max(end - time.monotonic(), 0.0), _PROBE))
            if left <= 0 and not any(partition.waiting for partition in self._partitions.values()):
                return None

    def again(self, span: Any) -> Block:
        """See `Source.again`. It waits as long as brokers are away."""
        number, first, end, count = span
        partition = self._partitions.get(number)
        if partition is None:
            partition = self._partitions[number] = _Partition()
            self._turns.append(number)
        if partition.next != first:
            partition.next = partition.fetch = first
            partition.waiting.clear()
            partition.lost = None
            self._assign()
        asked_at = time.monotonic() + _ANSWER
        while partition.fetch < end:
            if self._closed.is_set():
                raise StreamError(f"{self.name}: closed while rows were read again")
            if partition.lost is not None:
                raise partition.lost
            if time.monotonic() > asked_at:
                self._check_range(number, end)
                asked_at = time.monotonic() + _ANSWER
            self._look(0.0)
            self._fetch(0.5, wanted=number)
        messages: list[_Message] = []
        while partition.waiting and partition.waiting[0][0] < end:
            messages.append(partition.waiting.popleft())
        if len(messages) != count or messages[0][0] != first:
            raise StreamError(
                f"{self.name}: partition {number} has {len(messages):,} of the {count:,} messages that were at the "
                f"offsets {first:,} to {end - 1:,}, which are to be read again: was it compacted or created again?"
            )
        return self._block(number, messages)

    def _next_of(self, number: int) -> list[_Message]:
        """Messages of a block."""
        waiting, size = self._partitions[number].waiting, 0
        messages: list[_Message] = []
        while waiting and len(messages) < BLOCK_ROWS and size < BLOCK_BYTES:
            messages.append(waiting.popleft())
            size += len(messages[-1][1] or b"")
        return messages

    def _block(self, number: int, messages: Sequence[_Message]) -> Block:
        assert self._format is not None, "open comes before read"
        partition, end = self._partitions[number], messages[-1][0] + 1
        partition.next = end
        if partition.is_paused and len(partition.waiting) < BLOCK_ROWS:
            self._consumer.resume([self._place(number)])
            partition.is_paused = False
        span = [number, messages[0][0], end, len(messages)]
        position = {str(one): its.next for one, its in sorted(self._partitions.items()) if its.next is not None}
        texts = partial(_rows, messages, self._format, self._watch)
        return block_of(texts, self._format, span, position, time.time(), f"{self.name} partition {number}")

    # What is fetched

    def _place(self, number: int, offset: int | None = None) -> Any:
        from confluent_kafka import TopicPartition

        return TopicPartition(self._topic, number) if offset is None else TopicPartition(self._topic, number, offset)

    def _assign(self) -> None:
        """Fetch every partition from where it is."""
        places = [self._place(number, partition.fetch) for number, partition in self._partitions.items()]
        self._consumer.assign(places)
        for partition in self._partitions.values():
            if partition.is_paused:
                self._consumer.resume(places)
            partition.is_paused = False

    def _look(self, timeout: float) -> None:
        """Look for partitions, when that is due."""
        if time.monotonic() < self._look_at:
            return
        from confluent_kafka import KafkaException

        try:
            known = self._consumer.list_topics(self._topic, timeout=min(max(timeout, 0.2), _ANSWER))
        except KafkaException as error:
            self._note(error.args[0], is_away=True)
            self._look_at = time.monotonic() + _PROBE
            return
        self._away.back()
        topic = known.topics.get(self._topic)
        found = set(topic.partitions) if topic is not None and topic.error is None else set()
        self._look_at = time.monotonic() + (_REFRESH if found else _PROBE)
        if topic is not None and topic.error is not None and topic.error.name() in _REFUSED:
            self._refusal = StreamError(f"{self.name}: {self._text_of(topic.error)}")
        if new := sorted(found - self._partitions.keys()):
            self._partitions.update({number: _Partition() for number in new})
            self._turns.extend(new)
            self._assign()

    def _fetch(self, timeout: float, wanted: int | None = None) -> None:
        """Wait for messages, and take all that are there; of partitions other than `wanted`, if that is given, few."""
        self._commit()
        message = self._consumer.poll(timeout)
        messages = [] if message is None else [message, *self._consumer.consume(BLOCK_ROWS, 0)]
        for message in messages:
            if message.error() is not None:
                self._note(message.error(), message.partition())
                continue
            self._away.back()
            partition = self._partitions[message.partition()]
            if message.offset() >= partition.fetch:
                partition.waiting.append((message.offset(), message.value()))
                partition.fetch = message.offset() + 1
        if self._refusal is not None:
            raise self._refusal
        for number, partition in self._partitions.items() if wanted is not None else ():
            if number != wanted and not partition.is_paused and len(partition.waiting) > _BUFFERED:
                self._consumer.pause([self._place(number)])
                partition.is_paused = True

    def _note(self, error: Any, number: int | None = None, is_away: bool = False) -> None:
        """What an error means: waiting, rows that are lost, or that the broker refuses."""
        if error.name() in _REFUSED or error.fatal():
            self._refusal = StreamError(f"{self.name}: {self._text_of(error)}")
        elif error.name() in _OUT_OF_RANGE and number in self._partitions:
            self._check_range(number)
        elif is_away or error.name() == "_ALL_BROKERS_DOWN":
            self._away.gone(self._text_of(error))
            self._look_at = min(self._look_at, time.monotonic() + _PROBE)

    def _text_of(self, error: Any) -> str:
        return without_secrets(error.str(), self._address)

    def _check_range(self, number: int, end: int | None = None) -> None:
        """What to do about a partition whose next message is not there, or from which none up to `end` arrives."""
        from confluent_kafka import KafkaException

        partition = self._partitions[number]
        try:
            low, high = self._consumer.get_watermark_offsets(self._place(number), timeout=_ANSWER)
        except KafkaException as error:
            self._note(error.args[0], is_away=True)
            self._assign()
            return
        fetch, where = partition.fetch, f"{self.name}: partition {number}"
        if partition.next is None:
            partition.fetch = _BEGINNING
        elif low > fetch:
            what = (
                f"{where}: {low - fetch:,} rows, at the offsets {fetch:,} to {low - 1:,}, were deleted by the topic's "
                "retention before they were read"
            )
            self._lose(partition, low, what, "keep rows for longer, or continue without them by `lost=skip`")
        elif high < max(fetch, end or 0):
            read = max(fetch, end or 0)
            what = f"{where}: ends at the offset {high:,}, and rows up to {read:,} were read: it was created again"
            self._lose(partition, low, what, "read it from its beginning by `lost=skip`")
        elif end is not None:
            return
        self._assign()

    def _lose(self, partition: _Partition, low: int, what: str, how: str) -> None:
        if self._lost == "error":
            partition.lost = StreamError(f"{what}; {how}", "lost")
            return
        _logger.warning("%s; reading continues at the offset %s", what, low)
        partition.fetch = low

    # What it knows

    def lag(self) -> Mapping[str, float]:
        """Rows between what was given and the newest ones, as far as brokers have said."""
        from confluent_kafka import KafkaException

        rows, consumer = 0, self._consumer
        for number, partition in list(self._partitions.items()) if consumer is not None else ():
            try:
                found = consumer.get_watermark_offsets(self._place(number), cached=True)
            except (KafkaException, RuntimeError):
                continue
            if found is not None and found[1] >= 0:
                rows += max(found[1] - (found[0] if partition.next is None else partition.next), 0)
        return {"rows": rows}

    def acknowledge(self, position: Any) -> None:
        """Let the reading thread write the consumer group's offsets, because other threads would wait for its polls."""
        self._acknowledged = position

    def _commit(self) -> None:
        """Write the offsets that were acknowledged last, without waiting for the brokers."""
        from confluent_kafka import KafkaException

        position, self._acknowledged = self._acknowledged, None
        if position is None:
            return
        try:
            places = [self._place(int(number), offset) for number, offset in position.items()]
            self._consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            _logger.debug("%s: offsets were not written (%s)", self.name, self._text_of(error.args[0]))

    def stop(self) -> None:
        """See `Source.stop`."""
        self._closed.set()

    def close(self) -> None:
        """Write acknowledged offsets and leave the brokers."""
        if self._consumer is not None:
            self._commit()
            self._consumer.close()
        self._consumer = None

    def first_rows(self, path: Path, rows: int, patience: float) -> LogPaths:
        """See `Source.first_rows`."""
        self._connect({})
        records: list[Record] = []
        end = float("inf")
        while len(records) < rows and time.monotonic() < end:
            self._look(1.0)
            self._fetch(0.2)
            for partition in self._partitions.values():
                if partition.lost is not None:
                    raise partition.lost
                while partition.waiting and len(records) < rows:
                    record = record_of(partition.waiting.popleft()[1])
                    records += [] if isinstance(record, str) else [record]
            if records:
                end = min(end, time.monotonic() + patience)
        self.close()
        return write_csv(path, records)


def _rows(messages: Sequence[_Message], format: LogFormat, watch: FieldWatch, bad: list[BadRow]) -> pl.DataFrame:
    return frame_of(((offset, record_of(value), value or b"") for offset, value in messages), format, bad, watch)


_silent = logging.getLogger(f"{__name__}.librdkafka")
_silent.setLevel(logging.CRITICAL)
"""librdkafka's messages repeat what `Away` reports once."""
