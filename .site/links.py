"""Links from files of the repository to pages of the site, and dead ones of a built site."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from entries import ROOT

__all__ = ["LINK", "PROSE", "dead_links", "relinked"]

PROSE = {"CHANGELOG.md": "changes", "CONTRIBUTING.md": "contributing"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def relinked(text: str, origin: Path) -> str:
    """Rewrite a text's links from files of the repository to pages; what has no page is a word."""

    def other(found: re.Match[str]) -> str:
        picture, words, target = found.groups()
        if re.match(r"[a-z][a-z+.-]*:|#", target):
            return found[0]
        path, _, place = target.partition("#")
        page = page_of((origin.parent / path).resolve().relative_to(ROOT), bool(picture))
        if page is None:
            return f"`{words.strip('`')}`" if not picture else words
        return f"{picture}[{words}]({page}{'#' + place if place else ''})"

    return LINK.sub(other, text)


def page_of(path: Path, picture: bool = False) -> str | None:
    """Return the page of a file of the repository, from the site's root; None if it has none."""
    text = path.as_posix()
    if picture or path.parts[0] == "figures" and path.suffix in (".svg", ".png"):
        # SVG follows the page's mode
        vector = path.with_suffix(".svg")
        return f"/{vector if (ROOT / vector).exists() else path}"
    if path.suffix == ".ipynb" and (ROOT / path).exists():
        return f"/{text}"
    if text in ("README.md", "RESULTS.md"):
        return {"README.md": "/guide/index.md", "RESULTS.md": "/results.md"}[text]
    if text == ".site/dashboard.md":
        return "/dashboard.md"
    if text in PROSE:
        return f"/guide/{PROSE[text]}.md"
    if path.parts[0] == "docs" and path.suffix == ".md":
        return f"/guide/{path.relative_to('docs')}"
    if path.parts[0] == "alkit":
        module = [*path.parts[:-1]] + (
            [] if path.stem == "__init__" or not path.suffix else [path.stem]
        )
        return f"/autoapi/{'/'.join(module)}/index.rst"
    return None


class _Links(HTMLParser):
    """Gathers what a page links to and the places in it that can be linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.places: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Look at a tag."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(unquote(value))
            if name == "id" and value:
                self.places.add(value)


def dead_links(folder: Path) -> list[str]:
    """Return the links within a built site that lead nowhere, as sentences."""
    pages = {}
    for path in (each for each in folder.rglob("*.html") if "_static" not in each.parts):
        pages[path] = _Links()
        pages[path].feed(path.read_text(encoding="utf-8"))
    found = []
    for path, page in pages.items():
        for target in page.targets:
            if re.match(r"[a-z][a-z+.-]*:", target):
                continue
            file, _, place = target.partition("#")
            there = (path.parent / file.partition("?")[0]).resolve() if file else path
            if not there.exists():
                found.append(f"{path.relative_to(folder)} links to {target}, which is not there")
            elif place and there in pages and place not in pages[there].places:
                found.append(f"{path.relative_to(folder)} links to {target}: no such place")
    return found
