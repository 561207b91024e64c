"""Redis streams, by a real server: every entry once and in order, also when the server goes and comes back."""

import logging
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as NoServer

from sparsegroup.data import open_log
from sparsegroup.streaming.sources import RedisSource, StreamError, redis
from stream_cases import FORMAT, Reader, assert_equal_rows, drained, numbers_of, record

PROGRAM = shutil.which("redis-server")
pytestmark = [pytest.mark.whole, pytest.mark.skipif(PROGRAM is None, reason="redis-server is not installed")]


class Server:
    """A server that keeps its streams on disk."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.client: Any = Redis.from_url(self.url)
        self.start()

    def start(self) -> None:
        options = f"--port {self.port} --dir {self._folder} --appendonly yes --appendfsync no --save".split()
        self._process = subprocess.Popen([str(PROGRAM), *options, ""], stdout=subprocess.DEVNULL)
        for _ in range(400):
            try:
                self.client.ping()
                return
            except NoServer:
                time.sleep(0.05)
        raise AssertionError("redis-server does not answer")

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait()

    def write(self, stream: str, numbers: Iterable[int]) -> None:
        pipeline = self.client.pipeline()
        for number in numbers:
            pipeline.xadd(stream, {name: str(value) for name, value in record(number).items()})
        pipeline.execute()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("redis"))
    yield started
    started.client.close()
    started.stop()


def opened(server: Server, stream: str, position: Any = None, lost: str = "error") -> RedisSource:
    source = RedisSource(server.url, stream, lost=lost)
    source.open(FORMAT, position)
    return source


def test_every_entry_once_and_in_order_through_kills(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "BLOCK_ROWS", 7)
    reader = Reader(lambda: RedisSource(server.url, "kills"))
    for step in range(8):
        server.write("kills", range(step * 100, step * 100 + 100))
        reader.read(step * 4)
        if step % 2:
            reader.checkpoint()
        if step % 3 == 2:
            reader.kill()
    reader.read(1000)
    assert reader.numbers == list(range(800))
    assert reader.blocks[-1].position["rows"] == 800
    assert reader.source.lag() == {"rows": 0}
    reader.source.close()


def test_a_stream_that_does_not_exist_yet(server: Server) -> None:
    source = opened(server, "later")
    assert source.read(0.05) is None
    server.write("later", [1])
    assert numbers_of(drained(source, rows=1)) == [1]
    source.close()


def test_rows_that_cannot_be_used_have_their_number(server: Server) -> None:
    server.write("bad", [1])
    server.client.xadd("bad", {"label": b"\xff"})
    server.client.xadd("bad", {"label": "2"})
    server.client.xadd("bad", {"label": "1", "other": "x"})
    source = opened(server, "bad")
    (block,) = drained(source, rows=4)
    assert numbers_of([block]) == [1, 0]
    assert [(line, reason) for line, reason, _ in block.encode().bad] == [
        (2, "invalid UTF-8"),
        (3, "label 'label' must be 0 or 1, true or false, yes or no"),
    ]
    source.close()


def test_a_server_that_is_away_is_waited_for(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.write("away", [1])
    source = opened(server, "away")
    (block,) = drained(source, rows=1)
    with caplog.at_level(logging.WARNING):
        server.stop()
        assert source.read(0.3) is None
        server.start()
        server.write("away", [2])
        assert numbers_of(drained(source, rows=1)) == [2]
    assert ["cannot be reached" in message for message in caplog.messages] == [True, False]
    assert_equal_rows(source.again(block.span).encode(), block.encode())
    assert numbers_of(drained(source, rows=1)) == [2]
    source.close()


def test_rows_that_were_trimmed_are_an_error_or_skipped(server: Server) -> None:
    server.write("trimmed", range(50))
    source = opened(server, "trimmed")
    blocks = drained(source, rows=50)
    ids = [key.decode() for key, _ in server.client.xrange("trimmed")]
    server.client.xtrim("trimmed", maxlen=20, approximate=False)
    position = {"id": ids[9], "rows": 10}
    with pytest.raises(StreamError, match=rf"trimmed: 20 rows after the id {ids[9]} were deleted before.*`lost=skip`"):
        opened(server, "trimmed", position).read(0.0)
    with pytest.raises(StreamError, match=r"has 20 of the 50 rows with the ids .* was it trimmed\?"):
        source.again(blocks[0].span)
    assert numbers_of(drained(opened(server, "trimmed", position, "skip"), rows=20)) == list(range(30, 50))
    late = opened(server, "trimmed")  # the oldest that is there
    assert numbers_of(drained(late, rows=20)) == list(range(30, 50))
    assert late.lag() == {"rows": 0}
    server.client.delete("trimmed")
    assert late.read(0.0) is None
    server.write("trimmed", [7])
    with pytest.raises(StreamError, match="has had 1 rows, and 50 were read: it was created again"):
        late.read(0.0)
    again = opened(server, "trimmed", late_position := blocks[-1].position, "skip")
    assert late_position["rows"] == 50
    assert numbers_of(drained(again, rows=1)) == [7]


def test_the_first_rows_decide_the_format(server: Server, tmp_path: Path) -> None:
    server.write("first", range(60))
    source = RedisSource(server.url, "first")
    log = open_log(source.first_rows(tmp_path, 40, 60.0), columns="categorical")
    assert (len(log), log.fields) == (40, ("a", "b", "n", "t"))
    source.open(FORMAT)
    assert numbers_of(drained(source, rows=60)) == list(range(60))
    source.close()


def test_what_is_no_stream_is_an_error(server: Server) -> None:
    server.client.set("text", "x")
    with pytest.raises(StreamError, match="text: WRONGTYPE"):
        opened(server, "text").read(0.0)
    with pytest.raises(StreamError, match="the position 3 is not one of a stream"):
        opened(server, "none", 3)
    with pytest.raises(StreamError, match="Redis URL must"):
        RedisSource("http://x", "y")
