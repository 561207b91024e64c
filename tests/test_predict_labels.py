"""Logs without labels are scored as those with them."""

from pathlib import Path

import pytest
from test_predict import lines, place, write

from command import Run

__all__ = ["place"]  # the fixture


def test_a_log_without_labels_is_scored(place: Path, run: Run) -> None:
    content = [line.split(",", 1)[1] for line in lines(60)]
    log = write(Path("log.csv"), content)
    with_labels = write(Path("labels.csv"), lines(60))
    for options in ([], ["--on-bad-row", "skip"]):
        done = run("predict", place / "run", log, *options)
        assert done.returncode == 0, done.stderr
        scored = [line.rsplit(",", 1)[0] for line in run("predict", place / "run", with_labels).stdout.splitlines()]
        assert done.stdout.splitlines() == scored
        assert "AUC" not in done.stderr
    assert run("predict", place / "run", log, "--out", "a.parquet").returncode == 0


@pytest.mark.parametrize("name", ["criteo", "buckets", "avazu", "schema"])
def test_public_logs_without_labels(name: str, run: Run) -> None:
    rows, options = 300, list[str]()
    if name == "avazu":
        sites = ["site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"]
        devices = ["device_id", "device_ip", "device_model", "device_type", "device_conn_type"]
        fields = ["C1", "banner_pos", *sites, *devices, *(f"C{n}" for n in range(14, 22))]
        header = [",".join(["id", "click", "hour", *fields])]
        body = [
            [str(i), str(i % 2), f"1410{21 + i // 200}{i % 200 // 10:02}", *[f"v{i % (j + 2)}" for j in range(21)]]
            for i in range(rows)
        ]
        log, test = [",".join(row) for row in body], [",".join([row[0], *row[2:]]) for row in body]
        log, test = header + log, [header[0].replace("click,", ""), *test]
    elif name == "schema":
        Path("s.yaml").write_text("label: y\ncategorical: [a]\nnumeric: [b]\n")
        options = ["--schema", "s.yaml"]
        log = ["y,a,b", *(f"{i % 2},a{i % 9},{i % 5}" for i in range(rows))]
        test = [line.split(",", 1)[1] for line in log]
    else:
        body = [
            "\t".join([*[str(i * j % 50) for j in range(13)], *[f"c{i % (j + 2)}" for j in range(26)]])
            for i in range(rows)
        ]
        log, test = [f"{i % 2}\t{row}" for i, row in enumerate(body)], body
        options = ["--criteo-numbers", "buckets"] if name == "buckets" else []
    write(Path("log.csv"), log)
    write(Path("test.csv"), test)
    assert run("train", "log.csv", "--out", "run", *options).returncode == 0
    done = run("predict", "run", "test.csv")
    assert done.returncode == 0, done.stderr
    scored = [line.rsplit(",", 1)[0] for line in run("predict", "run", "log.csv").stdout.splitlines()]
    assert done.stdout.splitlines() == scored
