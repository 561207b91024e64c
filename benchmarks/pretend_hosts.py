"""Hosts on one machine: network namespaces with a switch between them, and a rate limit on each link.

The command runs on each of the hosts at once. They are called host1, host2, … and know each other by these names; their
addresses are 10.77.0.1, 10.77.0.2, …, their network cards eth0. It takes root, `ip` and `tc` of iproute2, `unshare` of
util-linux, and a Linux kernel that lets them.

    python benchmarks/pretend_hosts.py --rate 100mbit torchrun --nnodes 2 --nproc-per-node 1 \
        --rdzv-backend c10d --rdzv-endpoint host1:29500 examples/several_ranks.py
"""

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

CARD = "eth0"
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET


class NoHostsError(RuntimeError):
    """This machine has no network namespaces, or no rate limits, for us."""


@dataclass(frozen=True)
class Host:
    """A network namespace.

    Attributes:
        name: The host's.
        namespace: The namespace's.
    """

    name: str
    namespace: str

    def begin(self, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        """Run a command there, in a group of processes of its own."""
        named = ["unshare", "--uts", "sh", "-c", 'echo "$0" > /proc/sys/kernel/hostname; exec "$@"', self.name]
        return subprocess.Popen(["ip", "netns", "exec", self.namespace, *named, *command], start_new_session=True)

    def enter(self) -> None:
        """Have this thread, and those that it begins, use the network of this host."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/var/run/netns/{self.namespace}") as place:
            if libc.setns(place.fileno(), _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {self.namespace}")

    def limit(self, rate: str | None) -> None:
        """Let it send at most so much, as `tc` writes rates: "100mbit"; None: as much as it can."""
        with suppress(NoHostsError):
            _run(f"tc -n {self.namespace} qdisc del dev {CARD} root")
        if rate is not None:
            _run(f"tc -n {self.namespace} qdisc add dev {CARD} root tbf rate {rate} burst 32kb latency 50ms")

    def sent(self) -> int:
        """Bytes that its card has sent, with the headers of Ethernet, IP and TCP."""
        lines = _run(f"ip netns exec {self.namespace} cat /proc/net/dev").splitlines()
        (counts,) = [line.split(":")[1].split() for line in lines if line.strip().startswith(f"{CARD}:")]
        return int(counts[8])


@contextmanager
def pretended(count: int, rate: str | None = None) -> Iterator[list[Host]]:
    """So many hosts at a switch.

    Args:
        count: How many, 1 to 200.
        rate: What each can send; see `Host.limit`.

    Raises:
        NoHostsError: They cannot be made here.
    """
    prefix = f"sg{os.getpid()}"
    switch = f"{prefix}s"
    hosts = {f"10.77.0.{number}": Host(f"host{number}", f"{prefix}h{number}") for number in range(1, count + 1)}
    known = "".join(f"{address} {host.name}\n" for address, host in hosts.items())
    with ExitStack() as made:
        for name in (switch, *(host.namespace for host in hosts.values())):
            _run(f"ip netns add {name}")
            made.callback(_run, f"ip netns del {name}")
            _run(f"ip -n {name} link set lo up")
            settings = Path("/etc/netns", name)  # `ip netns exec` shows what is in it in the place of /etc's
            settings.mkdir(parents=True)
            made.callback(shutil.rmtree, settings)
            (settings / "hosts").write_text(f"127.0.0.1 localhost\n{known}")
        _run(f"ip -n {switch} link add bridge type bridge")
        _run(f"ip -n {switch} link set bridge up")
        for address, host in hosts.items():
            port = f"to-{host.name}"
            _run(f"ip -n {switch} link add {port} type veth peer name {CARD} netns {host.namespace}")
            _run(f"ip -n {switch} link set {port} master bridge up")
            _run(f"ip -n {host.namespace} address add {address}/16 dev {CARD}")
            _run(f"ip -n {host.namespace} link set {CARD} up")
            host.limit(rate)
        yield list(hosts.values())


def _run(command: str) -> str:
    try:
        done = subprocess.run(command.split(), capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NoHostsError(f"{error.filename} is not installed: it comes with iproute2") from None
    if done.returncode:
        raise NoHostsError(f"{command}: {done.stderr.strip()}")
    return done.stdout


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2, metavar="N", help="default: %(default)s")
    parser.add_argument("--rate", help="what each can send, such as 1gbit; default: as much as it can")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what runs on each")
    given = parser.parse_args(argv)
    if not given.command:
        parser.error("there is no command")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with pretended(given.hosts, given.rate) as hosts, ExitStack() as ended:
        running = []
        for host in hosts:
            running.append(host.begin(given.command))
            ended.callback(_end, running[-1])
        codes = [one.wait() for one in running]
    sys.exit(max(map(abs, codes)))


def _end(process: "subprocess.Popen[bytes]") -> None:
    """With all that it has begun."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    main()
