"""Saving takes less than a tenth of the table's memory beside it, and loading little more than the table."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys, threading
import torch
from sparsegroup import GroupAdam, HashEmbedding
from sparsegroup.checkpoint import Checkpoints, load_checkpoint

torch.set_num_threads(1)
rows, folder, what = int(sys.argv[1]), sys.argv[2], sys.argv[3]

def resident(name):
    fields = dict(line.split(":") for line in open("/proc/self/status"))
    return int(fields[name].split()[0]) * 1024

def private_peak(do):  # the kernel keeps no peak of it
    highest, done = [0], threading.Event()
    def watch():
        while not done.wait(0.002):
            highest[0] = max(highest[0], resident("RssAnon"))
    watcher = threading.Thread(target=watch)
    watcher.start()
    do()
    done.set()
    watcher.join()
    return highest[0]

def forget_the_peak():
    open("/proc/self/clear_refs", "w").write("5")

def made():
    table = HashEmbedding(8, huge_pages=False)
    return table, GroupAdam(table.parameters(), l21=1e-3)

def train(table, optimizer, first, last):
    for begin in range(first, last, 50_000):
        keys = torch.arange(begin, min(begin + 50_000, last)) * 2654435761
        table(keys).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

small, its = made()
train(small, its, 0, 100)
checkpoints = Checkpoints(f"{folder}-{what}")
for step in (1, 2):
    checkpoints.save(step, small, its)
    train(small, its, 0, 10)
load_checkpoint(checkpoints.latest(), *made())

table, optimizer = made()
checkpoints = Checkpoints(folder)
train(table, optimizer, 0, rows)
if what == "changes":
    checkpoints.save(1, table, optimizer)
    train(table, optimizer, 0, rows // 2)
before = resident("VmRSS")
forget_the_peak()
path = checkpoints.save(2, table, optimizer)
saving = resident("VmHWM") - before
other = made()
before = resident("RssAnon")
loading = private_peak(lambda: load_checkpoint(path, *other)) - before
sizes = [one.memory().total - one.memory().scratch for one in (table, other[0])]
print(json.dumps([saving, loading, *sizes]))
"""


def measured(what: str, rows: int, folder: Path) -> list[int]:
    """The memory beside the table while it is saved and while it is loaded, the table's, and that of the loaded one."""
    command = [sys.executable, "-c", PROGRAM, str(rows), str(folder / "one"), what]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: list[int] = json.loads(done.stdout)
    return result


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_the_memory_beside_the_table(tmp_path: Path) -> None:
    saving, loading, size, loaded = measured("all rows", 1_500_000, tmp_path)
    assert size > 200e6
    assert saving < 0.1 * size
    assert 0.9 * size < loaded <= size  # the index is made for the rows
    assert loading < 1.1 * size  # apart from the file, which is mapped: the system may drop that


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_the_memory_beside_the_table_when_changes_are_written(tmp_path: Path) -> None:
    saving, _, size, _ = measured("changes", 6_000_000, tmp_path)
    assert saving < 0.1 * size
