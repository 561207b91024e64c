"""Columns of every kind, for the tests of what columns are taken for."""

import datetime as dt
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from sparsegroup.data.open import format_of
from sparsegroup.data.raw.files import raw_file
from sparsegroup.data.schema import LogFormat

ROWS = 600
START = 1_700_000_000


def column(make: Callable[[int], object], rows: int = ROWS) -> list[str]:
    return [str(make(i)) for i in range(rows)]


def shuffled(values: Sequence[object]) -> list[str]:
    return [str(value) for value in random.Random(1).sample(list(values), len(values))]


def iso(i: int) -> str:
    return dt.datetime.fromtimestamp(START + 3600 * i, dt.UTC).isoformat()


def day(i: int, form: str) -> str:
    """A time of the year 2024, the days not in order."""
    return (dt.datetime(2024, 1, 1) + dt.timedelta(days=i * 7 % 366, minutes=i * 31 % 1440)).strftime(form)


CASES: dict[str, tuple[str, list[str], str]] = {
    "words": ("color", column(lambda i: f"c{i % 7}"), "category"),
    "few numbers": ("weekday", column(lambda i: i % 7), "category"),
    "decimals": ("price", column(lambda i: (i * 37 % 501) / 8), "number"),
    "decimals with a few values": ("stars", column(lambda i: (i % 5) / 2), "category, number"),
    "decimals with words for missing": ("price", column(lambda i: "NA" if i % 9 == 0 else i / 8), "number"),
    "negative and scientific": ("gain", column(lambda i: f"-{i + 1}.5e-3"), "number"),
    "infinite": ("ratio", column(lambda i: "inf" if i % 50 == 0 else i / 7), "number"),
    "zip codes": ("place", column(lambda i: f"0{1000 + i % 90}"), "category"),
    "numbers, one padded": ("place", column(lambda i: "007" if i == 3 else i % 211), "category"),
    "hex": ("sum", column(lambda i: f"{i % 90 * 7919:08x}"), "category"),
    "hashes that look like powers": ("digest", column(lambda i: f"{i % 40}e{i % 90}"), "category"),
    "large hashes": ("bucket", column(lambda i: 2**60 + i % 90), "category"),
    "ids by name": ("user_id", column(lambda i: i * 7919 % 211), "category"),
    "ids in camel case": ("userId", column(lambda i: i * 7919 % 211), "category"),
    "amounts by name": ("user_count", column(lambda i: i * 7919 % 211), "category, number"),
    "either": ("x", column(lambda i: i * 7919 % 211), "category, number"),
    "whole numbers that never repeat": ("cents", shuffled([i * 7919 for i in range(ROWS)]), "number"),
    "whole numbers as decimals": ("item", column(lambda i: f"{i % 211}.0"), "category of numbers"),
    "row numbers": ("n", column(lambda i: i), "ignore"),
    "uuids": ("session", shuffled([f"u{i:x}-{i}" for i in range(ROWS)]), "ignore"),
    "an id": ("id", column(lambda i: 10**12 + i * 17), "ignore"),
    "an id that repeats": ("id", column(lambda i: i % 50), "category"),
    "a constant": ("version", ["7"] * ROWS, "ignore"),
    "one value, or none": ("flag", column(lambda i: "x" if i % 2 else ""), "category"),
    "nothing": ("empty", [""] * ROWS, "ignore"),
    "true and false": ("mobile", column(lambda i: ["True", "false", "TRUE"][i % 3]), "boolean"),
    "yes and no": ("mobile", column(lambda i: ["yes", "no", ""][i % 3]), "boolean"),
    "0 and 1": ("mobile", column(lambda i: i % 2), "boolean"),
    "0, 1 and 2": ("mobile", column(lambda i: i % 3), "category"),
    "mixed": ("thing", column(lambda i: "unknown" if i % 100 == 7 else i % 211), "category"),
    "seconds": ("created", shuffled(range(START, START + 90 * ROWS, 90)), "timestamp s"),
    "seconds of a name that says nothing": ("visits", shuffled(range(START, START + 90 * ROWS, 90)), "number"),
    "milliseconds": ("created_at", shuffled([1000 * START + 77 * i for i in range(ROWS)]), "timestamp ms"),
    "ISO": ("seen", shuffled([iso(i) for i in range(ROWS)]), "timestamp iso"),
    "dates": ("born", shuffled([iso(24 * i)[:10] for i in range(ROWS)]), "timestamp date"),
    "no dates": ("born", column(lambda i: f"2024-13-{10 + i % 20}"), "category"),
    "dates, day first": ("order_date", column(lambda i: day(i, "%d/%m/%Y")), "timestamp %d/%m/%Y"),
    "dates, month first": ("order_date", column(lambda i: day(i, "%m/%d/%Y")), "timestamp %m/%d/%Y"),
    "dates with dots and times": ("order", column(lambda i: day(i, "%d.%m.%Y %H:%M")), "timestamp %d.%m.%Y %H:%M"),
    "dates with months in words": ("order", column(lambda i: day(i, "%b %d, %Y")), "timestamp %b %d, %Y"),
    "times of twelve hours": ("order", column(lambda i: day(i, "%m/%d/%Y %I:%M %p")), "timestamp %m/%d/%Y %I:%M %p"),
    "dates as numbers": ("order_date", column(lambda i: day(i, "%Y%m%d")), "timestamp %Y%m%d"),
    "numbers like dates": ("visits", column(lambda i: day(i, "%Y%m%d")), "number"),
    "versions": ("version", column(lambda i: f"{i % 3}.{i % 7}.{i % 20}"), "category"),
    "euros": ("price", column(lambda i: f"{i * 37 % 9001 / 100:.2f} €".replace(".", ",")), "amount comma"),
    "euros in groups": ("price", column(lambda i: f"{1 + i * 7919 % 90}.{i % 10}50 EUR"), "amount comma"),
    "dollars in groups": ("price", column(lambda i: f"${i * 371 % 900_100 / 100:,.2f}" if i % 7 else ""), "amount"),
    "percent": ("rebate", column(lambda i: f"{i % 5 * 10}%"), "category, amount"),
    "decimal commas": ("weight_kg", column(lambda i: f"{i * 37 % 9001 / 100:.2f}".replace(".", ",")), "amount comma"),
    "one or two numbers": ("pair", column(lambda i: f"{i % 9},{i % 7}" if i % 3 else f"{i % 9}"), "list comma"),
    "two numbers of three digits": ("pair", column(lambda i: f"{i % 90 + 100},{i % 50 + 200}"), "list comma"),
    "e-mail addresses": ("mail", column(lambda i: f"Ann{i}@Site{i % 7}.com"), "domain"),
    "e-mail addresses that recur": ("mail", column(lambda i: f"ann{i % 50}@site{i % 7}.com"), "category, domain"),
    "URLs": ("page", column(lambda i: f"https://www.site{i % 7}.com/p/{i}?x=1"), "domain"),
    "titles": ("title", column(lambda i: f"the {'red' if i % 2 else 'blue'} car of {i * 7 % 99} and {i}"), "words"),
    "own time, seconds": ("ts", column(lambda i: START + i), "time s"),
    "own time, ISO": ("event_time", column(iso), "time iso"),
    "own time, nearly in order": ("ts", column(lambda i: START + 60 * i - 90 * (i % 2)), "time s"),
    "a clock of its own": ("ts", column(lambda i: i // 3), "time"),
    "a time not in order": ("ts", shuffled(range(START, START + ROWS)), "timestamp s"),
    "a time with gaps": ("ts", column(lambda i: "" if i == 5 else START + i), "timestamp s"),
    "lists": ("genres", column(lambda i: "|".join(f"g{j % 9}" for j in range(i % 4 + 1))), "list |"),
    "lists, semicolons": ("tags", column(lambda i: ";".join(f"g{j % 9}" for j in range(i % 4 + 1))), "list ;"),
    "lists, commas": ("tags", column(lambda i: ",".join(f"g{j}" for j in range(i % 5 + 1))), "list comma"),
    "lists, spaces": (
        "history",
        column(lambda i: " ".join(f"N{i * j % 31}" for j in range(1, i % 5 + 2))),
        "list space",
    ),
    "names with spaces": ("city", column(lambda i: f"New York {'abc'[i % 3]}"), "category"),
    "names with commas": ("who", column(lambda i: f"Smith, {'abc'[i % 3]}"), "category"),
    "agents": ("agent", column(lambda i: f"Mozilla/5.0 (X11; Linux {i % 9}; rv:1)"), "category"),
    "JSON": ("tags", column(lambda i: json.dumps([f'a"{j}' for j in range(i % 3)])), "list json"),
    "JSON objects": ("user", column(lambda i: json.dumps({"name": i % 7})), "ignore"),
    "JSON lists of objects": ("items", column(lambda i: json.dumps([{"sku": i % 7}])), "ignore"),
    "nearly JSON": ("tags", column(lambda i: f"[{i % 7}"), "category"),
}


def everything(rows: int = ROWS) -> dict[str, list[str]]:
    """A log with columns of every kind; the rows come in no order but that of `ts`."""
    names = (
        "words",
        "decimals with words for missing",
        "stars",
        "lists",
        "JSON",
        "yes and no",
        "ISO",
        "dates",
        "mixed",
    )
    found = {
        "clicked": column(lambda i: ["true", "False"][i * 7 % 3 == 0]),
        "ts": column(lambda i: 1000 * (START + 977 * i) + 5),
        "stars": CASES["decimals with a few values"][1],
        "row": CASES["row numbers"][1],
    }
    for name in (name for name in names if name in CASES):
        found[name] = CASES[name][1]
    return {name: values[:rows] for name, values in found.items()}


def csv_of(path: Path, columns: dict[str, list[str]]) -> Path:
    pl.DataFrame(columns).write_csv(path)
    return path


def chosen(log: Path, **options: Any) -> LogFormat:
    return format_of([raw_file(log)], **options)
