"""Execute the course and keep what it printed and drew in its files, for readers in a browser.

    python notebooks/outputs.py [NAME ...]      by default all of the course; `make outputs`

A notebook runs with the preset teach, where it has one, else at its defaults. What changes from
run to run is left out: progress bars, widgets except their stills, how busy the machine was. A
digest of the cells says which ones the outputs are of; a test compares it with the cells.
"""

import argparse
import base64
import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

from alkit.command import contents
from alkit.lab.parameters import presets

HOME = Path(__file__).parent
LARGEST = 60_000  # bytes of a figure
COURSE = [each["name"] for each in contents() if each["shelf"] == "course"]


def digest(cells: list[Any]) -> str:
    """Return what tells the code of a notebook from other code."""
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]


def picture(data: str) -> str:
    """Return a PNG in base64 of at most `LARGEST` bytes: of fewer colours, then of fewer points."""
    colours, image = 256, Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
    while True:
        file = io.BytesIO()
        image.quantize(colours, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
        if len(found := file.getvalue()) <= LARGEST:
            return base64.b64encode(found).decode()
        colours, image = 64, image.resize([round(0.9 * each) for each in image.size])


def kept(output: Any) -> Any:
    """Return an output as a file keeps it, None of one that is left out."""
    if output.get("name") == "stderr":
        return None  # progress bars: a cell that warns fails its test
    if output["output_type"] == "stream":
        output["text"] = re.sub(r" · \d+% of \d+ cores busy", "", output["text"])
    data = output.get("data", {})
    if data.pop("application/vnd.jupyter.widget-view+json", None):  # which needs a kernel
        if "A still" not in data.get("text/html", ""):
            return None
        still = re.compile(r"(?<=base64,)[\w+/=]+")  # of a dashboard
        data["text/html"] = still.sub(lambda found: picture(found[0]), data["text/html"])
    if "image/png" in data:
        data["image/png"] = picture(data["image/png"])
    return output


def execute(name: str) -> None:
    """Run a notebook, and write its outputs into its file."""
    path = HOME / f"{name}.ipynb"
    for old in (HOME.parent / "runs" / "checkpoints").glob(f"{name}.*"):
        old.unlink()  # a run that goes on says so, with its path
    book = nbformat.read(path, as_version=4)
    running = nbformat.read(path, as_version=4)
    for cell in running.cells if "teach" in presets(path) else ():
        if "parameters" in cell.metadata.get("tags", ()):
            cell.source = cell.source.replace('preset: str = "smoke"', 'preset: str = "teach"', 1)
    place = {"metadata": {"path": str(HOME)}}
    NotebookClient(running, timeout=900, kernel_name="python3", resources=place).execute()
    for cell, done in zip(book.cells, running.cells, strict=True):
        if cell.cell_type == "code":
            cell.outputs = [own for own in map(kept, done.outputs) if own is not None]
            cell.execution_count = done.execution_count  # nbval: no outputs without
    book.metadata["alkit"] = {"outputs_of": digest(book.cells)}
    nbformat.write(book, path)
    print(f"{name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", default=COURSE)
    for each in parser.parse_args().names:
        execute(each)
