"""Build the site into build/site: README, RESULTS, docs, notebooks and the public API, by Sphinx.

Nothing is fetched, and no notebook is executed: the course carries its outputs.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from schedules import graphs

SITE = Path(__file__).resolve().parent
ROOT = SITE.parent
BUILD = ROOT / "build" / "site"


def main() -> int:
    """Build; the exit status is Sphinx's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="pages at a time")
    asked = parser.parse_args()
    data = BUILD / "data"  # a script, for a page from disk may not fetch
    data.mkdir(parents=True, exist_ok=True)
    text = json.dumps(graphs(), separators=(",", ":"))
    (data / "schedules_data.js").write_text(f"const ALKIT_SCHEDULES = {text};\n", encoding="utf-8")
    command = [sys.executable, "-m", "sphinx", "-q", "-j", str(asked.jobs), "-c", str(SITE)]
    command += ["-d", str(BUILD / "doctrees"), str(ROOT), str(BUILD / "html")]
    found = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    own = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, found))}
    status = subprocess.run(command, env=own).returncode
    if not status:
        front = BUILD / "html" / "index.html"
        front.write_text('<meta http-equiv="refresh" content="0; url=.site/index.html">\n')
        print(f"The site: {front}")
    return status


if __name__ == "__main__":
    sys.exit(main())
