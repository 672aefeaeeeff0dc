"""Be beside a run and end what is left of it: `python -m alkit.records.reaper MARK`.

Its input is closed when the run has ended, or by the system when the process that started the run
is gone, however that went. Then every process whose environment has the run's mark is killed.
"""

import contextlib
import os
import sys
import time

import psutil

MARK = "ALKIT_RUN_ID"  # in the environment of every process of a run


def main(mark: str) -> None:
    """Wait for the end of the input, then kill what carries the mark, until nothing does."""
    sys.stdin.read()
    while left := [process for process in psutil.process_iter() if _belongs(process, mark)]:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.05)


def _belongs(process: psutil.Process, mark: str) -> bool:
    try:
        own = process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE
        return not own and process.environ().get(MARK, "").startswith(mark)
    except psutil.Error:  # somebody else's, or gone
        return False


if __name__ == "__main__":
    main(sys.argv[1])
