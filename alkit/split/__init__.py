"""Split learning between devices and a server: federated, SplitFed and pipelined, in one engine.

settings, published              the systems as rows of a table; settings of a run, or a file
schedule, half, stream           an iteration: four lanes, head and tail, samples of a device
pairs, ranks, trainer, fit       rounds and averages in one process, or on machines, in the one loop
planner, profile, times          where to cut
networks, results                the published networks, and their table of results
"""

from alkit.split.networks import NETWORKS, build
from alkit.split.settings import METHODS, Settings

__all__ = ["METHODS", "NETWORKS", "Settings", "build"]
