"""The pages that are no notebook: front page, results, guide, and the list of the notebooks."""

from collections.abc import Iterable

from entries import ROOT, SOURCE, sections, write
from links import PROSE, relinked

from alkit.lab.contents import SHELVES, Entry

__all__ = ["write_fronts", "write_guide", "write_results"]

README = ROOT / "README.md"
FRONT = ("Try it", "Which method when", "What we found")  # of README, on the front page
MORE = ("guide", "situations", "devices", "runs", "statistics", "glossary", "sources", "patents")
HEAD = "---\nhtml_theme.sidebar_secondary.remove: true\n---\n\n"


def write_guide() -> None:
    """Write what README says beside the front page, and the pages of docs."""
    folder = SOURCE / "guide"
    parts = readme()
    own = [title for title in parts if title and title not in FRONT and "course" not in title]
    body = "".join(f"## {title}\n{parts[title]}" for title in own)
    tasks = sorted((ROOT / "docs" / "tasks").glob("*.md"))
    for path in (*tasks, *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text(encoding="utf-8")
        write(folder / path.relative_to(ROOT / "docs"), relinked(text, path))
    for file, page in PROSE.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        write(folder / f"{page}.md", relinked(text, ROOT / file))
    trees = toctree([f"tasks/{path.stem}" for path in tasks], "Tasks")
    trees += toctree([*MORE, *PROSE.values()], "More")
    write(folder / "index.md", f"# Guide\n\n{body}\n{trees}")


def write_results() -> None:
    """Write the page of results, which begins with what was found."""
    path = ROOT / "RESULTS.md"
    write(SOURCE / "results.md", relinked(path.read_text(encoding="utf-8"), path))


def write_fronts(entries: list[Entry]) -> None:
    """Write the front page, with the course as cards, and the list of all notebooks by shelf."""
    parts = readme()
    course = [each for each in entries if each.shelf == "course"]
    cards = "::::{grid} 1 2 3 3\n:gutter: 3\n\n" + "".join(map(card, course)) + "::::\n"
    front = [parts[""], "## Try it\n", parts["Try it"], "## A course of twelve notebooks\n", cards]
    front += [f"## {title}\n{parts[title]}" for title in FRONT[1:]]
    hubs = ["notebooks/index", "results", "guide/index", "dashboard", "API <autoapi/alkit/index>"]
    write(SOURCE / "index.md", HEAD + "\n".join(front) + toctree(hubs))
    trees, plain = [], []
    for shelf, heading in SHELVES.items():
        own = [entry for entry in entries if entry.shelf == shelf]
        trees.append(toctree([entry.name for entry in own], heading.partition(":")[0]))
        lines = [
            f"- [{e.name[:2]} {e.title}]({e.name}.ipynb): {e.sentence} ({e.minutes} min)"
            for e in own
        ]
        plain.append(f"## {heading}\n\n" + "\n".join(lines) + "\n")
    write(SOURCE / "notebooks" / "index.md", "# Notebooks\n\n" + "\n".join(plain) + "".join(trees))


def readme() -> dict[str, str]:
    """Return README's sections, its links leading to pages."""
    found = sections(README.read_text(encoding="utf-8"))
    return {title: relinked(text, README) for title, text in found.items()}


def toctree(pages: Iterable[str], caption: str = "", hidden: bool = True) -> str:
    """Return a list of pages for the sidebar."""
    options = [f":caption: {caption}"] * bool(caption) + [":hidden:"] * hidden + [":maxdepth: 1"]
    return "\n".join(["", "```{toctree}", *options, "", *pages, "```", ""])


def card(entry: Entry) -> str:
    """Return a card of the front page: a notebook's figure, title, sentence and minutes."""
    lines = [
        f":::{{grid-item-card}} {entry.name[:2]} {entry.title.partition(':')[0]}",
        f":link: /notebooks/{entry.name}",
        ":link-type: doc",
    ]
    figure = ROOT / "figures" / f"{entry.name}.svg"
    if figure.exists():
        lines += [f":img-top: /figures/{figure.name}", f":img-alt: the figure of {entry.name[:2]}"]
    words = f"{entry.sentence} *{entry.minutes} minutes.*"
    return "\n".join([*lines, "", words, ":::", "", ""])
