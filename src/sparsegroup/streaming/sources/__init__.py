"""Where arriving rows come from: growing files, standard input, Kafka, Redis, and two of them joined."""

from sparsegroup.streaming.sources.files import FilesSource
from sparsegroup.streaming.sources.joined import JoinedSource
from sparsegroup.streaming.sources.kafka import KafkaSource
from sparsegroup.streaming.sources.opening import SourceOptions, open_source
from sparsegroup.streaming.sources.redis import RedisSource
from sparsegroup.streaming.sources.source import Block, EndOfStream, Source, StreamError
from sparsegroup.streaming.sources.stdin import StdinSource

__all__ = [
    "Block",
    "EndOfStream",
    "FilesSource",
    "JoinedSource",
    "KafkaSource",
    "RedisSource",
    "Source",
    "SourceOptions",
    "StdinSource",
    "StreamError",
    "open_source",
]
