"""Build the site into build/site/html: sources from README, docs and executed notebooks; Sphinx.

    notebooks/index.yaml ──► front page, shelves
    notebooks ──► executed at smoke, in build/executed ──────┐
    README, RESULTS, docs, CHANGELOG, figures, docstrings ───┴──► build/site/source ──► html

Nothing is fetched. `--no-execute` takes what was executed before, and shows other notebooks without
outputs.
"""

import argparse
import json
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

from books import write_notebook
from entries import BUILD, EXECUTED, ROOT, SITE, SOURCE, execute
from links import dead_links
from night import by_night
from pages import write_fronts, write_guide, write_results
from schedules import graphs
from tqdm import tqdm

from alkit.lab.contents import contents

HTML = BUILD / "site" / "html"


def write_figures() -> None:
    """Copy figures; an SVG gets the colours of the night."""
    shutil.copytree(ROOT / "figures", SOURCE / "figures", ignore=shutil.ignore_patterns("*.md"))
    for path in (SOURCE / "figures").glob("*.svg"):
        path.write_text(by_night(path.read_text(encoding="utf-8")), encoding="utf-8")


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
    write_results()
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
