"""Kafka, by librdkafka's mock cluster, and Redis streams, by a server: every row once and in order."""

import ctypes
import json
import logging
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer, TopicPartition

from data_cases import CSV
from redis_server import RedisServer
from sparsegroup.data import open_log
from sparsegroup.streaming.sources import KafkaSource, RedisSource, Source, StreamError, kafka, redis
from stream_cases import Reader, assert_read_again, drained, numbers_of, record

pytestmark = pytest.mark.whole
LABEL = "label 'label' must be 0 or 1, true or false, yes or no"


def _library() -> Any:
    """The librdkafka that confluent_kafka has loaded."""
    folder = Path(confluent_kafka.__file__).parent
    names = [*(folder.parent / "confluent_kafka.libs").glob("librdkafka*"), *(folder / ".dylibs").glob("librdkafka*")]
    library, pointer = ctypes.CDLL(str(names[0])), ctypes.c_void_p
    for name, given, result in (
        ("conf_new", [], pointer),
        ("new", [ctypes.c_int, pointer, ctypes.c_char_p, ctypes.c_size_t], pointer),
        ("mock_cluster_new", [pointer, ctypes.c_int], pointer),
        ("mock_cluster_bootstraps", [pointer], ctypes.c_char_p),
        ("mock_topic_create", [pointer, ctypes.c_char_p, ctypes.c_int, ctypes.c_int], ctypes.c_int),
        ("mock_broker_set_down", [pointer, ctypes.c_int32], ctypes.c_int),
        ("mock_broker_set_up", [pointer, ctypes.c_int32], ctypes.c_int),
        ("mock_partition_delete_records", [pointer, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int64], ctypes.c_int),
        ("mock_cluster_destroy", [pointer], None),
        ("destroy", [pointer], None),
    ):
        function = getattr(library, f"rd_kafka_{name}")
        function.argtypes, function.restype = given, result
    return library


class MockKafka:
    """A cluster of one broker, in this process; `bad` rows are those at the offsets 1 to 4 of `write_bad`."""

    bad = ((1, "no JSON object"), (2, "no value where a JSON object is expected"), (3, "no JSON object"), (4, LABEL))
    module, partitions = kafka, 3

    def __init__(self, _: Path) -> None:
        self._library = _library()
        message = ctypes.create_string_buffer(512)
        self._client = self._library.rd_kafka_new(0, self._library.rd_kafka_conf_new(), message, 512)
        assert self._client, message.value
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, 1)
        self.brokers = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        self._producer = confluent_kafka.Producer({"bootstrap.servers": self.brokers, "linger.ms": 0})

    def source(self, name: str, **options: Any) -> KafkaSource:
        return KafkaSource(self.brokers, name, **options)

    def create(self, name: str, partitions: int) -> None:
        assert not self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, 1)

    def write(self, name: str, numbers: Iterable[int], partition: int = 0) -> None:
        self._produce(name, partition, [json.dumps(record(number)).encode() for number in numbers])

    def write_bad(self, name: str) -> None:
        self._produce(name, 0, [b"{", None, b"[1]", b'{"label": 2}'])

    def _produce(self, name: str, partition: int, values: Iterable[bytes | None]) -> None:
        for value in values:
            self._producer.produce(name, value, partition=partition)
            self._producer.poll(0)
        assert self._producer.flush(30) == 0

    def delete_first(self, name: str, rows: int) -> None:
        """What retention does."""
        assert not self._library.rd_kafka_mock_partition_delete_records(self._cluster, name.encode(), 0, rows)

    def down(self) -> None:
        assert not self._library.rd_kafka_mock_broker_set_down(self._cluster, 1)

    def up(self) -> None:
        assert not self._library.rd_kafka_mock_broker_set_up(self._cluster, 1)

    def end(self) -> None:
        del self._producer
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)


class RedisBroker(RedisServer):
    """`bad` rows are those that `write_bad` adds after one row."""

    bad = ((2, "invalid UTF-8"), (3, LABEL))
    module, partitions = redis, 1

    def source(self, name: str, **options: Any) -> RedisSource:
        return RedisSource(f"{self.url}/0", name, **options)

    def create(self, name: str, partitions: int) -> None:
        """A stream is there once it has an entry."""

    def write(self, name: str, numbers: Iterable[int], partition: int = 0) -> None:
        for number in numbers:
            self.client.xadd(name, record(number))

    def write_bad(self, name: str) -> None:
        self.client.xadd(name, {"label": b"\xff"})
        self.client.xadd(name, {"label": "2"})

    def delete_first(self, name: str, rows: int) -> None:
        self.client.xtrim(name, maxlen=self.client.xlen(name) - rows, approximate=False)


