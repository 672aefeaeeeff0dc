"""Features of the frozen layers, stored once for all ranks.

Rank 0 makes the folder, and a store for each generation: each set of frozen layers. If it cannot,
or the ranks are on several machines, training goes on without, which changes no result, and no
decision asks again.
"""

import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from alkit.elastic.cache import Cache
from alkit.elastic.decision import Decision
from alkit.elastic.examples import Examples
from alkit.elastic.network import Network
from alkit.elastic.settings import Settings
from alkit.elastic.world import World
from alkit.engine.launch import on_several_machines

log = logging.getLogger(__name__)


def cache_folder(settings: Settings) -> tempfile.TemporaryDirectory[str]:
    """Make a folder for the features of a run, which goes with it."""
    return tempfile.TemporaryDirectory(prefix="alkit-cache-", dir=settings.cache_folder)


class Features:
    """The stores of a run.

    Args:
        say: writes a line into the log.

    Attributes:
        cache: runs the frozen layers, or reads what they made.
        wanted: whether decisions may have features stored.
        stored: whether they are now.
        generation: of the store.
    """

    def __init__(
        self,
        network: Network,
        data: Examples,
        settings: Settings,
        world: World,
        say: Callable[[str], None],
    ) -> None:
        self.data, self.settings, self.world, self.say = data, settings, world, say
        self.cache = Cache(network, data.inputs)
        self.wanted, self.stored, self.generation = settings.cache, False, 0
        self.folder: tempfile.TemporaryDirectory[str] | None = None  # rank 0's

    def begin(self) -> None:
        """Make a folder for this run; every rank calls it."""
        if self.wanted:
            self.cache.folder = Path(self._on_first(self._new_folder))

    def follow(self, decision: Decision) -> None:
        """Store and read what a decision says; every rank calls it."""
        if not decision.cached:
            self.cache.leave()
            self.stored = False
        elif not self.stored or decision.generation != self.generation:
            self.stored = self._begin_generation(decision)
        self.generation = decision.generation

    def close(self) -> None:
        """Leave nothing behind."""
        self.cache.close()
        if self.folder is not None:
            self.folder.cleanup()

    def _begin_generation(self, decision: Decision) -> bool:
        """Begin a generation, if it can be; the one before the last is deleted."""
        generation, frozen = decision.generation, decision.frozen

        def make() -> str:
            variants = max(1, self.data.variants)
            self.cache.make(generation, frozen, samples=len(self.data), variants=variants)
            return "made"

        if not self._on_first(make):
            return False
        self.cache.join(generation)
        if self.world.is_first and generation > 2 and self.cache.folder is not None:
            old = self.cache.folder / f"generation-{generation - 2}"
            shutil.rmtree(old, ignore_errors=True)
        return True

    def _new_folder(self) -> str:
        if self.world.ranks > 1 and on_several_machines():
            # what is written in memory that is mapped from a file reaches no other machine
            raise OSError("ranks on several machines share no folder of features")
        self.folder = cache_folder(self.settings)
        return self.folder.name

    def _on_first(self, make: Callable[[], str]) -> str:
        """Have rank 0 make something, and return its word on all ranks; none if it could not."""
        word, trouble = "", ""
        if self.world.is_first:
            try:
                word = make()
            except OSError as error:
                trouble = str(error)
                log.warning("no features are stored, and training goes on: %s", trouble)
        word, trouble = self.world.broadcast((word, trouble))
        if trouble:
            self.say(f"CACHE off  {trouble}")
            self.cache.leave()
            self.wanted = False
        return word
