"""Let `python -m alkit` be the command `alkit`, and a rank of split learning `alkit.fit`."""

import sys

import alkit
from alkit.records.cli import main

if __name__ == "__main__":
    sys.exit(main(front=alkit))
