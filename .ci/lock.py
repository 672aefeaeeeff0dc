"""Write the lock: every distribution that the pins of environment.yml bring, with its SHA-256.

pip resolves, as a dry run for the first release of this Python, so that all later ones can install
it. No address is kept: whoever installs asks the index that their pip is set to.
"""

import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
HERE = f"{sys.implementation.cache_tag} on {sysconfig.get_platform()}"
PIP = f"""-m pip install --quiet --dry-run --report=- --target=build --only-binary=:all:
    --python-version={sysconfig.get_python_version()}.0"""

pins = re.findall(r"^ {6}- (\S+==\S+)", (HOME / "environment.yml").read_text(), re.MULTILINE)
report = json.loads(subprocess.check_output([sys.executable, *PIP.split(), *pins]))
rows = []
for each in report["install"]:
    sha256 = each["download_info"]["archive_info"]["hashes"]["sha256"]
    rows += ["{name}=={version} --hash=sha256:{}\n".format(sha256, **each["metadata"]).lower()]
head = f"# {HERE}\n# Made by make lock from environment.yml; make install takes it where it fits.\n"
(HOME / ".ci/requirements.lock").write_text(head + "".join(sorted(rows)))
print(f".ci/requirements.lock has {len(rows)} distributions for {HERE}.")
