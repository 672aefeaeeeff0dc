"""This commit's steps beside an earlier one's, and what noise by key costs; run from notebooks/:

    python -m studies.against COMMIT [ROUNDS]

Processes of both commits take turns, one operator thread each; nothing else may run meanwhile. The
record is that of notebook 03, preset "against".
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm.auto import tqdm

from alkit.data import paths
from alkit.engine.random import random_from
from alkit.records import results, tables

__all__: list[str] = []

SIZES = {"layers": 4, "width": 300, "heads": 6, "ffn": 512}
KINDS = {
    "transformer": SIZES,
    "lstm": SIZES,
    "vgg": SIZES | {"width": 32},
    "resnet20": SIZES | {"width": 16, "layers": 10},
}
NAMES = ["al", "al_pipeline, free", "bp"]
BLOCK_MS, TRIES = 5.0, 200
# one round, in a process of its own, of either commit
ROUND = """
import json, sys
from alkit.figures.notebook import setup
setup(0, threads=1)
from studies import bench, contenders
from studies.stacks import Stack
stack = Stack(**json.loads(sys.argv[1]), texts=32, tokens=60, batches=12, seed=0)
times = bench.interleaved(contenders.contenders(stack, json.loads(sys.argv[2]), [2]), 1, False)
print(json.dumps(dict(zip(times.name, times.steady_s))))
"""


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Lend the files of a commit."""
    git = ["git", "-C", str(paths.root()), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*git, "add", "-q", "--detach", f"{folder}/at", commit], check=True)
        try:
            yield Path(folder) / "at"
        finally:
            subprocess.run([*git, "remove", "--force", f"{folder}/at"], check=True)


def steps(root: Path, kind: str) -> dict[str, float]:
    """Return seconds a batch after fill, by contender, of one round in that checkout."""
    path = os.pathsep.join([str(root), str(root / "notebooks")])
    given = [json.dumps(KINDS[kind] | {"kind": kind}), json.dumps(NAMES)]
    done = subprocess.run(
        [sys.executable, "-c", ROUND, *given],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        cwd=root,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def race(run: results.Run, commit: str, rounds: int) -> None:
    """Record, for every stack and contender, seconds now over seconds then, round by round."""
    found: dict[tuple[str, str], list[float]] = {}
    with checkout(commit) as before:
        for turn in tqdm(range(rounds), desc="rounds"):
            for kind in KINDS:
                pair = [
                    (root, steps(root, kind))
                    for root in (before, paths.root())[:: 1 - turn % 2 * 2]
                ]
                then, now = (dict(pair)[root] for root in (before, paths.root()))
                for name in NAMES:
                    found.setdefault((kind, name), []).append(now[name] / then[name])
    for (kind, name), ratios in found.items():
        extra = {"contender": name, "before": commit}
        extra |= {"lowest": min(ratios), "highest": max(ratios)}
        median = float(np.median(ratios))
        run.record("now_over_then", median, unit="x", model=kind, n=rounds, extra=extra)


def block_s(block: nn.Module, x: torch.Tensor, keyed: bool, number: int) -> float:
    """Return the seconds of a forward and backward, with noise by key or as torch draws it."""
    start_s = time.perf_counter()
    if keyed:
        with random_from(0, 0, number):
            out = block(x)
    else:
        out = block(x)
    out.sum().backward()
    return time.perf_counter() - start_s


def noise(run: results.Run, tries: int) -> None:
    """Record what noise by key adds to a block of `BLOCK_MS` with dropout, and to one without."""
    torch.set_num_threads(1)
    for name, p in (("dropout", 0.1), ("no dropout", 0.0)):
        width = 300
        x, rows = torch.randn(64, width), 64
        block = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Dropout(p), nn.Linear(width, width)
        )
        while 1000 * min(block_s(block, x, False, 0) for _ in range(5)) < BLOCK_MS:
            rows = int(rows * 1.3)
            x = torch.randn(rows, width)
        ratios = []
        for number in range(tries):
            order: list[bool] = [True, False][:: 1 - number % 2 * 2]
            took = {keyed: block_s(block, x, keyed, number) for keyed in order}
            ratios.append(took[True] / took[False])
        low, median, high = np.percentile(ratios, [25, 50, 75])
        extra = {"block": name, "block_ms": BLOCK_MS, "quartiles": [float(low), float(high)]}
        run.record("noise_by_key_over_plain", float(median), unit="x", n=tries, extra=extra)


def main(commit: str, rounds: int = 5) -> None:
    """Race, measure, and write the record."""
    run = results.Run("03_speed", "against")
    noise(run, TRIES)
    race(run, commit, rounds)
    tables.merge([run.save()])


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
