"""Let `python -m alkit` be the command `alkit`, and a rank of split learning `alkit.fit`."""

import sys
from functools import partial

import alkit
from alkit.records import cli
from alkit.split import program

main = partial(cli.main, front=alkit, more=[program.add])

if __name__ == "__main__":
    sys.exit(main())
