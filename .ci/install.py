"""Build the virtual environment from the lock of environment.yml. Standard library only.

Usage: install.py PATH. A complete environment at PATH is left as it is; an environment that was not
made here is checked against the pins and never changed. Where the lock is for another platform, the
pins alone are installed, and a sentence says so. Every failure is one sentence.
"""

import hashlib
import platform
import re
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / ".ci" / "requirements.lock"
ROOM_GIB = 9  # torch with its CUDA libraries takes 6 GiB, pip's downloads up to 3 more
STAMP = "alkit-installed"  # written last: an interrupted install has none and is taken up again


def main() -> None:
    venv = Path(sys.argv[1]).expanduser()
    wanted = pins((ROOT / "environment.yml").read_text())
    stamp, mark = venv / STAMP, fingerprint()
    if stamp.exists() and stamp.read_text() == mark:
        return
    if is_foreign(venv):
        check_foreign(venv, wanted)
        return
    check_room(venv)
    make_venv(venv)
    pip_install(venv, wanted)
    stamp.write_text(mark)
    print(f"Installed the packages of environment.yml in {venv}.")


def pins(text: str) -> list[str]:
    """Return the entries of the pip list of an environment file, in order."""
    pip_list = text.split("- pip:", 1)[1]
    return re.findall(r"^ {6}- (.+?)\s*$", pip_list, flags=re.MULTILINE)


def platform_name() -> str:
    """Name what a lock is for: files for another Python or processor have other hashes."""
    version = (
        f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"
    )
    return f"{version} on {sys.platform} {platform.machine()}"


def fingerprint() -> str:
    """Identify what an environment must hold and which checkout it serves."""
    files = (ROOT / "environment.yml", ROOT / "pyproject.toml", LOCK)
    content = b"".join(file.read_bytes() for file in files)
    return hashlib.sha256(content + str(ROOT).encode()).hexdigest()


def is_foreign(venv: Path) -> bool:
    """Tell an environment that somebody else made from one that is ours or not there yet."""
    ours = venv.resolve() == (ROOT / ".venv").resolve()
    return not ours and (venv / "bin" / "python").exists() and not unfinished(venv).exists()


def unfinished(venv: Path) -> Path:
    return venv / "alkit-unfinished"


def check_foreign(venv: Path, wanted: list[str]) -> None:
    """Compare an environment that stands elsewhere with the pins; it is never changed."""
    site = [str(p) for p in venv.glob("lib/python3*/site-packages")]
    here = {normal(d.metadata["Name"] or ""): d.version for d in distributions(path=site)}
    wrong = []
    for pin in (p for p in wanted if "==" in p):
        name, version = pin.split("==")
        found = here.get(normal(name), "missing")
        if found.split("+")[0] != version:  # 2.14.1+cpu is 2.14.1, built for another device
            wrong.append(f"{name} {found} (wanted {version})")
    if wrong:
        stop(f"{venv} differs from environment.yml in {', '.join(wrong)}: use another environment,"
             " or leave VENV away to have one made.")  # fmt: skip


def normal(name: str) -> str:
    """Return a distribution's name in the one form in which pre_commit equals pre-commit."""
    return re.sub(r"[-_.]+", "-", name).lower()


def check_room(venv: Path) -> None:
    place = next(p for p in [venv.absolute(), *venv.absolute().parents] if p.exists())
    free_gib = shutil.disk_usage(place).free / 2**30
    if free_gib < ROOM_GIB and not list(venv.glob("lib/python3*/site-packages/torch")):
        stop(f"The environment takes about {ROOM_GIB} GiB and {place} has {free_gib:.1f} GiB free:"
             " make room, or put it elsewhere with make VENV=/path/with/room ...")  # fmt: skip


def make_venv(venv: Path) -> None:
    python = venv / "bin" / "python"
    if python.exists() and run([python, "-c", "import pip"]).returncode == 0:
        return
    if not may_clear(venv):
        stop(f"{venv.absolute()} holds other things than an environment and stays as it is:"
             " name an empty or a new folder, as in make VENV=/path/to/new ...")  # fmt: skip
    made = run([sys.executable, "-m", "venv", "--clear", "--without-pip", venv])
    if made.returncode == 0:
        unfinished(venv).touch()  # before the slow part: an interrupted one is known again as ours
        made = run([python, "-Im", "ensurepip", "--default-pip"])
    if made.returncode:
        said = last_line(made.stdout + made.stderr)
        stop(f"Python can't make a virtual environment (on Debian: install python3-venv): {said}")


def may_clear(venv: Path) -> bool:
    """Tell a new folder, or the rest of an environment, from one with somebody's files in it."""
    if venv.is_dir() and any(venv.iterdir()):
        return (venv / "pyvenv.cfg").exists()
    return not venv.exists() or venv.is_dir()


def pip_install(venv: Path, wanted: list[str]) -> None:
    """Install the lock, or on another platform the pins, and alkit itself; then check the whole."""
    print(f"Installing some 200 packages in {venv}: some minutes, once.", flush=True)
    locked = LOCK.read_text().partition("\n")[0].removeprefix("# ")
    if locked == platform_name():
        pip(
            venv,
            "install",
            "--require-hashes",
            "--only-binary",
            ":all:",
            "--requirement",
            str(LOCK),
        )
        # what builds alkit is of the lock, too
        pip(venv, "install", "--no-deps", "--no-build-isolation", "--editable", ".")
    else:
        print(f"The lock is for {locked} and this is {platform_name()}, which nobody has tried: the"
              " pins of environment.yml are installed, without hashes.", flush=True)  # fmt: skip
        pip(venv, "install", *(word for entry in wanted for word in entry.split()))
    pip(venv, "check")
    unfinished(venv).unlink(missing_ok=True)


def pip(venv: Path, *words: str) -> None:
    """Run pip; its progress is shown, its errors are turned into one sentence."""
    command = [venv / "bin" / "python", "-m", "pip", words[0], "--retries", "2", *words[1:]]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    if done.returncode == 0:
        return
    errors = done.stderr
    if re.search(r"No space left|Errno 28", errors):
        stop(f"The disk ran full: free about {ROOM_GIB} GiB for {venv} and call again.")
    if "DO NOT MATCH THE HASHES" in errors:
        stop("A package is another file than the one that the lock names, and was not installed:"
             " ask who runs your package index, or write the lock anew: make lock.")  # fmt: skip
    if re.search(r"NewConnection|ConnectionError|Max retries|resolution|Timeout|timed out", errors):
        stop("The package index could not be reached: check the network (or pip's proxy settings)"
             " and call again; what was installed is kept.")  # fmt: skip
    stop(f"pip could not install the packages of environment.yml: {last_line(errors)}")


def run(command: list) -> subprocess.CompletedProcess:
    return subprocess.run([str(c) for c in command], capture_output=True, text=True)


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if "ERROR" in line] or text.split("\n")
    return lines[-1].strip() if lines else "nothing"


def stop(sentence: str) -> None:
    sys.exit(sentence)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        if error.errno == 28:
            stop(f"The disk is full: free about {ROOM_GIB} GiB and call again.")
        stop(f"The environment could not be made: {error}")
    except KeyboardInterrupt:
        stop("Interrupted; call again to go on where it stopped.")
