"""librdkafka's own mock cluster, in this process: brokers that go down and come back, and delete rows."""

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import confluent_kafka

_PRODUCER = 0


def _library() -> Any:
    """The librdkafka that confluent_kafka has loaded."""
    folder = Path(confluent_kafka.__file__).parent
    names = [*(folder.parent / "confluent_kafka.libs").glob("librdkafka*"), *(folder / ".dylibs").glob("librdkafka*")]
    library = ctypes.CDLL(str(names[0]))
    pointer = ctypes.c_void_p
    library.rd_kafka_conf_new.restype = pointer
    library.rd_kafka_new.restype = pointer
    library.rd_kafka_new.argtypes = [ctypes.c_int, pointer, ctypes.c_char_p, ctypes.c_size_t]
    library.rd_kafka_mock_cluster_new.restype = pointer
    library.rd_kafka_mock_cluster_new.argtypes = [pointer, ctypes.c_int]
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    library.rd_kafka_mock_cluster_bootstraps.argtypes = [pointer]
    library.rd_kafka_mock_topic_create.argtypes = [pointer, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
    for name in ("set_down", "set_up"):
        getattr(library, f"rd_kafka_mock_broker_{name}").argtypes = [pointer, ctypes.c_int32]
    library.rd_kafka_mock_partition_delete_records.argtypes = [pointer, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int64]
    library.rd_kafka_mock_cluster_destroy.argtypes = [pointer]
    library.rd_kafka_destroy.argtypes = [pointer]
    return library


class MockKafka:
    """A cluster of one broker.

    Attributes:
        brokers: Its address.
    """

    def __init__(self) -> None:
        self._library = _library()
        message = ctypes.create_string_buffer(512)
        self._client = self._library.rd_kafka_new(_PRODUCER, self._library.rd_kafka_conf_new(), message, 512)
        assert self._client, message.value
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, 1)
        self.brokers = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        self._producer = confluent_kafka.Producer({"bootstrap.servers": self.brokers, "linger.ms": 0})

    def create(self, topic: str, partitions: int) -> None:
        assert not self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)

    def write(self, topic: str, partition: int, values: Iterable[bytes | None]) -> None:
        for value in values:
            self._producer.produce(topic, value, partition=partition)
            self._producer.poll(0)
        assert self._producer.flush(30) == 0

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """What retention does."""
        assert not self._library.rd_kafka_mock_partition_delete_records(
            self._cluster, topic.encode(), partition, offset
        )

    def down(self) -> None:
        assert not self._library.rd_kafka_mock_broker_set_down(self._cluster, 1)

    def up(self) -> None:
        assert not self._library.rd_kafka_mock_broker_set_up(self._cluster, 1)

    def end(self) -> None:
        del self._producer
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)
