"""A training that follows a stream, as people and monitors see it: warnings in a sentence each, and a live page."""

import json
import logging
import math
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sparsegroup.addresses import public_address, without_secrets
from sparsegroup.artifact.validation import finite, validated
from sparsegroup.errors import RunError
from sparsegroup.reporting.charts import Chart, along, run_charts
from sparsegroup.reporting.formatting import count, duration, metric, per_second, percent, short, size, titles_of
from sparsegroup.reporting.page import Tile, page_environment
from sparsegroup.streaming.live import LIVE, STATUS, WINDOW, LivePoint, last_lines

_logger = logging.getLogger(__name__)

SHOWN = 300
"""Points of the page, the last ones."""

_RECENT = 3
"""Points by which quality is judged, the last ones, against the `_BEFORE` before them."""

_BEFORE = 20
_SILENT = 60.0
"""Seconds after which a status is too old."""

_MOVED, _UNSEEN, _BAD, _OFF = 0.25, 0.5, 0.01, 0.2
_TOO_LARGE = 1.5
"""Times the target above which the share of live features is reported."""
_OVERDUE = 3
"""Times `--every` after which a release is overdue."""


@dataclass(frozen=True)
class View:
    """What a training has recorded, as of `now`, in seconds since 1970."""

    folder: Path
    status: Mapping[str, Any]
    points: Sequence[LivePoint]
    now: float

    @classmethod
    def of(cls, folder: str | Path, now: float | None = None) -> "View":
        """Read it.

        Raises:
            RunError: The folder has no run that follows a stream, or a damaged record.
        """
        folder = Path(folder)
        try:
            status = json.loads((folder / STATUS).read_text())
            points = [
                validated(LivePoint, {name: value for name, value in line.items() if name != "samples"})
                for line in last_lines(folder / LIVE, SHOWN)
            ]
        except FileNotFoundError as error:
            raise RunError(f"{folder}: no run follows a stream there ({STATUS} is missing)") from error
        except (ValueError, OSError) as error:
            raise RunError(f"{folder}: damaged ({error})") from error
        return cls(folder, status, points, time.time() if now is None else now)

    @cached_property
    def findings(self) -> Mapping[str, str]:
        """What someone should look at: its kind → a sentence. The sentences' figures change, the kinds seldom."""
        return {**self._of_the_process(), **self._of_quality(), **self._of_size(), **self._of_columns()}

    @property
    def warnings(self) -> tuple[str, ...]:
        """The sentences of `findings`."""
        return tuple(self.findings.values())

    def _of_the_process(self) -> dict[str, str]:
        status, found, silent = self.status, dict[str, str](), self.now - self.status["at"]
        if status["ended"]:
            found["failed"] = f"The training failed {duration(silent)} ago: {status['ended'].rstrip('.')}."
        elif status["ended"] is not None:
            found["ended"] = f"The training ended {duration(silent)} ago; the same command continues it."
        elif silent > _SILENT:
            found["silent"] = f"The training has written nothing for {duration(silent)}: it has died or hangs."
        bad, samples = sum(status["bad_rows"].values()), status["samples"]
        if bad > _BAD * max(1, bad + samples):
            found["bad rows"] = f"{percent(bad / (bad + samples))} of the rows are left out as bad: see bad_rows.jsonl."
        if (published := status["published"]) is not None:
            if published["why"]:
                found["not published"] = f"{published['why'][0].upper()}{published['why'][1:].rstrip('.')}."
            elif self._is_overdue:
                found["overdue"] = f"The last release is {duration(self.release_age or 0.0)} old."
        return found

    @property
    def _is_overdue(self) -> bool:
        age, status = self.release_age, self.status
        if age is None or status["ended"] is not None or status["samples"] <= status["release"]["samples"]:
            return False
        return bool(age > max(_SILENT, _OVERDUE * status["published"]["every"]))

    @property
    def release_age(self) -> float | None:
        """Seconds since the last release; None before there is one."""
        release = self.status["release"]
        return None if release is None else max(0.0, self.now - release["published"])

    def _of_quality(self) -> dict[str, str]:
        recent, before = self.points[-_RECENT:], self.points[-_RECENT - _BEFORE : -_RECENT]
        found, losses = dict[str, str](), [one.point.metrics.relative_loss for one in recent]
        if len(recent) < _RECENT:
            return found
        if min(losses) > 1:
            text = "The model is worse than a constant: its relative loss has been above 1 at the last 3 points."
            found["worse than a constant"] = text
        earlier = [one.point.metrics.loss for one in before if math.isfinite(one.point.metrics.loss)]
        lately = [one.point.metrics.loss for one in recent if math.isfinite(one.point.metrics.loss)]
        if len(earlier) >= _BEFORE // 2 and lately:
            mean = sum(earlier) / len(earlier)
            spread = math.sqrt(sum((one - mean) ** 2 for one in earlier) / (len(earlier) - 1))
            if min(lately) > mean + max(3 * spread, 0.02 * mean):
                now = sum(lately) / len(lately)
                found["loss"] = f"The loss has risen: {metric(now)} lately, {metric(mean)} before."
        ratios = [one.point.calibration for one in recent if one.point.calibration is not None]
        if len(ratios) == _RECENT and all(one > 0 and abs(math.log(one)) > _OFF for one in ratios):
            text = f"Predictions no longer add up to the labels: the ratio of their sums is {metric(ratios[-1])}."
            found["calibration"] = text
        return found

    def _of_size(self) -> dict[str, str]:
        point = self.points[-1].point if self.points else None
        if point is None or point.scheduled_rate is None or point.feature_rate <= _TOO_LARGE * point.scheduled_rate:
            return {}
        shares = (
            f"{percent(point.feature_rate)} of the features seen, and the target is {percent(point.scheduled_rate)}"
        )
        return {"size": f"The model is larger than its target: it keeps {shares}."}

    def _of_columns(self) -> dict[str, str]:
        found = dict[str, str]()
        for what, limit, of in (("moved", _MOVED, "drift"), ("unseen", _UNSEEN, "unseen")):
            values = getattr(self.points[-1], of) if self.points else {}
            if names := [name for name, value in values.items() if value > limit][:5]:
                shown = {name: f"{values[name]:.2f}" if what == "moved" else f"{values[name]:.0%}" for name in names}
                listed = ", ".join(f"{name!r} ({value})" for name, value in shown.items())
                found[f"{what}: {', '.join(names)}"] = (
                    f"Columns have moved since the first rows: {listed} (PSI above {_MOVED})."
                    if what == "moved"
                    else f"Most values are not in the first rows: {listed}."
                )
        return found

    def as_plain(self) -> dict[str, Any]:
        """The object of `--json`."""
        last = self.points[-1] if self.points else None
        lately: dict[str, Any] = (
            {} if last is None else {"mean_label": last.mean_label, "new_features": last.new_features}
        )
        lately |= {} if last is None else vars(last.point.metrics)
        release = self.status["release"]
        return {
            "warnings": list(self.warnings),
            **{name: self.status[name] for name in ("samples", "rows_per_s", "waiting", "bad_rows", "clicks", "ended")},
            **lately,
            "release": None if release is None else release["number"],
            "release_age": self.release_age,
            "published": self.status["published"],
        }

    def in_words(self) -> list[tuple[str, str]]:
        """The key figures: what each is, and its value."""
        return [(one.label.lower(), f"{one.value}  ({one.note})") for one in _tiles(self)]


