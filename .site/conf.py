"""Sphinx's configuration of the site, whose sources are the project's own files."""

import re
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

ROOT = Path(__file__).resolve().parent.parent
project, author, copyright = "alkit", "the alkit authors", "the alkit authors, MIT licence"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = ".site/index"
include_patterns = [".site/*.md", "*.md", "docs/**.md", "notebooks/*.ipynb"]
exclude_patterns = [".venv*", ".git", "build", "runs", "data", "glove", "tests", "alkit"]
suppress_warnings = ["mystnb.unknown_mime_type", "myst.xref_missing", "toc.not_included"]

nb_execution_mode = "off"  # the course has its outputs; no page asks another server for anything
nb_ipywidgets_js, nb_output_stderr = {}, "remove"
nb_render_markdown_format = "myst"  # tables in outputs, too
nb_mime_priority_overrides = [("html", "text/html", 5)]  # a dashboard's still before its view
myst_enable_extensions = ["dollarmath", "amsmath", "attrs_inline"]
myst_heading_anchors, myst_update_mathjax = 3, False
html_math_renderer = "mathml"

html_theme, html_copy_source, html_show_sourcelink = "pydata_sphinx_theme", False, False
html_title, html_css_files = "alkit", ["site.css"]
html_static_path = [str(ROOT / ".site" / "static"), str(ROOT / "build" / "site" / "data")]


def _formula(block: bool) -> Any:
    def visit(self: Any, node: Any) -> None:
        # sizes of brackets have no place in MathML, which finds them itself
        text = re.sub(r"\\[bB]igg?[lr]?(?![a-zA-Z])", "", node.astext())
        self.body.append(tex2mathml(text.replace(r"\dots", r"\ldots"), as_block=block))
        raise SkipNode

    return visit


def setup(app: Any) -> None:
    """Let formulas be MathML, which needs no script."""
    app.add_html_math_renderer("mathml", (_formula(False), None), (_formula(True), None))
