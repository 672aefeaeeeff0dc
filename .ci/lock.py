"""Write the lock: every distribution that the pins of environment.yml bring, with its SHA-256.

Usage: lock.py, with the Python of environment.yml. pip itself resolves, as a dry run in an
environment that is thrown away; what it would install, and the hashes of those files, are its own
report. It resolves for the first release of this Python, so that all later ones can install it. No
address is kept: whoever installs asks the index that their pip is set to, and gets the
same files or none.
"""

import json
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / ".ci" / "requirements.lock"

HEAD = """\
# {platform}
# Made by make lock from environment.yml; make install takes it where the first line fits.
"""


def pins(text: str) -> list[str]:
    """Return the entries of the pip list of an environment file, in order."""
    return re.findall(r"^ {6}- (.+?)\s*$", text.split("- pip:", 1)[1], flags=re.MULTILINE)


def platform_name() -> str:
    """Name what a lock is for: files for another Python or processor have other hashes."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{platform.python_implementation()} {version} on {sys.platform} {platform.machine()}"


def main() -> None:
    wanted = [entry for entry in pins((ROOT / "environment.yml").read_text()) if "==" in entry]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        report = Path(folder) / "report.json"
        pip = [Path(folder) / "bin" / "python", "-m", "pip", "install", "--quiet"]
        first = "{}.{}.0".format(*sys.version_info)
        options = ["--dry-run", "--only-binary", ":all:", "--report", report]
        options += ["--python-version", first, "--target", Path(folder) / "nothing"]
        subprocess.run([*pip, *options, *wanted], check=True)
        found = json.loads(report.read_text())["install"]
    LOCK.write_text(HEAD.format(platform=platform_name()) + "".join(sorted(map(line, found))))
    print(f"{LOCK.relative_to(ROOT)} has {len(found)} distributions for {platform_name()}.")


def line(found: dict) -> str:
    """Return a distribution's line in the lock."""
    name, version = found["metadata"]["name"], found["metadata"]["version"]
    digest = found["download_info"]["archive_info"]["hashes"]["sha256"]
    return f"{name.lower()}=={version} --hash=sha256:{digest}\n"


if __name__ == "__main__":
    main()
