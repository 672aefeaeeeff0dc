"""Sphinx's configuration of the site; `build.py` writes the sources that it reads."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

SECTION = re.compile(r"(Args|Returns|Raises|Attributes|Yields|Example|Note)s?: ?(.*)$")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

project, author, copyright = "alkit", "the alkit authors", "the alkit authors, MIT licence"
extensions = [
    "myst_nb",
    "sphinx_design",
    "sphinx_copybutton",
    "autoapi.extension",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["**/*.clean.ipynb"]
default_role = "py:obj"

# notebooks come executed, their bars of progress on stderr: nothing runs here, and no page asks
# another server for anything
nb_execution_mode, nb_ipywidgets_js, nb_output_stderr = "off", {}, "remove"
nb_render_markdown_format = "myst"  # tables in outputs, too
nb_mime_priority_overrides = [("html", "text/html", 5)]  # a dashboard's still before its view
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "attrs_inline"]
myst_heading_anchors, myst_update_mathjax = 3, False
html_math_renderer = "mathml"

autoapi_dirs, autoapi_options = [str(ROOT / "alkit")], ["members"]
autoapi_add_toctree_entry, autoapi_keep_files = False, False
autoapi_python_class_content = "class"

html_theme, html_copy_source, html_show_sourcelink = "pydata_sphinx_theme", False, False
html_title = "alkit"
html_theme_options = {
    "navigation_with_keys": True,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_static_path = [str(ROOT / ".site" / "static"), str(ROOT / "build/site/source/_data")]
html_css_files = ["site.css"]
# cells are as wide as code: a page has its own contents beside it, and no list of pages
html_sidebars: dict[str, list[str]] = {
    page: [] for page in ("index", "dashboard", "results", "notebooks/[0-9]*")
}
# autoapi reads sources without importing them; a name in a docstring need not be one of the API
suppress_warnings = ["autoapi.python_import_resolution", "mystnb.unknown_mime_type", "ref.python"]


def _readable(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make plain-text docstrings of the house into RST for napoleon: diagrams stay diagrams.

    Shown as they stand: indented paragraphs outside the sections, and paragraphs set in columns.
    """
    made: list[str] = []
    section = False
    for paragraph in _paragraphs(lines):
        if not paragraph[0].startswith(" "):
            section = SECTION.match(paragraph[0]) is not None
            if paragraph[0] == "Example:":
                made += ["**Example**", "", "::", "", *paragraph[1:], ""]
            elif not section and _in_columns(paragraph):
                made += ["::", "", *("    " + line for line in paragraph), ""]
            else:
                made += [*_escaped(paragraph), ""]
        elif section:
            made += [*_escaped(paragraph), ""]
        else:
            made += ["::", "", *paragraph, ""]
    lines[:] = made


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Cut at blank lines and before a section's head, whose text starts on a line of its own."""
    found: list[str] = []
    for line in lines:
        head = SECTION.match(line)
        if found and (head or not line.strip()):
            yield found
            found = []
        if head and head[2]:
            found += [f"{head[1]}:", f"    {head[2]}"]
        elif line.strip():
            lost = found and SECTION.match(found[0]) and not line.startswith(" ")
            found.append(f"    {line}" if lost else line)
    if found:
        yield found


def _in_columns(paragraph: list[str]) -> bool:
    gaps = [line for line in paragraph if re.search(r"\S {3,}\S", line)]
    return len(paragraph) > 1 and 2 * len(gaps) >= len(paragraph)


def _escaped(paragraph: list[str]) -> list[str]:
    """A bar is a bar, and what stands in backticks may be a part of a formula or a word."""
    text = "\n".join(paragraph).replace("|", r"\|")

    def name(found: re.Match[str]) -> str:
        after = text[found.end() : found.end() + 1]
        return f"``{found[1]}``\\ " if re.match(r"[\w^]", after) else found[0]

    return re.sub(r"`([^`]+)`", name, text).split("\n")


def _formula(block: bool) -> Any:
    def visit(self: Any, node: Any) -> None:
        # sizes of brackets have no place in MathML, which finds them itself
        text = re.sub(r"\\[bB]igg?[lr]?(?![a-zA-Z])", "", node.astext())
        text = text.replace(r"\dots", r"\ldots")
        made = tex2mathml(text, as_block=block)
        # a pair of bars is of one height, also where the second one carries an exponent
        self.body.append(re.sub(r"<mo[^>]*>([‖|])</mo>", r'<mo stretchy="false">\1</mo>', made))
        raise SkipNode

    return visit


def setup(app: Any) -> None:
    """Connect the two hooks."""
    app.connect("autodoc-process-docstring", _readable, priority=100)
    app.add_html_math_renderer("mathml", (_formula(False), None), (_formula(True), None))
