"""Where, when and with what a run was made; nothing that names a person."""

import os
import platform
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from alkit.data import paths

PACKAGES = ("torch", "numpy", "alkit")


def origin() -> dict[str, Any]:
    """Return commit, versions, operator threads, machine and time of now."""
    versions = [("python", platform.python_version()), *((p, _version(p)) for p in PACKAGES)]
    return {
        "commit": _commit(),
        "versions": ", ".join(f"{name} {number}" for name, number in versions),
        "threads": _threads(),
        "machine": _machine(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def busy(seconds: float = 0.1) -> float:
    """Return the share of the cores that others use now, 0 to 1: this process sleeps meanwhile."""
    before = _ticks()
    time.sleep(seconds)
    idle, ticks = (later - earlier for earlier, later in zip(before, _ticks(), strict=True))
    return 1 - idle / ticks if ticks else 0.0


def _ticks() -> tuple[int, int]:
    """Return ticks of all cores since the machine started: idle ones, and all; zeros elsewhere."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0, 0
    ticks = [int(each) for each in stat.read_text().partition("\n")[0].split()[1:]]
    return ticks[3] + ticks[4], sum(ticks[:8])  # guests are counted within users


def _commit() -> str:
    """Return the short commit, with a "+" if sources differ from it, or "unknown" without git."""
    git = ["git", "-C", str(paths.root())]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        )
        # records made just before are no change of the source
        scope = ["status", "--porcelain", "--", ".", ":!notebooks/results"]
        state = subprocess.run([*git, *scope], capture_output=True, text=True)
    except OSError:
        return "unknown"
    if head.returncode or state.returncode:
        return "unknown"
    return head.stdout.strip() + ("+" if state.stdout.strip() else "")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def _threads() -> int:
    """Return the operator threads of this process, without importing torch for it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return torch.get_num_threads()
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def _machine() -> str:
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {_processor()}, {gib:.1f} GiB"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    return found.group(1) if found else platform.processor() or platform.machine()
