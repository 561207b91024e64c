"""From a folder of hourly files to a server that follows: the four commands of docs/continuous.md, as printed."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from support.streams import rows_of_clicks

from server_cases import until

PAGE = Path(__file__).parents[2] / "docs" / "continuous.md"
_PATIENCE = 120.0


@contextmanager
def started(folder: Path, *words: str) -> Iterator[None]:
    """`sparsegroup` in a process of its own, until the block ends."""
    with (folder / f"{words[0]}.txt").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "sparsegroup", *words], cwd=folder, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(_PATIENCE) == 0, (folder / f"{words[0]}.txt").read_text()


def answer(url: str, body: str | None = None) -> dict[str, Any] | None:
    request = urllib.request.Request(url, None if body is None else body.encode())
    try:
        with urllib.request.urlopen(request) as found:
            result: dict[str, Any] = json.load(found)
            return result
    except (URLError, ConnectionError):
        return None


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_stranger_gets_from_hourly_files_to_a_server_that_follows(tmp_path: Path) -> None:
    block = re.findall(r"```\n(pip install.*?)```", PAGE.read_text(), flags=re.DOTALL)[0]
    install, follow, serve, curl = (shlex.split(line.removesuffix(" &")) for line in block.splitlines())
    assert install[:2] == ["pip", "install"]
    assert (follow[0], serve[0], curl[0]) == ("sparsegroup", "sparsegroup", "curl")
    (tmp_path / "logs").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rows_of_clicks(11_000, 0).write_csv(tmp_path / "logs" / "2026-05-12T00.csv")
    serve = [str(port) if word == "8000" else word for word in serve]
    url = next(word for word in curl if "localhost" in word).replace("localhost:8000", f"http://127.0.0.1:{port}")
    body = curl[curl.index("-d") + 1]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    every = ["2s" if word == "30s" else word for word in follow[1:]]

    def said() -> list[str]:
        return [path.read_text() for path in tmp_path.glob("*.txt")]

    with started(tmp_path, *every), started(tmp_path, *serve[1:]):
        first = until(lambda: answer(url, body), said)
        assert 0 < first["predictions"][0] < 1
        rows_of_clicks(11_000, 1, 3_600).write_csv(tmp_path / "logs" / "2026-05-12T01.csv")
        until(lambda: (answer(url, body) or first)["release"] > first["release"], said)
        later, model = answer(url, body), answer(url.replace("/predict", "/model"))
        assert later is not None
        assert later["predictions"] != first["predictions"]
        assert model is not None
        assert 0 <= model["age_seconds"] < _PATIENCE
