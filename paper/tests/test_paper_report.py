"""A report: `report.json`, the pages made of it, and its pictures."""

import html
import json
import math
import re
from dataclasses import asdict, replace

import numpy as np
import pytest

from html_page import Page
from sparsegroup_paper.figures import to_png, to_svg
from sparsegroup_paper.report import (
    ORDER,
    escape,
    read_report,
    render_report,
    section_markdown,
    write_pages,
    write_report,
    write_section,
)
from sparsegroup_paper.section import Facts, Figure, Section, Series, table

NAN = math.nan
FACTS = Facts(
    dataset="criteo_small",
    data=(("training rows", "180,000"), ("test rows", "20,000"), ("fields", "26 and 13 numbers")),
    command="sparsegroup-paper run --data logs/criteo_small --seeds 5 | tee log",
    date="2026-03-01",
    hours=37.5,
    versions=(("python", "3.11.7"), ("sparsegroup", "0.1.0"), ("torch", "2.13.0")),
)
LAMBDAS = (0.0, 1e-6, 1e-5, 1e-4)
LABELS = tuple(f"{group}{name}" for group in ("", "Group ") for name in ("Adam", "SGD", "A", "B", "C", "D"))


def curves(name, *labels):
    """AUC over λ, 0 among them, with error bars."""
    series = [
        Series(label, LAMBDAS, tuple(0.79 - index / 1000 - 10 * value for value in LAMBDAS), (4e-4,) * len(LAMBDAS))
        for index, label in enumerate(labels)
    ]
    return Figure(name, "Test AUC along λ21", "λ21", "test AUC", tuple(series), x_scale="log", note="Error bars: sd.")


def sample_section():
    rows = ("Adam", None, 0.7 + 0.01 / 3, 0.03, 60_000, None), ("Group Adam", 1e-5, 0.79, 0.002, 4_000, 5.97e-7)
    shown = "optimizer; λ21; AUC|.4f; feature rate|.2%; live rows; p|.2g"
    rates = (0.004, 0.03, 0.6)
    drawn = (
        Series("Group Adam", rates, (0.78, 0.785, 0.79)),
        Series("bound", rates, (0.77, 0.785, 0.789), style="dashed"),
        Series("Adam, not regularized", (), (0.7905,), style="level"),
    )
    return Section(
        "sparsity-vs-auc",
        "AUC at equal sparsity (Table 3, Figure 2)",
        findings=(
            "Group Adam keeps 4.28 % of the features at a test AUC of 0.7931.",
            "Where λ21 < 1e-5 & the norm is 's', *nothing* is lost: |difference| <= 0.0002.",
        ),
        method=("Each optimizer is trained with 5 seeds.", "The pruned model keeps the rows of largest norm."),
        tables=(table("optimizers", "Test AUC of all optimizers", shown, rows, "Mean of 5 seeds."),),
        figures=(
            curves("two", "Adam", "Group Adam"),
            curves("twelve", *LABELS),
            Figure("frontier", "AUC over the feature rate", "feature rate", "test AUC", drawn, x_scale="log"),
        ),
    )


