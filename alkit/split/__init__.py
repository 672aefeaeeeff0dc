"""Split learning between devices and a server: federated, SplitFed and pipelined, in one engine.

methods, settings, config           the systems as rows of a table; what a run is told
server, turns, average              the server drives its rounds: whose turn it is, what comes out
lobby, greeting, member             who is there
device, server_round, rounds        a round on both sides
halves, stream, schedule, log       an iteration: head, tail, samples, lanes
link, grpc_link, wire               what travels
check                               what can be cut and averaged
planner, choosing, profile, times   where to cut
train, program, fit                 in one process; as programs; behind `alkit.fit`
"""

from alkit.split.methods import METHODS
from alkit.split.networks import NETWORKS, build
from alkit.split.settings import Settings
from alkit.split.train import Details, train

__all__ = ["METHODS", "NETWORKS", "Details", "Settings", "build", "train"]
