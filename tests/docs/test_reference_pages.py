"""Every public name has a page and a docstring; the guides' links, formulas and table of keys hold."""

import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import xxhash
from markdown import markdown
from mkdocs.exceptions import PluginError

from declared_pages import EVERYWHERE, command_tables
from mathml import on_page_content
from public_api import BESIDES, PACKAGE, ROOMS, first_line, inherited_members, public_rooms
from reference_pages import INDEX, index_page, name_page, on_config
from sparsegroup.cli.app import COMMANDS, load_command
from sparsegroup.data.keys import keys_of

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def rooms():
    return public_rooms(ROOT / "src")


@pytest.fixture(scope="module")
def pages(rooms):
    return {public.path: public for room in rooms for public in room.own.values()}


def rendered(text: str) -> str:
    html = markdown(
        text, extensions=["tables", "pymdownx.arithmatex"], extension_configs={"pymdownx.arithmatex": {"generic": True}}
    )
    return on_page_content(html, page=SimpleNamespace(file=SimpleNamespace(src_uri="page.md")))


@pytest.mark.parametrize("path", [PACKAGE, *(f"{PACKAGE}.{room}" for room in ROOMS)])
def test_every_public_name_has_a_page(path, rooms, pages):
    (room,) = [room for room in rooms if room.path == path]
    exported = import_module(room.path).__all__
    assert list(room.names) == [*exported, *BESIDES.get(room.path.removeprefix("sparsegroup."), ())]
    index = index_page(room, rooms)
    for name, public in room.names.items():
        assert pages[public.path] is public
        assert f"| [`{name}`][{public.path}] | " in index
        assert name_page(public, rooms).startswith(f"::: {public.path}\n")


def test_a_name_at_two_places_has_one_page_under_the_shorter_path_and_no_two_pages_are_one_file(rooms, pages):
    table = next(room for room in rooms if room.path == "sparsegroup.table")
    assert table.names["HashEmbedding"].path == "sparsegroup.HashEmbedding"
    assert "sparsegroup.table.HashEmbedding" not in pages
    definitions = [public.definition.path for public in pages.values()]
    assert len(definitions) == len(set(definitions))
    files = [page.lower() for page in [*(room.page for room in rooms), *(public.page for public in pages.values())]]
    assert len(files) == len(set(files))  # where case does not count


def test_every_public_name_has_a_docstring_that_begins_with_a_sentence(rooms, pages):
    definitions = {room.path: room.summary for room in rooms}
    definitions |= {path: first_line(public.definition) for path, public in pages.items()}
    assert [path for path, line in definitions.items() if not line.endswith(".")] == []


def test_every_docstring_is_parsed_without_a_warning(rooms, pages, caplog):
    options = {"warn_unknown_params": False, "warn_missing_types": False}
    definitions = [public.definition for public in pages.values()]
    members = [member for one in definitions if one.is_class for member in one.members.values() if not member.is_alias]
    for definition in (*definitions, *members):
        if definition.docstring:
            definition.docstring.parse("google", **options)
    assert [record.getMessage() for record in caplog.records] == []


def test_the_page_of_commands_shows_every_argument_and_option():
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", command_tables(), re.MULTILINE | re.DOTALL))
    assert sections.keys() == COMMANDS.keys()
    for name, section in sections.items():
        for parameter in load_command(name).params:
            if parameter.name not in EVERYWHERE:
                shown = (
                    parameter.opts[-1]
                    if parameter.opts[0].startswith("-")
                    else parameter.metavar or parameter.name.upper()
                )
                assert f"`{shown}" in section or f" {shown}" in section, (name, shown)


def test_members_of_a_base_without_a_page_are_on_the_page_of_the_class(rooms, pages):
    assert "settle" in inherited_members(pages["sparsegroup.TargetRate"], rooms)
    assert inherited_members(pages["sparsegroup.GroupAdam"], rooms) == []  # they are with GroupOptimizer
    assert inherited_members(pages["sparsegroup.feature_rate"], rooms) == []


def test_the_navigation_has_every_page_in_place_of_the_index(pages):
    config = SimpleNamespace(
        config_file_path=str(ROOT / "mkdocs.yml"), nav=[{"Guide": ["a.md", {"API": INDEX}]}, "b.md"]
    )
    (guide, last) = on_config(config).nav
    index, own, *others = guide["Guide"][1]["API"]
    assert (guide["Guide"][0], index, last) == ("a.md", INDEX, "b.md")
    assert [path for room in others for path in room] == [f"sparsegroup.{room}" for room in ROOMS]
    entries = [*own["sparsegroup"], *(entry for room in others for names in room.values() for entry in names[1:])]
    assert [page for entry in entries for page in entry.values()] == [public.page for public in pages.values()]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_guides_link_to_pages_that_exist_and_write_formulas_that_are_read(guide, pages):
    text = guide.read_text(encoding="utf-8")
    assert not re.search("^:::", text, re.MULTILINE), "a name has one page: link to it"
    linked = re.findall(r"\]\[(sparsegroup[\w.]*)\]", text)
    assert [path for path in linked if path not in pages] == []
    assert "arithmatex" not in rendered(re.sub("^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def test_formulas_become_mathml_and_one_that_is_none_is_said_with_its_page():
    assert rendered("where $x_1 < 2$") == (
        "<p>where <math><msub><mi>x</mi><mn>1</mn></msub><mo>&lt;</mo><mn>2</mn></math></p>"
    )
    assert rendered("$$\n\\frac{c}{2}\n$$") == '<math display="block"><mfrac><mi>c</mi><mn>2</mn></mfrac></math>'
    assert rendered("from `$HOME` and $5 to $6") == "<p>from <code>$HOME</code> and $5 to $6</p>"
    with pytest.raises(PluginError, match=r"page\.md: '\\\\lamda' is no formula: .*[Uu]nknown command"):
        rendered(r"$\lamda$")


# docs/formats.md

ROW = re.compile(r"^\| (\d+) \| (?:`([^`]*)`(?: × (\d+))?|(empty)) \| (-?\d+) \| 0x([0-9A-F]{16}) \|$", re.MULTILINE)


def test_the_table_of_keys_holds_and_has_what_is_hard():
    """It is what the package and xxhash compute."""
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    values = set()
    for field, value, times, empty, key, unsigned in ROW.findall(text):
        value = "" if empty else value * int(times or 1)
        low = xxhash.xxh3_64_intdigest(value.encode()) & (1 << 56) - 1
        assert int(unsigned, 16) == int(field) << 56 | low
        assert int(key) == (int(unsigned, 16) - (1 << 64) if int(unsigned, 16) >> 63 else int(unsigned, 16))
        assert keys_of([value], int(field)).tolist() == [int(key)]
        values.add((value, int(key) < 0))
    texts = [value for value, _ in values]
    assert "" in texts
    assert any(not value.isascii() for value in texts)
    assert any(len(value.encode()) > 240 for value in texts)
    assert any(is_negative for _, is_negative in values)
    assert len(ROW.findall(text)) == len(re.findall(r"0x[0-9A-F]{16}", text)) >= 10
