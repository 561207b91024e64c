"""Warnings and the live page of a training that follows a stream."""

import json
import re
import threading
import urllib.request
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import polars as pl
import pytest
from support.streams import FrameSource, rows_of_clicks

from sparsegroup.errors import RunError
from sparsegroup.streaming import live
from sparsegroup.streaming.follow import Follower
from sparsegroup.streaming.live import STATUS
from sparsegroup.streaming.watch import View, post_warnings, serve_page
from sparsegroup.training import Config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run over rows whose sites are others from the middle on."""
    others = rows_of_clicks(20_000, 1, 20_000).with_columns(site="x" + pl.col("site"))
    frame = pl.concat([rows_of_clicks(20_000), others])
    folder = tmp_path_factory.mktemp("watch") / "run"
    config = Config.of(model="lr", batch_size=100, label="click", compile="never")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "_LOOK_EVERY", 0.0)
        Follower.begin(folder, config, FrameSource(frame, [5_000] * 8), first_rows=1_000).follow()
    return folder


def viewed(run, **changes):
    view = View.of(run)
    return View(view.folder, {**view.status, **changes}, view.points, view.status["at"] + changes.pop("later", 1.0))


def test_the_points_say_what_has_moved(run):
    points = View.of(run).points
    assert [one.samples for one in points] == [10_000, 20_000, 30_000, 40_000]
    assert points[0].drift["site"] < 0.1
    assert points[0].unseen["site"] == 0
    assert points[-1].unseen["site"] == 1
    assert points[-1].learnt_until == 1_700_000_000 + 39_999
    assert 0.2 < points[-1].mean_label < 0.5
    assert points[0].new_features > points[1].new_features


def test_warnings_say_what_to_look_at(run):
    view = viewed(run, ended=None)
    assert [one for one in view.warnings if "'site'" in one and "PSI" in one]
    assert [one for one in view.warnings if "not in the first rows: 'site' (100%)" in one]
    words = {
        "has died or hangs": {"ended": None, "later": 120.0},
        "the same command continues it": {"ended": ""},
        "failed 1.0 s ago: OSError: away.": {"ended": "OSError: away"},
        "left out as bad": {"bad_rows": {"label": 5_000}},
        "The model of 5 rows is not published: x.": {"published": {"why": "the model of 5 rows is not published: x"}},
    }
    for text, changes in words.items():
        assert any(text in one for one in viewed(run, **changes).warnings), text
        assert not any(text in one for one in view.warnings), text
    first, later = viewed(run, ended=None, later=120.0), viewed(run, ended=None, later=187.0)
    assert first.warnings != later.warnings  # their kinds do not change with their figures
    assert list(first.findings) == list(later.findings) == ["silent", "moved: site", "unseen: site"]


@pytest.mark.parametrize(("rate", "target", "warns"), [(1.0, 0.1, True), (0.11, 0.1, False), (1.0, None, False)])
def test_a_model_that_is_larger_than_its_target_is_a_warning(run, rate, target, warns):
    view = viewed(run, ended=None)
    last = replace(view.points[-1].point, feature_rate=rate, scheduled_rate=target)
    view = View(view.folder, view.status, [replace(view.points[-1], point=last)], view.now)
    assert ("size" in view.findings) == warns
    assert any("target 10" in value for _, value in view.in_words()) == (target is not None)
    assert not warns or {"100", "10"} <= set(re.findall(r"(\d+)[.\d]* %", view.findings["size"]))


def test_the_page_shows_figures_charts_and_warnings_and_is_served_until_it_is_stopped(run):
    stop = threading.Event()
    address = serve_page(run, "127.0.0.1", 0, 5, stop)
    with urllib.request.urlopen(address) as answer:
        page = answer.read().decode()
    assert '<meta http-equiv="refresh" content="5">' in page
    assert page.count("<svg") >= 4
    for text in ("Rows learnt", "Calibration", "Mean label", "How far the columns have moved"):
        assert text in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    with urllib.request.urlopen(f"{address}status.json") as answer:
        assert json.load(answer)["samples"] == 40_000
    with pytest.raises(urllib.error.HTTPError, match="404") as error:
        urllib.request.urlopen(f"{address}other")
    error.value.close()
    stop.set()
    for thread in [one for one in threading.enumerate() if one.name.startswith("sparsegroup-watch")]:
        thread.join()


def test_a_webhook_gets_the_warnings(run, caplog):
    got = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert post_warnings(f"http://127.0.0.1:{server.server_port}/", run, ["Something has moved."])
        thread.join()
        port = server.server_port
    assert got == [{"run": str(run), "warnings": ["Something has moved."], "text": "Something has moved."}]
    assert not post_warnings(f"http://127.0.0.1:{port}/", run, [])
    assert "does not answer" in caplog.text


def test_a_folder_without_a_record(tmp_path):
    with pytest.raises(RunError, match="no run follows a stream there"):
        View.of(tmp_path)
    (tmp_path / STATUS).write_text("{")
    with pytest.raises(RunError, match="damaged"):
        View.of(tmp_path)
