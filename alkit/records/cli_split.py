"""The command `alkit split`: server, device."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add `split` to the parsers of `alkit`."""
    parser = commands.add_parser("split", help="split learning between devices and a server")
    parts = parser.add_subparsers(required=True, metavar="COMMAND")
    server = parts.add_parser("server", help="run the server of a configuration")
    device = parts.add_parser("device", help="run one device of a configuration")
    rank = parts.add_parser("rank")  # what torchrun starts for both
    for part in (server, device, rank):
        part.set_defaults(command=_rank if part is rank else _start, index=None)
        part.add_argument("config", type=Path, help="TOML or JSON")
        part.add_argument(
            "--folder", metavar="DIR", help="for results and checkpoints, instead of the file's"
        )
        part.add_argument(
            "--on", metavar="DEVICE", help='where this one trains: "cuda", "cuda:1" (the CPU)'
        )
        part.add_argument("--quiet", action="store_true", help="no progress bar")
        if part is not server:
            own: Any = {"type": int, "required": part is device, "help": "its number, from 0"}
            part.add_argument("-i", "--index", metavar="N", **own)


def _start(options: argparse.Namespace) -> None:
    """Become torchrun, once it is sure that there is something to run."""
    from alkit.engine.device import devices_named
    from alkit.split import program

    config = _read(options)
    if options.on is not None:
        devices_named(options.on)
    own = ["alkit", "split", "rank", str(options.config.resolve()), "--folder", config.folder]
    own += ["--index", str(options.index)] if options.index is not None else []
    own += ["--on", options.on] if options.on is not None else []
    line = program.command(config, options.index, [*own, *["--quiet"] * options.quiet])
    sys.stdout.flush()
    os.execve(line[0], line, program.environment(config))


def _rank(options: argparse.Namespace) -> None:
    from alkit.split import program

    config, index, fit = _read(options), options.index, options.front.fit
    program.run(config, index, fit, device=options.on, progress=not options.quiet)
    print(f"{config.folder}/results.csv" if index is None else f"device {index} is done")


def _read(options: argparse.Namespace) -> Any:
    from alkit.split.published import read

    changes = {} if options.folder is None else {"folder": options.folder}
    return read(options.config, **changes)