def render(view: View, refresh: int | None = None) -> str:
    """The page: warnings, key figures, charts, drift. It loads nothing, but itself every `refresh` seconds."""
    status, points = view.status, view.points
    last = points[-1] if points else None
    moved = [] if last is None else sorted(last.drift.items(), key=lambda one: -one[1])[:40]
    page = (
        page_environment("sparsegroup.streaming")
        .get_template("watch.html.jinja")
        .render(
            title=f"Live: {view.folder.resolve().name}",
            lead=f"{count(status['samples'])} rows learnt, as of {_clock(status['at'])} UTC.",
            warnings=view.warnings,
            tiles=_tiles(view),
            charts=_charts(points),
            window=WINDOW,
            moved=[(name, psi, last.unseen[name]) for name, psi in moved] if last is not None else [],
            bad_rows=sorted(status["bad_rows"].items(), key=lambda one: -one[1]),
        )
    )
    head = "" if refresh is None else f'<meta http-equiv="refresh" content="{refresh}">\n'
    return page.replace("<title>", f"{head}<title>", 1)


def _tiles(view: View) -> list[Tile]:
    status, release, published = view.status, view.status["release"], view.status["published"]
    rows = status["waiting"]["in_memory"] + status["waiting"].get("rows", 0)
    behind = f", {size(status['waiting']['bytes'])} in the source" if status["waiting"].get("bytes") else ""
    tiles = [Tile("Rows learnt", short(status["samples"]), f"{per_second(status['rows_per_s'])} lately")]
    tiles.append(Tile("Rows waiting", short(rows), f"for their batch{behind}"))
    if status["clicks"] is not None:
        late = status["clicks"]
        tiles.append(Tile("Late clicks", short(late["late"]), f"and {count(late['without a row'])} without a row"))
    if view.points:
        last = view.points[-1]
        point = last.point
        tiles += [
            Tile(f"{title[0].upper()}{title[1:]}", metric(getattr(point, name)), "of the rows of the last point")
            for name, title in list(titles_of(point.metrics).items())[:2]
        ]
        if point.calibration is not None:
            tiles.append(Tile("Calibration", metric(point.calibration), "predicted over real; 1 is perfect"))
        if last.mean_label is not None:
            tiles.append(Tile("Mean label", metric(last.mean_label), "the click rate of these rows"))
        if last.new_features is not None:
            tiles.append(Tile("New features", percent(last.new_features), "that no row before had"))
        target = "" if point.scheduled_rate is None else f", target {percent(point.scheduled_rate)}"
        live = f"{count(point.live_rows)} live of {count(point.features_seen)}, {percent(point.feature_rate)}{target}"
        tiles.append(Tile("Table", size(point.table_bytes), live))
    if release is not None and published is not None:
        age = view.release_age or 0.0
        tiles.append(Tile("Release", str(release["number"]), f"{release['kind']}, {duration(age)} old"))
        each = published["bytes"] / max(1, published["releases"])
        minute = each * 60 / published["every"] if published["every"] else math.nan
        tiles.append(Tile("Bytes published", size(published["bytes"]), f"about {size(minute)} a minute"))
    return tiles


