"""Files of every format that the package reads, damaged in seeded ways, and what reading each of them ends in.

As a program it reads such files in a process of its own, which may die of them:

    python tests/attack/mutated_files.py FOLDER FORMAT FIRST STOP
"""

import json
import queue
import random
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))  # as a program, the other tests' cases are to be found

from unharmed_files import FORMATS, Sound

SECONDS = 30
"""What reading one small file may take before it counts as a hang; where others use the machine, a second is little."""

_PIECES = [b'"', b'""', b",", b"\t", b"|", b":", b" ", b"\0", b"\r", b"\n", b"\r\n", b"\xef\xbb\xbf", b"\xff", b"\xc3"]
_PIECES += [
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"1e999",
    b"nan",
    b"-",
    b"9" * 30,
    b"2",
    b"{",
    b"[",
    b"]",
    b"&a",
    b"*a",
]
_PIECES += [
    "\u2028é\u0301日\U0001f600".encode(),
    b"x" * 70_000,
    b"x" * 1_100_000,
    b'"' * 999,
    b",\n" * 99,
    b"# ",
    b"!!int ",
]
_NUMBERS = [
    0,
    1,
    2,
    127,
    128,
    255,
    256,
    1 << 15,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 40,
    (1 << 63) - 1,
]


@dataclass
class Outcomes:
    """What reading damaged files of a format ended in.

    Attributes:
        counts: Outcome → number of files: "read", "refused", or a failure: "foreign", "unnamed", "crash", "hang".
        failures: The failures, each with the file's number and what was said.
    """

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, name: str, number: int, outcome: str, said: str) -> None:
        self.counts[outcome] += 1
        if outcome not in ("read", "refused"):
            self.failures.append(f"{name} {number}: {outcome}: {said}")


def mutated(content: bytes, draw: random.Random, *, text: bool) -> bytes:
    """Damaged content: one to four times."""
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        change = draw.choice(_OF_TEXT + _OF_ANY if text else _OF_ANY + _OF_BYTES)
        content = bytes(change(bytearray(content), draw))
    return content


def _flip(content: bytearray, draw: random.Random) -> bytes:
    for _ in range(draw.choice([1, 1, 2, 9]) if content else 0):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return content


def _overwrite(content: bytearray, draw: random.Random) -> bytes:
    start, length = draw.randint(0, len(content)), draw.choice([1, 4, 16])
    content[start : start + length] = draw.choice([b"\0", b"\xff", draw.randbytes(1)]) * length
    return content


def _truncate(content: bytearray, draw: random.Random) -> bytes:
    return content[: draw.randint(0, len(content))]


def _delete(content: bytearray, draw: random.Random) -> bytes:
    start, stop = _span(content, draw)
    return content[:start] + content[stop:]


def _duplicate(content: bytearray, draw: random.Random) -> bytes:
    start, stop = _span(content, draw)
    place = draw.randint(0, len(content))
    return content[:place] + content[start:stop] * draw.choice([1, 1, 2, 20]) + content[place:]


def _swap(content: bytearray, draw: random.Random) -> bytes:
    start, stop = _span(content, draw)
    place, length = draw.randint(0, len(content)), stop - start
    content[start:stop], content[place : place + length] = content[place : place + length], content[start:stop]
    return content


def _insert(content: bytearray, draw: random.Random) -> bytes:
    place = draw.randint(0, len(content))
    return content[:place] + draw.randbytes(draw.choice([1, 3, 8, 100])) + content[place:]


def _length(content: bytearray, draw: random.Random) -> bytes:
    """Another number where one may stand that says how long something is; more often near the file's ends."""
    size = draw.choice([1, 2, 4, 4, 8, 8])
    last = max(len(content) - size, 0)
    place = draw.choice([draw.randint(0, last), draw.randint(0, min(64, last)), max(last - draw.randint(0, 400), 0)])
    place -= place % draw.choice([1, size])
    number = draw.choice([*_NUMBERS, draw.getrandbits(8 * size), len(content), len(content) + 1])
    number = -number if draw.random() < 0.3 else number
    content[place : place + size] = (number % (1 << 8 * size)).to_bytes(size, draw.choice(["little", "little", "big"]))
    return content


def _piece(content: bytearray, draw: random.Random) -> bytes:
    place, length = draw.randint(0, len(content)), draw.choice([0, 0, 0, 1, 5])
    return content[:place] + draw.choice(_PIECES) + content[place + length :]


def _quote_cell(content: bytearray, draw: random.Random) -> bytes:
    """Quotes around a piece, perhaps with something before, in or after them."""
    start, stop = _span(content, draw, 12)
    before, inner, after = (draw.choice([b"", b"", b"x", b'"', b",", b"\n", b" "]) for _ in range(3))
    return content[:start] + before + b'"' + content[start:stop] + inner + b'"' + after + content[stop:]


