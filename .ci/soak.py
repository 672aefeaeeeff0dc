"""Run the long tests of folders that changed since they last ran: torchrun, pages, the simulator.

python .ci/soak.py              runs those of changed folders
python .ci/soak.py --write      notes in .ci/soaked, which is committed, that all have run
"""

import hashlib
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).parents[1]
NOTED = HOME / ".ci" / "soaked"
TESTS = {  # folder: the long tests that see a change in it
    "docs/tasks": ["tests/unit/test_tasks.py"],
    "alkit": ["tests/unit/test_sim.py"],
    "tests/sim": ["tests/unit/test_sim.py"],
    "tests/gpu": ["tests/unit/test_sim.py"],
    "alkit/engine": ["tests/unit/engine", "tests/unit/test_tasks.py"],
    "alkit/split": ["tests/unit/test_tasks.py", "tests/unit/engine"],
    "alkit/elastic": ["tests/conformance/test_kept.py"],
}


def digest(folder: str) -> str:
    """Return what tells the files of a folder from others."""
    found = hashlib.sha256()
    for path in sorted((HOME / folder).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(str(path.relative_to(HOME)).encode() + path.read_bytes())
    return found.hexdigest()[:16]


def main() -> int:
    now = "".join(f"{folder} {digest(folder)}\n" for folder in TESTS)
    if "--write" in sys.argv:
        NOTED.write_text(now)
        return 0
    noted = NOTED.read_text().splitlines() if NOTED.exists() else []
    changed = [line.split()[0] for line in now.splitlines() if line not in noted]
    wanted = sorted({test for folder in changed for test in TESTS[folder]})
    print(f"changed since `make soak`: {', '.join(changed) or 'nothing'}")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", "machines", *wanted]
    return subprocess.run(command, cwd=HOME, check=False).returncode if wanted else 0


if __name__ == "__main__":
    sys.exit(main())
