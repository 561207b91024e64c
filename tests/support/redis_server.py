"""A Redis on this machine."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_PATIENCE = 30.0


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """A server that lasts for a while, without a disk; gives `redis://host:port`. It skips the test where none is."""
    redis = pytest.importorskip("redis")
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(folder)]
    with (folder / "redis.txt").open("wb") as log, subprocess.Popen([program, *options], stdout=log) as process:
        try:
            client = redis.Redis(port=port)
            until = time.monotonic() + _PATIENCE
            while True:
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    assert process.poll() is None, (folder / "redis.txt").read_text()
                    assert time.monotonic() < until, "redis-server does not answer"
                    time.sleep(0.02)
            yield f"redis://127.0.0.1:{port}"
            client.close()
        finally:
            process.terminate()
