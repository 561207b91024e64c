"""The pages of settings and of commands, generated from their declarations; a hook of MkDocs."""

import re
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from sparsegroup.cli import app
from sparsegroup.cli.app import load_command
from sparsegroup.settings.declared import DECLARED

SETTINGS, COMMANDS = "<!-- settings -->", "<!-- commands -->"
EVERYWHERE = ("help", "json", "quiet", "verbose")
"""Options of every command, which another page explains."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    for mark, tables in ((SETTINGS, settings_tables), (COMMANDS, command_tables)):
        if mark in markdown:
            markdown = markdown.replace(mark, tables())
    return markdown


def settings_tables() -> str:
    """A table for each section of `config.yaml`: key, option or parameter, default, and what it means."""
    lines, section = list[str](), ""
    for one in DECLARED.values():
        if not one.key.startswith(f"{section}."):
            section = one.key.split(".")[0]
            lines += ["", f"## `{section}`", "", *_header("key", "option or parameter", "default", "meaning")]
        name = "--" + one.short.replace("_", "-") if one.panel else one.short
        lines.append(_row(f"`{one.key}`", f"`{name}`", one.default or "–", one.help))
    return "\n".join(lines).strip()


def command_tables() -> str:
    """A section for each command: its usage and help, and a table of options for each panel of its `--help`."""
    group = get_command(app)
    context = group.make_context("sparsegroup", [], resilient_parsing=True)
    lines = list[str]()
    for name in group.list_commands(context):
        command = load_command(name)
        inside = command.make_context(name, [], parent=context, resilient_parsing=True)
        lines += ["", f"## {name}", "", *_paragraphs(command.help or ""), ""]
        lines += ["```", command.get_usage(inside).removeprefix("Usage: "), "```"]
        panels: dict[str, list[str]] = {}
        for parameter in command.get_params(inside):
            record = parameter.get_help_record(inside)
            if record and parameter.name not in EVERYWHERE:
                title = parameter.rich_help_panel or ("Options" if parameter.opts[0].startswith("-") else "Arguments")
                names, text = record
                panels.setdefault(title, []).append(_row(f"`{names}`", " ".join(text.split())))
        for title, rows in panels.items():
            lines += ["", *_header(title, ""), *rows]
    return "\n".join(lines).strip()


def _paragraphs(text: str) -> Iterator[str]:
    for line in text.replace("\b", "").splitlines():
        yield line.strip()


def _header(*names: str) -> list[str]:
    return ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]


def _row(*cells: str) -> str:
    """A line of a table; a bar between backquotes is one already."""
    escaped = (re.sub(r"(`[^`]*`)|\|", lambda found: found[1] or r"\|", cell) for cell in cells)
    return "| " + " | ".join(escaped) + " |"
