"""Formulas between dollars become MathML, which browsers draw by themselves; a hook of MkDocs behind Arithmatex."""

import re
from html import unescape

from math_core import LatexError, LatexToMathML
from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
_CONVERTER = LatexToMathML(fancy_error=False)


def on_page_content(html: str, *, page: Page, **_: object) -> str:
    """The page's HTML with MathML for what Arithmatex has marked.

    Raises:
        PluginError: A formula is not LaTeX that math-core knows.
    """

    def convert(formula: re.Match[str]) -> str:
        latex = unescape(formula[3]).strip()
        try:
            return _CONVERTER.convert_with_local_state(latex, displaystyle=formula[2] == "[")
        except LatexError as error:
            raise PluginError(f"{page.file.src_uri}: {latex!r} is no formula: {error}") from error

    return _FORMULA.sub(convert, html)
