"""Write the lock: every distribution that the pins of environment.yml bring, with its SHA-256.

pip resolves, as a dry run for the first release of this Python, so that all later ones can install
it. No address is kept: whoever installs asks the index that their pip is set to.
"""

import json
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = "{}.{}".format(*sys.version_info)
HERE = f"{platform.python_implementation()} {VERSION} on {sys.platform} {platform.machine()}"

text = (ROOT / "environment.yml").read_text(encoding="utf-8")
pins = re.findall(r"^ {6}- (\S+==\S+)", text.split("- pip:", 1)[1], flags=re.MULTILINE)
with tempfile.TemporaryDirectory() as folder:
    report = Path(folder) / "report.json"
    options = ["--quiet", "--dry-run", "--ignore-installed", "--only-binary", ":all:"]
    options += ["--report", str(report), "--python-version", f"{VERSION}.0", "--target", folder]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *pins], check=True)
    found = json.loads(report.read_text())["install"]
rows = []
for each in found:
    digest = each["download_info"]["archive_info"]["hashes"]["sha256"]
    named = each["metadata"]["name"].lower(), each["metadata"]["version"]
    rows.append("{}=={} --hash=sha256:{}\n".format(*named, digest))
head = (
    f"# {HERE}\n# Made by make lock from environment.yml; make install takes it where that fits.\n"
)
rows.sort()
(ROOT / ".ci" / "requirements.lock").write_text(head + "".join(rows), encoding="utf-8")
print(f".ci/requirements.lock has {len(rows)} distributions for {HERE}.")
