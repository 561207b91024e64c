"""The tables of settings on the page of settings, made of their declarations; a hook of MkDocs."""

from typing import Any

from sparsegroup.settings.declared import DECLARED

MARK = "<!-- settings -->"
HEADER = "| key | option or parameter | default | meaning |"


def on_page_markdown(markdown: str, **_: Any) -> str:
    return markdown.replace(MARK, settings_tables()) if MARK in markdown else markdown


def settings_tables() -> str:
    """A section of `config.yaml` each: key, option or parameter, default, and what it means."""
    lines, section = list[str](), ""
    for one in DECLARED.values():
        if not one.key.startswith(f"{section}."):
            section = one.key.split(".")[0]
            lines += [
                "",
                f"## `{section}`",
                "",
                "| key | option or parameter | default | meaning |",
                "|---|---|---|---|",
            ]
        name = "--" + one.short.replace("_", "-") if one.panel else one.short
        cells = (f"`{one.key}`", f"`{name}`", one.default or "–", one.help)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines).strip()
