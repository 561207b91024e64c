"""Which names are public, and where each has its page; read off the source by Griffe, which imports nothing."""

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import griffe

PACKAGE = "sparsegroup"
ROOMS = (
    "table",
    "rules",
    "penalties",
    "objectives",
    "models",
    "data",
    "training",
    "tuning",
    "checkpoint",
    "integrations",
    "serving",
    "publishing",
    "server",
    "estimator",
)
"""The packages that users import from, beside `sparsegroup` itself."""
BESIDES = {"training": ("baseline.BaselineCallback", "baseline.LinearBaseline")}
"""Package → names for users that its `__all__` does not have."""


@dataclass(frozen=True)
class PublicName:
    """A name with a page.

    Attributes:
        path: The shortest path that it is imported by.
        page: The file of its page, in the documentation's folder.
        definition: The class, function or value.
    """

    path: str
    page: str
    definition: griffe.Object


@dataclass(frozen=True)
class PublicRoom:
    """A package with its public names.

    Attributes:
        path: The package.
        summary: The first line of its docstring.
        names: Name, as it is written after the package → what has its page, here or under a shorter path.
    """

    path: str
    summary: str
    names: dict[str, PublicName]

    @property
    def page(self) -> str:
        """The file of its index, in the documentation's folder."""
        return "/".join(["reference", *self.path.split(".")[1:], "index.md"])

    @property
    def own(self) -> dict[str, PublicName]:
        """The names that no shorter path has."""
        return {name: public for name, public in self.names.items() if public.path == f"{self.path}.{name}"}


def public_rooms(source: Path) -> list[PublicRoom]:
    """The packages, `sparsegroup` first, with the names of their `__all__`, in its order, and those in `BESIDES`.

    Args:
        source: The folder that holds the package.
    """
    package = cast(griffe.Module, griffe.load(PACKAGE, search_paths=[source], resolve_aliases=True))
    found: dict[str, PublicName] = {}
    rooms = []
    for module in (package, *(cast(griffe.Module, package[room]) for room in ROOMS)):
        names = {}
        for name in [*map(str, module.exports or ()), *BESIDES.get(module.name, ())]:
            member = module[name]
            definition = cast(griffe.Object, member.final_target if member.is_alias else member)
            if definition.path not in found:
                path = f"{module.path}.{name}"
                page = _page_of(path, definition, {other.page.lower() for other in found.values()})
                found[definition.path] = PublicName(path, page, definition)
            names[name] = found[definition.path]
        rooms.append(PublicRoom(module.path, first_line(module), names))
    return rooms


def first_line(definition: griffe.Object) -> str:
    """The first line of the docstring; empty without one."""
    return definition.docstring.value.partition("\n")[0] if definition.docstring else ""


def inherited_members(public: PublicName, rooms: list[PublicRoom]) -> list[str]:
    """The public members with a docstring that a class has from bases without a page."""
    if not isinstance(public.definition, griffe.Class):
        return []
    with_page = {other.definition.path for room in rooms for other in room.names.values()}
    found = {
        name: cast(griffe.Object, alias.final_target) for name, alias in public.definition.inherited_members.items()
    }
    return [
        name
        for name, member in found.items()
        if not name.startswith("_") and member.docstring and cast(griffe.Object, member.parent).path not in with_page
    ]


def _page_of(path: str, definition: griffe.Object, taken: Set[str]) -> str:
    """`serving.Export` and `serving.export` would be one file where upper and lower case are the same."""
    page = "/".join(["reference", *path.split(".")[1:]])
    return f"{page}_{definition.kind.value}.md" if f"{page}.md".lower() in taken else f"{page}.md"
