"""Kafka, by librdkafka's mock cluster: every message of every partition once, whatever brokers do."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from mock_kafka import MockKafka
from sparsegroup.data import open_log
from sparsegroup.streaming.sources import KafkaSource, StreamError, kafka
from stream_cases import FORMAT, Reader, assert_equal_rows, drained, numbers_of, record


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockKafka]:
    started = MockKafka()
    yield started
    started.end()


def values(*numbers: int) -> list[bytes]:
    return [json.dumps(record(number)).encode() for number in numbers]


def opened(cluster: MockKafka, topic: str, position: Any = None, **options: Any) -> KafkaSource:
    source = KafkaSource(cluster.brokers, topic, **options)
    source.open(FORMAT, position)
    return source


def of_partition(reader: Reader, number: int) -> list[int]:
    return numbers_of([block for block in reader.blocks if block.span[0] == number])


def test_every_message_once_and_in_the_order_of_its_partition_through_kills(cluster: MockKafka) -> None:
    cluster.create("kills", 3)
    reader = Reader(lambda: KafkaSource(cluster.brokers, "kills"))
    expected: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for step in range(6):
        for number in expected:
            rows = range(number * 10_000 + step * 100, number * 10_000 + step * 100 + 7 * step + 1)
            cluster.write("kills", number, values(*rows))
            expected[number] += rows
        reader.blocks += drained(reader.source, rows=3 * (7 * step + 1) - (5 if step == 3 else 0))
        if step % 2:
            reader.checkpoint()
            reader.kill()
    total = sum(map(len, expected.values()))
    if missing := total - len(reader.numbers):
        reader.blocks += drained(reader.source, rows=missing)
    assert {number: of_partition(reader, number) for number in expected} == expected
    assert reader.source.read(0.0) is None
    assert reader.source.lag() == {"rows": 0}
    reader.source.close()


def test_large_spans_are_read_again_while_other_partitions_wait(
    cluster: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "BLOCK_ROWS", 50)
    monkeypatch.setattr(kafka, "_BUFFERED", 100)
    cluster.create("large", 2)
    for number in range(2):
        cluster.write("large", number, values(*range(number * 10_000, number * 10_000 + 1000)))
    source = opened(cluster, "large")
    blocks = drained(source, rows=2000)
    source.close()
    for first in range(2):  # one partition's blocks, then the other's
        again = opened(cluster, "large", {"0": 0, "1": 0})
        for block in sorted(blocks, key=lambda block: (block.span[0] != first, block.span[1])):
            repeated = again.again(block.span)
            assert repeated.span == block.span
            assert_equal_rows(repeated.encode(), block.encode())
        cluster.write("large", 1, values(first))
        assert numbers_of(drained(again, rows=first + 1)) == [*range(first + 1)]
        assert again.read(0.0) is None
        assert again.lag() == {"rows": 0}
        again.close()


def test_a_topic_that_does_not_exist_yet_and_partitions_without_a_position(cluster: MockKafka) -> None:
    cluster.create("parts", 2)
    cluster.write("parts", 0, values(1, 2, 3))
    cluster.write("parts", 1, values(4))
    source = opened(cluster, "parts", {"0": 2})
    assert sorted(numbers_of(drained(source, rows=2))) == [3, 4]
    source.close()
    source = opened(cluster, "later")
    assert source.read(0.1) is None
    cluster.write("later", 0, values(5))
    assert numbers_of(drained(source, rows=1)) == [5]
    source.close()


def test_rows_that_cannot_be_used_have_their_offset(cluster: MockKafka) -> None:
    cluster.create("bad", 1)
    cluster.write("bad", 0, [*values(1), b"{", None, b"[1]", b'{"label": 2}', *values(2)])
    source = opened(cluster, "bad")
    blocks = drained(source, rows=6)
    assert numbers_of(blocks) == [1, 2]
    assert [(line, reason) for block in blocks for line, reason, _ in block.encode().bad] == [
        (1, "no JSON object"),
        (2, "no value where a JSON object is expected"),
        (3, "no JSON object"),
        (4, "label 'label' must be 0 or 1, true or false, yes or no"),
    ]
    assert blocks[0].origin.endswith("/bad partition 0")
    source.close()


def test_what_is_in_a_checkpoint_is_shown_to_monitors(cluster: MockKafka) -> None:
    cluster.create("shown", 2)
    for number in range(2):
        cluster.write("shown", number, values(1, 2, 3))
    source = opened(cluster, "shown", group="mine")
    blocks = drained(source, rows=6)
    source.acknowledge(blocks[-1].position)
    group = Consumer({"bootstrap.servers": cluster.brokers, "group.id": "mine"})
    places = [TopicPartition("shown", number) for number in range(2)]
    for _ in range(100):
        source.read(0.1)
        if [place.offset for place in group.committed(places, timeout=10)] == [3, 3]:
            break
    else:
        raise AssertionError("offsets were not committed")
    group.close()
    source.close()


def test_brokers_that_are_away_are_waited_for(cluster: MockKafka, caplog: pytest.LogCaptureFixture) -> None:
    cluster.create("away", 1)
    cluster.write("away", 0, values(1))
    source = opened(cluster, "away")
    assert numbers_of(drained(source, rows=1)) == [1]
    with caplog.at_level(logging.WARNING):
        cluster.down()
        for _ in range(100):
            assert source.read(0.1) is None
            if caplog.messages:
                break
        assert source.read(1.0) is None
        cluster.up()
        cluster.write("away", 0, values(2))
        assert numbers_of(drained(source, rows=1)) == [2]
    assert ["cannot be reached" in message for message in caplog.messages] == [True, False]
    assert "can be reached again" in caplog.messages[1]
    source.close()


def test_rows_that_retention_has_deleted_are_an_error_or_skipped(cluster: MockKafka) -> None:
    cluster.create("lost", 1)
    cluster.write("lost", 0, values(*range(50)))
    source = opened(cluster, "lost")
    blocks = drained(source, rows=50)
    cluster.delete_before("lost", 0, 30)
    early = opened(cluster, "lost", {"0": 10})
    with pytest.raises(StreamError, match=r"partition 0: 20 rows, at the offsets 10 to 29, were deleted by.*`lost=sk"):
        drained(early, rows=1)
    with pytest.raises(StreamError, match=r"partition 0: 30 rows, at the offsets 0 to 29, were deleted by the topic"):
        early.again(blocks[0].span)
    skipping = opened(cluster, "lost", {"0": 10}, lost="skip")
    assert numbers_of(drained(skipping, rows=20)) == list(range(30, 50))
    with pytest.raises(StreamError, match=r"partition 0 has \d+ of the \d+ messages"):
        skipping.again(blocks[0].span)
    other = opened(cluster, "lost", {"0": 90})
    with pytest.raises(StreamError, match=r"ends at the offset 50, and rows up to 90 were read: it was created again"):
        drained(other, rows=1)
    for one in (source, early, skipping, other):
        one.close()


def test_the_first_rows_decide_the_format(cluster: MockKafka, tmp_path: Path) -> None:
    cluster.create("first", 2)
    for number in range(2):
        cluster.write("first", number, values(*range(30)))
    source = KafkaSource(cluster.brokers, "first")
    log = open_log(source.first_rows(tmp_path, 40, 60.0), columns="categorical")
    assert (len(log), log.fields) == (40, ("a", "b", "n", "t"))
    source.open(FORMAT)
    assert len(drained(source, rows=60)) >= 2
    source.close()


def test_a_position_or_a_setting_that_is_none(cluster: MockKafka) -> None:
    with pytest.raises(StreamError, match="the position 3 is not one of a topic"):
        opened(cluster, "none", 3)
    with pytest.raises(StreamError, match=r'No such configuration property: "wrong.name"'):
        opened(cluster, "none", settings={"wrong.name": 1})
    with pytest.raises(StreamError, match="is error or skip, got 'no'"):
        opened(cluster, "none", lost="no")
