"""Let `python -m alkit` be the command `alkit`."""

import sys

from alkit.command import main

if __name__ == "__main__":
    sys.exit(main())
