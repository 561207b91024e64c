"""The example that trains on several ranks, and hosts that are pretended to try it on."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import pytest
import torch

import pretend_hosts
import several_ranks
from distributed_cases import Ranks

TALK = """
import socket, time
name = socket.gethostname()
if name == "host1":
    server = socket.create_server(("host1", 4000))
    peer, (address, _) = server.accept()
    got = 0
    while block := peer.recv(1 << 16):
        got += len(block)
    print(name, address, got)
else:
    while True:
        try:
            peer = socket.create_connection(("host1", 4000))
            break
        except OSError:
            time.sleep(0.01)
    peer.sendall(bytes(1_000_000))
"""


def hosts_or_skip(arguments: Sequence[str]) -> int:
    """Run the command; gives its exit code."""
    try:
        pretend_hosts.main(arguments)
    except pretend_hosts.NoHostsError as error:
        pytest.skip(f"no network namespaces: {error}")
    except SystemExit as end:
        return int(end.code or 0)
    raise AssertionError("it has not exited")


def test_the_example_trains_one_table_on_two_ranks(ranks: Ranks) -> None:
    told = ranks.call(several_ranks.train, 12, 64, None)
    sent = []
    for rank, line in enumerate(told):
        found = re.fullmatch(
            rf"rank {rank} of 2: .* rows, loss ([\d.]+) to ([\d.]+), .*, (\d+) bytes sent per sample", line
        )
        assert found is not None
        assert float(found[2]) < float(found[1])
        sent.append(int(found[3]))
    rounded = re.findall(r"(\d+) bytes", ranks.call(several_ranks.train, 12, 64, torch.bfloat16)[0])
    assert int(rounded[0]) < 0.6 * sent[0]


def test_pretended_hosts_talk_by_name_at_the_rate_of_their_links(capfd: pytest.CaptureFixture[str]) -> None:
    begin = perf_counter()
    assert hosts_or_skip(["--rate", "40mbit", sys.executable, "-c", TALK]) == 0
    assert perf_counter() - begin > 8_000_000 / 40_000_000
    assert capfd.readouterr().out == "host1 10.77.0.2 1000000\n"
    assert not list(Path("/var/run/netns").glob(f"sg{os.getpid()}*"))


def test_a_command_that_fails_on_a_host_fails() -> None:
    assert hosts_or_skip([sys.executable, "-c", "import socket; assert socket.gethostname() == 'host1'"]) == 1
