"""A page for each public name, an index for each room, and both in the navigation; a hook of MkDocs."""

import json
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from public_api import PublicName, PublicRoom, first_line, inherited_members, public_rooms

INDEX = "reference/index.md"
"""What stands in mkdocs.yml in place of all these pages."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = _with_pages(config.nav, _navigation(_rooms(config)))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    rooms = _rooms(config)
    for room in rooms:
        files.append(File.generated(config, room.page, content=index_page(room, rooms)))
        for public in room.own.values():
            files.append(File.generated(config, public.page, content=name_page(public, rooms)))
    return files


def name_page(public: PublicName, rooms: list[PublicRoom]) -> str:
    return f"::: {public.path}\n    options: {json.dumps({'inherited_members': inherited_members(public, rooms)})}\n"


def index_page(room: PublicRoom, rooms: list[PublicRoom]) -> str:
    if room is not rooms[0]:
        return f"# {room.path}\n\n{room.summary}\n\n" + _table(room)
    others = "".join(f"| [`{one.path}`](../{one.page}) | {one.summary} |\n" for one in rooms[1:])
    return (
        "# API reference\n\nA page for each public name, under its shortest path. All of `sparsegroup`:\n\n"
        f"{_table(room)}\n## Packages\n\n| package | |\n|---|---|\n{others}"
    )


def _table(room: PublicRoom) -> str:
    lines = [f"| [`{name}`][{public.path}] | {_cell(public)} |\n" for name, public in room.names.items()]
    return "".join(["| name | |\n|---|---|\n", *lines])


def _cell(public: PublicName) -> str:
    return first_line(public.definition).replace("|", "\\|")


def _rooms(config: MkDocsConfig) -> list[PublicRoom]:
    return public_rooms(Path(config.config_file_path).parent / "src")


def _navigation(rooms: list[PublicRoom]) -> list[Any]:
    pages = [[{name: public.page} for name, public in room.own.items()] for room in rooms]
    below = [{room.path: [room.page, *own]} for room, own in zip(rooms[1:], pages[1:], strict=True)]
    return [INDEX, {rooms[0].path: pages[0]}, *below]


def _with_pages(nav: Any, pages: list[Any]) -> Any:
    """A navigation with `pages` for `INDEX`."""
    if isinstance(nav, list):
        return [_with_pages(item, pages) for item in nav]
    if isinstance(nav, dict):
        return {title: _with_pages(item, pages) for title, item in nav.items()}
    return pages if nav == INDEX else nav
