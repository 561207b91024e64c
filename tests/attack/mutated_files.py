"""Files of every format that the package reads, damaged in seeded ways."""

import random
from collections.abc import Callable
from pathlib import Path

from unharmed_files import FORMATS

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
_PIECES += ["\u2028é\u0301日\U0001f600".encode(), b"x" * 70_000, b"x" * 1_100_000, b'"' * 999, b",\n" * 99, b"# "]
_PIECES += [b"!!int ", b"&a", b"*a"]
_NUMBERS = [0, 1, 2, 127, 128, 255, 256, 1 << 40, *((1 << bits) - less for bits in (15, 31, 32, 63) for less in (0, 1))]


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


class MutatedLogs:
    """Small sound files of a format, damaged in seeded ways."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir()
        self._name, self._sounds = name, FORMATS[name](folder)

    def damage(self, number: int) -> str:
        draw = random.Random(f"{self._name}/{number}")
        sound = self._sounds[number % len(self._sounds)]
        content = sound.content
        if sound.pack is not None and draw.random() < 0.5:  # a sound compression of a damaged text
            content = sound.pack(mutated(content, draw, text=True))
        elif sound.pack is not None:
            content = mutated(sound.pack(content), draw, text=False)
        else:
            content = mutated(content, draw, text=sound.text)
        sound.path.write_bytes(content)
        self._damaged, self._draw = sound, draw
        return sound.path.name

    def use(self) -> None:
        self._damaged.read(self._damaged.path, self._draw)

    def restore(self) -> None:
        """The next damage is written over this one."""

    def is_named(self, error: str) -> bool:
        return self._damaged.path.name in error


def mutated_logs(folder: Path, name: str) -> MutatedLogs | None:
    """Those of a format, if it is one."""
    return MutatedLogs(folder / name, name) if name in FORMATS else None
