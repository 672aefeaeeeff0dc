"""Build the site into build/site/html: sources from README, docs and executed notebooks; Sphinx.

    README's table of notebooks ──► contents ──► front page, families, previous and next
    notebooks ──► executed at smoke, in build/executed ──┐
    README, docs, CHANGELOG, figures, docstrings ────────┴──► build/site/source ──► html

Nothing is fetched. `--no-execute` takes what was executed before, and shows other notebooks without
outputs.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

from books import write_notebook
from entries import BUILD, EXECUTED, ROOT, SITE, SOURCE, contents, execute
from links import dead_links
from pages import write_fronts, write_guide
from schedules import graphs
from tqdm import tqdm

HTML = BUILD / "site" / "html"
DARK = {  # fills and strokes of the house's figures, by day and by night
    "fill: #ffffff": "fill: #14181e",
    "fill: #262626": "fill: #e0e0e0",
    "stroke: #262626": "stroke: #e0e0e0",
    "stroke: #cccccc": "stroke: #48566b",
    "fill: #595959": "fill: #9aa4b2",
    "fill: #d9d9d9": "fill: #2f3a47",
    "stroke: #595959": "stroke: #9aa4b2",
}


def write_figures() -> None:
    """Copy figures; an SVG gets the colours of the night."""
    shutil.copytree(ROOT / "figures", SOURCE / "figures", ignore=shutil.ignore_patterns("*.md"))
    rules = " ".join(f'[style*="{day}"]{{{night}!important}}' for day, night in DARK.items())
    for path in (SOURCE / "figures").glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        style = f"<style>@media (prefers-color-scheme: dark) {{{rules}}}</style>"
        path.write_text(re.sub(r"(<svg[^>]*>)", rf"\1{style}", text, count=1), encoding="utf-8")


def write_dashboard() -> None:
    """Write the page of schedules; its data is a script, for a page from disk may not fetch."""
    data = SOURCE / "_data"
    data.mkdir()
    text = json.dumps(graphs(), separators=(",", ":"))
    (data / "schedules_data.js").write_text(f"const ALKIT_SCHEDULES = {text};\n", encoding="utf-8")
    shutil.copy(SITE / "dashboard.md", SOURCE / "dashboard.md")


def main() -> int:
    """Build; a warning of Sphinx or a link that leads nowhere is a failure."""
    parser = argparse.ArgumentParser(description="Build the site into build/site/html, offline.")
    parser.add_argument("--no-execute", action="store_true", help="take what was executed before")
    parser.add_argument("--repository", default="", help="OWNER/NAME on GitHub, for launch links")
    parser.add_argument("--jobs", type=int, default=2, help="notebooks at a time")
    asked = parser.parse_args()
    entries = contents()
    EXECUTED.mkdir(parents=True, exist_ok=True)
    if not asked.no_execute:
        with ProcessPoolExecutor(asked.jobs) as pool:
            done = pool.map(execute, entries)
            list(tqdm(done, desc="notebooks", total=len(entries)))
    shutil.rmtree(SOURCE, ignore_errors=True)
    SOURCE.mkdir(parents=True)
    write_figures()
    write_guide()
    (SOURCE / "notebooks").mkdir()
    for entry in entries:
        write_notebook(entry, asked.repository)
    write_fronts(entries)
    write_dashboard()
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-j", "2"]
    command += ["-c", str(SITE), "-d", str(BUILD / "site" / "doctrees"), str(SOURCE), str(HTML)]
    status = subprocess.run(command).returncode
    broken = [] if status else dead_links(HTML)
    print(*broken, sep="\n")
    if not status and not broken:
        print(f"The site: {HTML / 'index.html'}")
    return status or bool(broken)


if __name__ == "__main__":
    sys.exit(main())
