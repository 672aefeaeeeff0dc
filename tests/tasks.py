"""The task pages: what a page shows is the file beside it, and what it prints.

python -m tests.tasks       write files and outputs into the pages
"""

import json
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests import machines

__all__ = ["PAGES", "RUN", "alike", "block", "printed"]

FOLDER = Path(__file__).parents[1] / "docs" / "tasks"
PAGES = sorted(FOLDER.glob("*.md"))
RUN = [page for page in PAGES if page.stem != "flower"]  # it has an environment of its own
SECOND = r"(?<![\w.])[01]\.\d+"  # a share, or an error: what rounding may move


def printed(page: Path) -> str:
    """Run the script of a page, and return what it prints.

    Raises:
        RuntimeError: it failed; holds what it said.
    """
    script = str(page.with_suffix(".py"))
    if page.stem == "machines":
        done = machines.on_one(script, "elastic")
    elif page.stem == "split_at_home":
        with TemporaryDirectory() as home:
            own = json.loads(page.with_suffix(".json").read_text()) | {"folder": home}
            (file := Path(home) / "run.json").write_text(json.dumps(own))
            done = machines.on_one(script, str(file), ranks=3)
    elif page.stem == "restarts":
        with TemporaryDirectory() as home:
            done = machines.on_one(script, "al_pipeline", f"{home}/run.ckpt")
    else:
        done = machines.run(sys.executable, script)
    if done.returncode:
        raise RuntimeError(f"{script}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def block(page: Path, kind: str) -> str:
    """Return what stands in a page's only block of a kind."""
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return found


def alike(one: str, other: str) -> bool:
    """Whether two outputs have the same words, and shares that differ by less than 0.2."""
    if re.sub(r"[\d. ]+", "#", one) != re.sub(r"[\d. ]+", "#", other):
        return False
    pairs = zip(re.findall(SECOND, one), re.findall(SECOND, other), strict=True)
    return all(abs(float(a) - float(b)) < 0.2 for a, b in pairs)


def _write(page: Path) -> None:
    text = page.read_text()
    shown = {"python": page.with_suffix(".py").read_text()}
    shown |= {"text": printed(page)} if page in RUN else {}
    for kind, own in shown.items():
        before, _, rest = text.partition(f"```{kind}\n")
        _, end, after = rest.partition("```\n")
        text = f"{before}```{kind}\n{own}{end}{after}"
    page.write_text(text)


if __name__ == "__main__":
    for page in PAGES:
        _write(page)