def _lines(content: bytearray, draw: random.Random) -> bytes:
    """Lines swapped, twice, left out, or ending in another way."""
    lines = bytes(content).split(b"\n")
    place, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    match draw.randrange(5):
        case 0:
            lines[place], lines[other] = lines[other], lines[place]
        case 1:
            lines.insert(place, lines[other])
        case 2:
            del lines[place]
        case 3:
            lines[place] += draw.choice([b"\r", b",", b"\t", b" ", b"\0", b'"', b",,"])
        case 4:
            return draw.choice([b"\r\n", b"\r", b"\n\n"]).join(lines)
    return b"\n".join(lines)


def _span(content: bytearray, draw: random.Random, most: int = 300) -> tuple[int, int]:
    start = draw.randint(0, len(content))
    return start, min(len(content), start + draw.randint(1, most))


_OF_ANY: list[Callable[[bytearray, random.Random], bytes]] = [
    _flip,
    _overwrite,
    _truncate,
    _delete,
    _duplicate,
    _swap,
    _insert,
]
_OF_BYTES = [_flip, _length, _length, _length]
_OF_TEXT = [_piece, _piece, _piece, _quote_cell, _quote_cell, _lines, _lines]


def damaged(sound: Sound, name: str, number: int) -> tuple[Path, random.Random]:
    """File `number` of a format, damaged, and what goes on to be drawn."""
    draw = random.Random(f"{name}/{number}")
    content = sound.content
    if sound.pack is not None and draw.random() < 0.5:  # a sound compression of a damaged text
        content = sound.pack(mutated(content, draw, text=True))
    elif sound.pack is not None:
        content = mutated(sound.pack(content), draw, text=False)
    else:
        content = mutated(content, draw, text=sound.text)
    sound.path.write_bytes(content)
    return sound.path, draw


def outcome_of(sound: Sound, draw: random.Random) -> tuple[str, str]:
    """What reading a file ends in."""
    from sparsegroup.errors import UserError

    try:
        sound.read(sound.path, draw)
    except UserError as error:
        named = sound.path.name in str(error)
        return "refused" if named else "unnamed", str(error)
    except BaseException:
        return "foreign", traceback.format_exc()
    return "read", ""


def read_damaged(folder: Path, names: list[str], first: int, stop: int) -> dict[str, Outcomes]:
    """What reading files `first` to `stop` of each format ends in, in processes that may die of it."""
    found = {name: Outcomes() for name in names}
    jobs = [(name, number) for name in names for number in range(first, stop)]
    while jobs:
        done = 0
        for name, number, outcome, said in _worker(folder, jobs):
            assert (name, number) == jobs[done]
            found[name].add(name, number, outcome, said)
            done += 1
        assert done, "no file could be read at all"
        jobs = jobs[done:]
    return found


def _worker(folder: Path, jobs: list[tuple[str, int]]) -> Iterator[tuple[str, int, str, str]]:
    """What the files end in, as far as a process comes: the last one may be a crash or a hang."""
    with (
        (folder / "stderr.txt").open("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            [sys.executable, __file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        lines: queue.Queue[str] = queue.Queue()

        def listen() -> None:
            for line in process.stdout or ():
                lines.put(line)
            lines.put("")

        threading.Thread(target=listen, daemon=True).start()

        def tell() -> None:
            try:
                json.dump(jobs, process.stdin)  # type: ignore[arg-type]
                process.stdin.close()  # type: ignore[union-attr]
            except BrokenPipeError:
                pass

        threading.Thread(target=tell, daemon=True).start()
        wait = 4 * SECONDS  # until it has imported all
        for name, number in jobs:
            try:
                line = lines.get(timeout=wait)
            except queue.Empty:
                process.kill()
                yield name, number, "hang", f"more than {wait} s"
                return
            if not line:
                errors.seek(0)
                yield name, number, "crash", f"exit status {process.wait()}: {errors.read()[-2000:]}"
                return
            outcome, said = json.loads(line)
            yield name, number, outcome, said
            wait = SECONDS


def main(folder: Path) -> None:
    """Read damaged files, and say of each what that ended in."""
    made: dict[str, list[Sound]] = {}
    for name, number in json.load(sys.stdin):
        if name not in made:
            (folder / name).mkdir(exist_ok=True)
            made[name] = FORMATS[name](folder / name)
        sound = made[name][number % len(made[name])]
        _, draw = damaged(sound, name, number)
        print(json.dumps(outcome_of(sound, draw)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
