"""Tables of HTML, by which notebooks show objects that have `_repr_html_`."""

from collections.abc import Iterable, Sequence
from html import escape


def html_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table whose texts are escaped. Columns of numbers have separators of thousands and end at the right."""

    def cell(value: object) -> str:
        is_number = isinstance(value, int | float)
        text = f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)
        return f'<td style="text-align: {"right" if is_number else "left"}">{escape(text)}</td>'

    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    caption = f"<caption>{escape(caption)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