def _charts(points: Sequence[LivePoint]) -> list[Chart]:
    more = (
        along("Mean label", "%", points, [("of the rows since the last point", "mean_label", "blue")]),
        along("New features", "%", points, [("of all features", "new_features", "green")], scale="zero"),
    )
    return [*run_charts([one.point for one in points], None), *(one for one in more if one is not None)]


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def serve_page(folder: Path, host: str, port: int, refresh: int, stop: threading.Event) -> str:
    """Serve the live page of a run in another thread, until `stop` is set; gives its address.

    Raises:
        RunError: The address cannot be taken.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path not in ("/", "/status.json"):
                return self.send_error(HTTPStatus.NOT_FOUND)
            try:
                view = View.of(folder)
            except RunError as error:
                return self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain=str(error))
            is_page = self.path == "/"
            text = render(view, refresh) if is_page else json.dumps(finite(view.as_plain()))
            body = text.encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8" if is_page else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise RunError(f"{host}:{port}: cannot be served at ({error.strerror}); give another `port`", "port") from error
    threading.Thread(target=server.serve_forever, args=(0.2,), name="sparsegroup-watch", daemon=True).start()

    def shut() -> None:
        stop.wait()
        server.shutdown()
        server.server_close()

    threading.Thread(target=shut, name="sparsegroup-watch-end", daemon=True).start()
    return f"http://{host}:{server.server_port}/"


def post_warnings(url: str, folder: Path, warnings: Sequence[str]) -> bool:
    """POST warnings to a URL as JSON; gives whether it has taken them. If not, that is a warning in the log."""
    body = json.dumps({"run": str(folder), "warnings": list(warnings), "text": "\n".join(warnings) or "All is well."})
    try:
        request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10):
            return True
    except (OSError, ValueError, HTTPException) as error:
        name, why = public_address(url, has_public_path=False), without_secrets(error, url, has_public_path=False)
        _logger.warning("the webhook %s does not answer: %s", name, why)
        return False
