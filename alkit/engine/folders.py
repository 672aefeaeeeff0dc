"""Temporary folders, of stored features and of ranks, that go away with their run."""

import shutil
import tempfile
from pathlib import Path
from types import TracebackType


class Home:
    """A new folder, until `close` or the end of a `with` block; SIGKILL leaves it.

    Args:
        where: the folder that it is made in; None for the system's temporary one.
        kind: "cache" or "ranks".
    Raises:
        OSError: it cannot be made there; says what to do.
    """

    def __init__(self, where: str | Path | None = None, kind: str = "cache") -> None:
        try:
            self.path = Path(tempfile.mkdtemp(prefix=f"alkit-{kind}-", dir=where))
        except OSError as error:
            advice = {
                "cache": "give another cache_folder, or switch the cache off",
                "ranks": "set TMPDIR to a folder with room",
            }[kind]
            raise OSError(
                f"no folder for {kind} in {where or tempfile.gettempdir()}: {error}; {advice}"
            ) from error

    def close(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> "Home":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
