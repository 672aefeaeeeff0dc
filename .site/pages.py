"""The pages that are no notebook: guide, front page, the notebooks' contents."""

import base64
import re
from collections.abc import Iterable

import nbformat
from books import alternative
from entries import ROOT, SOURCE, Entry, executed, sections, write
from links import LINK, PROSE, relinked

__all__ = ["FAMILIES", "write_fronts", "write_guide"]

FAMILIES = {
    "0": "All methods, and associated learning from the start",
    "1": "Associated learning: networks, codes, exits",
    "2": "Split learning and PipeLearn",
    "3": "Delayed gradients",
    "4": "Elastic pipelines: PipeTransformer",
    "5": "Target propagation",
    "9": "Results and template",
}
FIGURE = re.compile(r"!\[([^\]]*)\]\(\.\./figures/")


def write_guide() -> None:
    """Write a page a section of README, and those of docs."""
    readme, folder = ROOT / "README.md", SOURCE / "guide"
    folder.mkdir(parents=True)
    parts = sections(readme.read_text(encoding="utf-8"))
    pages = []
    for title, body in parts.items():
        if title and title != "Notebooks":
            named = {"Words": "Glossary", "Sources": "References"}.get(title, title)
            write(folder / f"{slug(named)}.md", f"# {named}\n\n{relinked(body, readme)}")
            pages.append(slug(named))
    tasks = sorted((ROOT / "docs" / "tasks").glob("*.md"))
    for path in (*tasks, *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text(encoding="utf-8")
        write(folder / path.relative_to(ROOT / "docs"), relinked(text, path))
    for file, page in PROSE.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        write(folder / f"{page}.md", relinked(text, ROOT / file))
    index = f"{relinked(parts[''], readme)}\n"
    index += toctree(pages, "Guide") + toctree([f"tasks/{path.stem}" for path in tasks], "Tasks")
    index += toctree(["cluster", "devices", *PROSE.values()], "More")
    write(folder / "index.md", index.replace("# alkit", "# Guide", 1))


def toctree(pages: Iterable[str], caption: str = "", hidden: bool = True) -> str:
    """Return a list of pages for the sidebar."""
    options = [f":caption: {caption}"] * bool(caption) + [":hidden:"] * hidden + [":maxdepth: 1"]
    return "\n".join(["", "```{toctree}", *options, "", *pages, "```", ""])


def write_fronts(entries: list[Entry]) -> None:
    """Write the front page and that of the notebooks: a card a notebook, by family."""
    cards, trees, plain = [], [], []
    for key, name in FAMILIES.items():
        own = [entry for entry in entries if entry.family == key]
        cards.append(
            f"## {name}\n\n::::{{grid}} 1 2 3 3\n:gutter: 3\n\n"
            + "".join(map(card, own))
            + "::::\n"
        )
        trees.append(toctree([entry.name for entry in own], name))
        lines = [
            f"- [{e.title}]({e.name}.ipynb): {relinked(e.shows, ROOT / 'README.md')}" for e in own
        ]
        plain.append(f"## {name}\n\n" + "\n".join(lines) + "\n")
    head = "---\nhtml_theme.sidebar_secondary.remove: true\n---\n\n# alkit\n\n"
    intro = sections((ROOT / "README.md").read_text(encoding="utf-8"))[""].split("\n\n")
    words = relinked("\n\n".join(intro[1:3]), ROOT / "README.md")
    top = "![Ten methods on one axis of time](/figures/00_all_methods.svg)\n\n"
    hubs = toctree(["notebooks/index", "guide/index", "dashboard", "API <autoapi/alkit/index>"])
    write(SOURCE / "index.md", head + words + "\n\n" + top + "\n".join(cards) + hubs)
    write(SOURCE / "notebooks" / "index.md", "# Notebooks\n\n" + "\n".join(plain) + "".join(trees))


def card(entry: Entry) -> str:
    """Return a card of the front page: its figure, title, what it shows."""
    figure, alt = picture(entry)
    lines = [
        f":::{{grid-item-card}} {entry.title}",
        f":link: /notebooks/{entry.name}",
        ":link-type: doc",
    ]
    if figure:
        lines += [f":img-top: {figure}", f":img-alt: {alt}"]
    shows = alt or LINK.sub(r"\2", entry.shows)
    return "\n".join([*lines, "", shows, ":::", "", ""])


def picture(entry: Entry) -> tuple[str, str]:
    """Return a notebook's figure and what it says: that of its first cell, or its last output."""
    if shown := FIGURE.search(nbformat.read(entry.path, as_version=4).cells[0].source):
        return f"/figures/{entry.name}.svg", shown[1]
    if not executed(entry).exists():
        return "", ""
    before, found = "", ("", "")
    for cell in nbformat.read(executed(entry), as_version=4).cells:
        if cell.cell_type == "markdown":
            before = cell.source
            continue
        for output in cell.outputs:
            if data := output.get("data", {}).get("image/png"):
                name = f"/figures/cards/{entry.name}.png"
                target = SOURCE / name[1:]
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(base64.b64decode(data))
                found = name, alternative(before)
    return found


def slug(title: str) -> str:
    """Return a heading as a file name."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")
