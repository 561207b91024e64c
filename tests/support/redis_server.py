"""A Redis on this machine."""

import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as NoServer


class RedisServer:
    """A server that keeps what it holds in a folder, so that it can go down and come up again.

    Without the program the test is skipped.
    """

    def __init__(self, folder: Path) -> None:
        if shutil.which("redis-server") is None:
            pytest.skip("redis-server is not installed: apt-get install redis-server")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = f"--bind 127.0.0.1 --port {port} --dir {folder} --appendonly yes --appendfsync no --save".split()
        self._command = ["redis-server", *options, ""]
        self.url = f"redis://127.0.0.1:{port}"
        self.client: Any = Redis(port=port)
        self.up()

    def up(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        for _ in range(400):
            try:
                self.client.ping()
                return
            except NoServer:
                time.sleep(0.05)
        raise AssertionError("redis-server does not answer")

    def down(self) -> None:
        self._process.terminate()
        self._process.wait()

    def end(self) -> None:
        self.client.close()
        self.down()
