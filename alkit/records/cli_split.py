"""The command `alkit split`: server, device."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any, NoReturn


def add(commands: Any) -> None:
    """Add `split` to the parsers of `alkit`."""
    parser = commands.add_parser("split", help="split learning between devices and a server")
    parts = parser.add_subparsers(required=True, metavar="COMMAND")

    server = parts.add_parser("server", help="run the server of a configuration")
    server.set_defaults(command=_server)
    device = parts.add_parser("device", help="run one device of a configuration")
    device.add_argument("--index", type=int, required=True, metavar="I", help="its number, from 0")
    device.set_defaults(command=_device)
    for part in (server, device):
        part.add_argument("--config", type=Path, required=True, metavar="F", help="TOML or JSON")
        part.add_argument(
            "--folder", metavar="DIR", help="for results and checkpoints, instead of the file's"
        )
        part.add_argument(
            "--on", metavar="DEVICE", help='where this one trains: "cuda", "cuda:1" (the CPU)'
        )
        part.add_argument("--quiet", action="store_true", help="no progress bar")


def _server(options: argparse.Namespace) -> NoReturn:
    from alkit.split import program

    print(program.serve(_read(options), on=options.on, progress=not options.quiet))
    _leave()


def _device(options: argparse.Namespace) -> NoReturn:
    from alkit.split import program

    own = {"on": options.on, "progress": not options.quiet}
    program.device(_read(options), options.index, **own)
    print(f"device {options.index} is done")
    _leave()


def _leave() -> NoReturn:
    """End the process with 0, without taking the interpreter down around gRPC's own threads.

    One that is inside C++ at that moment would abort a process whose work is done and written:
    "terminate called without an active exception" was seen once, on a loaded machine.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _read(options: argparse.Namespace) -> Any:
    from alkit.split.config import read

    changes = {} if options.folder is None else {"folder": options.folder}
    return read(options.config, **changes)