Broker = MockKafka | RedisBroker


@pytest.fixture(scope="module", params=[MockKafka, RedisBroker])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    started = request.param(tmp_path_factory.mktemp("broker"))
    yield started
    started.end()


kafka_only = pytest.mark.parametrize("broker", [MockKafka], indirect=True)
redis_only = pytest.mark.parametrize("broker", [RedisBroker], indirect=True)


def opened(broker: Broker, name: str, position: Any = None, **options: Any) -> Source:
    source = broker.source(name, **options)
    source.open(CSV, position)
    return source


def test_every_row_once_and_in_the_order_of_its_partition_through_kills(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.module, "BLOCK_ROWS", 7)
    broker.create("kills", broker.partitions)
    reader = Reader(lambda: broker.source("kills"))
    expected: dict[int, list[int]] = {number: [] for number in range(broker.partitions)}
    for step in range(5):
        for number, rows in expected.items():
            more = range(number * 10_000 + step * 100, number * 10_000 + step * 100 + 7 * step + 1)
            broker.write("kills", more, number)
            rows += more
        missing = sum(map(len, expected.values())) - len(reader.numbers)
        reader.blocks += drained(reader.source, rows=missing - (12 if step == 3 else 0))
        if step % 2:
            reader.checkpoint()
            reader.kill()
    assert {number: [row for row in reader.numbers if row // 10_000 == number] for number in expected} == expected
    assert reader.source.read(0.0) is None
    assert reader.source.lag() == {"rows": 0}
    reader.source.close()


def test_a_topic_that_does_not_exist_yet_is_waited_for_and_rows_that_cannot_be_used_have_their_place(
    broker: Broker,
) -> None:
    source = opened(broker, "bad")
    assert source.read(0.1) is None
    broker.write("bad", [1])
    broker.write_bad("bad")
    broker.write("bad", [2])
    blocks = drained(source, rows=2 + len(broker.bad))
    assert numbers_of(blocks) == [1, 2]
    assert tuple((line, reason) for block in blocks for line, reason, _ in block.encode().bad) == broker.bad
    assert blocks[0].origin.removesuffix(" partition 0").endswith("/bad")
    source.close()


def test_a_broker_that_is_away_is_waited_for(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.create("away", 1)
    broker.write("away", [1])
    source = opened(broker, "away")
    (block,) = drained(source, rows=1)
    with caplog.at_level(logging.WARNING):
        broker.down()
        for _ in range(100):
            assert source.read(0.1) is None
            if caplog.messages:
                break
        broker.up()
        broker.write("away", [2])
        assert numbers_of(drained(source, rows=1)) == [2]
    assert ["cannot be reached" in message for message in caplog.messages] == [True, False]
    assert "can be reached again" in caplog.messages[1]
    assert_read_again(source, [block])
    assert numbers_of(drained(source, rows=1)) == [2]
    source.close()


def test_rows_that_were_deleted_are_an_error_or_skipped(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.module, "BLOCK_ROWS", 10)
    broker.create("lost", 1)
    broker.write("lost", range(50))
    source = opened(broker, "lost")
    blocks = drained(source, rows=50)
    position, rows = blocks[0].position, len(numbers_of(blocks[:1]))
    broker.delete_first("lost", 30)
    early, skipping = opened(broker, "lost", position), opened(broker, "lost", position, lost="skip")
    with pytest.raises(StreamError, match=rf"{30 - rows} rows.* were deleted .*before they were read.*`lost=skip`"):
        drained(early, rows=1)
    assert numbers_of(drained(skipping, rows=20)) == list(range(30, 50))
    with pytest.raises(StreamError, match=rf"has 0 of the {rows} (messages|rows)"):
        skipping.again(blocks[0].span)
    late = opened(broker, "lost")  # the oldest that is there
    assert numbers_of(drained(late, rows=20)) == list(range(30, 50))
    assert late.lag() == {"rows": 0}
    for one in (source, early, skipping, late):
        one.close()


def test_the_first_rows_decide_the_format(broker: Broker, tmp_path: Path) -> None:
    broker.create("first", 1)
    broker.write("first", range(60))
    source = broker.source("first")
    log = open_log(source.first_rows(tmp_path, 40, 60.0), columns="categorical")
    assert (len(log), log.fields) == (40, ("a", "b", "n", "t"))
    source.open(CSV)
    assert numbers_of(drained(source, rows=60)) == list(range(60))
    source.close()


@kafka_only
def test_kafka_reads_large_spans_again_while_other_partitions_wait(
    broker: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "BLOCK_ROWS", 50)
    monkeypatch.setattr(kafka, "_BUFFERED", 100)
    broker.create("large", 2)
    for number in range(2):
        broker.write("large", range(number * 10_000, number * 10_000 + 1000), number)
    source = opened(broker, "large")
    blocks = drained(source, rows=2000)
    source.close()
    for first in range(2):  # one partition's blocks, then the other's
        again = opened(broker, "large", {"0": 0, "1": 0})
        assert_read_again(again, sorted(blocks, key=lambda block: (block.span[0] != first, block.span[1])))
        broker.write("large", [first], 1)
        assert numbers_of(drained(again, rows=first + 1)) == [*range(first + 1)]
        assert again.read(0.0) is None
        assert again.lag() == {"rows": 0}
        again.close()


@kafka_only
def test_kafka_reads_partitions_without_a_position_and_refuses_one_beyond_the_end(broker: MockKafka) -> None:
    broker.create("parts", 2)
    broker.write("parts", [1, 2, 3])
    broker.write("parts", [4], 1)
    source, beyond = opened(broker, "parts", {"0": 2}), opened(broker, "parts", {"0": 90})
    assert sorted(numbers_of(drained(source, rows=2))) == [3, 4]
    with pytest.raises(StreamError, match=r"ends at the offset 3, and rows up to 90 were read: it was created again"):
        drained(beyond, rows=2)
    broker.delete_first("parts", 2)
    with pytest.raises(StreamError, match=r"partition 0: 2 rows, at the offsets 0 to 1, were deleted by the topic"):
        source.again([0, 0, 2, 2])
    for one in (source, beyond):
        one.close()


@kafka_only
def test_what_a_checkpoint_has_is_shown_to_monitors_of_kafka(broker: MockKafka) -> None:
    broker.create("shown", 2)
    for number in range(2):
        broker.write("shown", [1, 2, 3], number)
    source = opened(broker, "shown", group="mine")
    source.acknowledge(drained(source, rows=6)[-1].position)
    group = Consumer({"bootstrap.servers": broker.brokers, "group.id": "mine"})
    places = [TopicPartition("shown", number) for number in range(2)]
    for _ in range(100):
        source.read(0.1)
        if [place.offset for place in group.committed(places, timeout=10)] == [3, 3]:
            break
    else:
        raise AssertionError("offsets were not committed")
    group.close()
    source.close()


def test_a_checkpoint_does_not_wait_for_the_thread_that_reads(broker: Broker) -> None:
    broker.create("idle", 1)
    broker.write("idle", range(20))
    source = opened(broker, "idle")
    position = drained(source, rows=20)[-1].position
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            source.read(0.2)

    reading = threading.Thread(target=read, daemon=True)
    noting = threading.Thread(target=source.acknowledge, args=(position,), daemon=True)
    reading.start()
    noting.start()
    noting.join(20)
    assert not noting.is_alive()
    ended.set()
    reading.join(20)
    assert not reading.is_alive()
    source.close()


@redis_only
def test_a_redis_stream_that_was_created_again_is_an_error_or_read_from_its_beginning(broker: RedisBroker) -> None:
    broker.write("again", range(5))
    source = opened(broker, "again")
    position = drained(source, rows=5)[-1].position
    assert position["rows"] == 5
    broker.client.delete("again")
    assert source.read(0.0) is None
    broker.write("again", [7])
    with pytest.raises(StreamError, match="has had 1 rows, and 5 were read: it was created again"):
        source.read(0.0)
    assert numbers_of(drained(opened(broker, "again", position, lost="skip"), rows=1)) == [7]


@redis_only
def test_redis_refuses_what_is_no_stream(broker: RedisBroker) -> None:
    broker.client.set("text", "x")
    with pytest.raises(StreamError, match="text: WRONGTYPE"):
        opened(broker, "text").read(0.0)
    with pytest.raises(StreamError, match="Redis URL must"):
        RedisSource("http://x", "y")


@pytest.mark.parametrize(
    ("broker", "options", "message"),
    [
        (MockKafka, {"position": 3}, "the position 3 is not one of a topic"),
        (MockKafka, {"settings": {"wrong.name": 1}}, 'No such configuration property: "wrong.name"'),
        (MockKafka, {"lost": "no"}, "is error or skip, got 'no'"),
        (RedisBroker, {"position": 3}, "the position 3 is not one of a stream"),
    ],
    indirect=["broker"],
)
def test_wrong_positions_and_settings_are_refused(broker: Broker, options: Any, message: str) -> None:
    with pytest.raises(StreamError, match=message):
        opened(broker, "none", **options)