def plain_section(name="regret", **changes):
    """Without figures, with awkward cells."""
    rows = ("a|b <i>", 5.97e-7, 1_234_567), ("c", None, None), ("d", NAN, -3)
    cells = table("cells", "Cells", "what*where; of_which|.2g; count", rows)
    section = Section(name, "Regret & bounds", ("No regrets.",), (), (cells,))
    return replace(section, **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A report of three sections, written in another order than that of the report."""
    folder = tmp_path_factory.mktemp("paper")
    for section in (plain_section("a-new-one"), plain_section(), sample_section()):
        write_section(section, folder)
    write_report(folder, FACTS)
    return folder


def test_markdown_has_numbers_for_people():
    assert section_markdown(plain_section()) == (
        "## Regret &amp; bounds\n\n- No regrets.\n\n**Cells**\n\n"
        "| what\\*where | of\\_which | count |\n"
        "| --- | ---: | ---: |\n"
        "| a\\|b &lt;i> | 6e-7 | 1,234,567 |\n"
        "| c | – | – |\n"
        "| d | – | -3 |\n"
    )


def test_the_report_has_facts_pictures_and_sections_in_order(folder):
    text = (folder / "report.md").read_text(encoding="utf-8")
    for line in (
        "# The paper's experiments on criteo\\_small",
        "| data set | criteo\\_small |",
        "| training rows | 180,000 |",
        "| date | 2026-03-01 |",
        "| computing, added up over processes | 37 h 30 min |",
        "| torch | 2.13.0 |",
        "```sh\nsparsegroup-paper run --data logs/criteo_small --seeds 5 | tee log\n```",
        "*Error bars: sd.*",
    ):
        assert f"{line}\n" in text
    assert "![Test AUC along λ21: test AUC over λ21. Error bars: sd.](fig" in text
    pictures = re.findall(r"!\[.+?\]\((.+?)\)", text)
    assert pictures == [f"figures/sparsity-vs-auc-{name}.png" for name in ("two", "twelve", "frontier")]
    assert all((folder / path).is_file() for path in pictures)
    assert text.index("## AUC at equal sparsity") < text.index("## Regret") < text.rindex("## Regret")
    ids = re.findall(r'<section class="experiment" id="(.+?)"', (folder / "report.html").read_text(encoding="utf-8"))
    assert ids == ["sparsity-vs-auc", "regret", "a-new-one"]
    assert ORDER.index("sparsity-vs-auc") < ORDER.index("regret")


def test_a_report_is_read_as_it_was_written(folder, tmp_path):
    section = sample_section()
    rounded = json.loads(json.dumps(asdict(section)), parse_float=lambda text: float(f"{float(text):.7g}"))
    read = {one.name: one for one in read_report(folder).sections}
    assert json.loads(json.dumps(asdict(read["sparsity-vs-auc"]))) == rounded
    assert read["regret"].tables[0].rows == (("a|b <i>", 5.97e-7, 1_234_567), ("c", None, None), ("d", None, -3))
    gaps = Series("gaps", (1, 2.0), (NAN, math.inf), (0.1, NAN))
    write_section(plain_section(), tmp_path)
    write_section(plain_section("a-new-one"), tmp_path)
    again = plain_section(figures=(Figure("f", "F", "x", "y", (gaps,)),), findings=("Some regrets.",))
    write_section(again, tmp_path)  # it takes the place of the earlier one
    json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    first, second = read_report(tmp_path).sections
    assert (first.name, first.findings, second.name) == ("regret", ("Some regrets.",), "a-new-one")
    (series,) = first.figures[0].series
    assert series.x == (1.0, 2.0)
    np.testing.assert_array_equal(series.y + series.y_error, (NAN, NAN, 0.1, NAN))


def test_pages_are_made_again_from_the_numbers_alone_byte_for_byte(folder, tmp_path):
    (tmp_path / "report.json").write_bytes((folder / "report.json").read_bytes())
    write_pages(tmp_path)
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()} == set(files)
    assert all((tmp_path / path).read_bytes() == (folder / path).read_bytes() for path in files)
    (tmp_path / "none").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no report of `sparsegroup-paper run` is here: .*none"):
        write_pages(tmp_path / "none")
    write_report(tmp_path / "none", FACTS)
    assert "No experiment is complete." in (tmp_path / "none" / "report.html").read_text(encoding="utf-8")


def test_the_page_is_well_formed_loads_nothing_and_says_it_all(folder):
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    assert "@import" not in text
    links = [value for name, value in page.attributes if value and not name.startswith("xmlns")]
    assert not [value for value in links if re.search(r"https?:|^//|url\((?!#)", value)]
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    targets = {value for name, value in page.attributes if name in ("href", "xlink:href") and value}
    targets |= {f"#{found}" for _, value in page.attributes for found in re.findall(r"url\(#(.+?)\)", value or "")}
    assert {"#regret", "#sparsity-vs-auc"} < targets
    assert {target.removeprefix("#") for target in targets} <= set(ids)
    section = sample_section()
    for finding in section.findings:
        assert f"<li>{html.escape(finding, quote=False)}</li>" in text.replace("&#39;", "'")
    assert text.count(html.escape(section.findings[0])) == 2
    for expected in (*section.method, section.tables[0].note, section.figures[0].note, "37 h 30 min", FACTS.command):
        assert expected in page.text
    assert ["a|b <i>", "6e-7", "1,234,567"] in page.rows
    assert ["c", "–", "–"] in page.rows
    assert page.tags.count("svg") == 3
    drawn = " ".join(value or "" for name, value in page.attributes if name == "style")
    assert re.findall(r"(?:stroke|fill): #\w+", drawn) == []


def test_names_are_escaped():
    evil = "<script>alert(1)</script>\"'&"
    cells = table("t", evil, evil, [(evil,)], evil)
    figure = Figure("f", evil, evil, evil, (Series(evil, (1,), (1,)), Series(evil, (2,), (1,))), note=evil)
    section = Section("s", evil, (evil,), (evil,), (cells,), (figure,))
    page = Page(render_report(replace(FACTS, dataset=evil, data=((evil, evil),), command=evil), [section]))
    assert "script" not in page.tags
    assert page.text.count(evil) >= 12
    assert "<script" not in section_markdown(section)
    assert escape("*a*  `b`\n[c](d) \\") == "\\*a\\* \\`b\\` \\[c\\](d) \\\\"


def test_a_wrong_table_writes_nothing(tmp_path):
    for row in (("a", 1.0), ("a", 1.0, 0.5, 1), (1, 2, 3)):
        with pytest.raises(ValueError, match=r"argument 2 is (shorter|longer)|Unknown format code 's'"):
            write_section(plain_section(tables=(table("cells", "Cells", "what|s; n; m", [row]),)), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_pictures_fit_the_documentation_and_their_series_look_different():
    figure = sample_section().figures[1]
    png = to_png(figure)
    assert png.startswith(b"\x89PNG")
    width, height = (int.from_bytes(png[at : at + 4]) for at in (16, 20))
    assert width == 770
    assert 420 <= height <= 620
    svg = to_svg(figure, "twelve")
    legend = svg[svg.index('id="twelve-legend_1"') :]
    lines = re.findall(r'style="(fill: none; [^"]*stroke-width: 1.5[^"]*)"', legend)
    markers = re.findall(r"<use xlink:href=\"#twelve-(\w+)\"", legend)
    assert len(set(zip(lines, markers, strict=True))) == 12
    strokes = set(re.findall(r"stroke: ([^;]+);", " ".join(lines)))
    assert {"var(--blue, #0072b2)", "var(--sky, #56b4e9)", "currentColor"} <= strokes


def test_a_logarithmic_axis_has_ticks_to_read():
    for x, labels in (
        ((0.0, 1e-6, 1e-5, 1e-4), {"0", "1e-6", "1e-5", "0.0001"}),
        ((4.0, 8.0, 16.0, 32.0), {"4", "8", "16", "32"}),
        (tuple(np.geomspace(0.1, 0.2, 30).tolist()), {"0.1", "0.15"}),
        ((0.01,), {"0.01"}),
    ):
        svg = to_svg(Figure("f", "F", "x", "y", (Series("a", x, (0.79,) * len(x)),), x_scale="log"), "f")
        assert labels <= set(re.findall(r"<text[^>]*>([^<]*)</text>", svg[: svg.index("matplotlib.axis_2")]))


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_awkward_figures_are_drawn(scale):
    for series in (
        (),
        (Series("empty", (), ()),),
        (Series("nothing", (1.0, 2.0), (NAN, NAN), (NAN, NAN)),),
        (Series("zero", (0.0,), (0.0,)), Series("level", (), (0.0,), style="level")),
        (Series("wide", (1.0, 2.0), (0.1, 1.0), (0.5, NAN)), Series("bare", (1.0, 9.0), (1e-9, 1e9), style="line")),
        (Series("large", (1e6, 2e6), (-5e5, 1e7)),),
    ):
        Page(f"<p>{to_svg(Figure('f', 'F', 'x', 'y', series, x_scale=scale, y_scale=scale), 'f')}</p>")
