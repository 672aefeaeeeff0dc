"""gRPC without lines of its own in the log; import it from here, so that it is told in time."""

import os

from alkit.data.extras import extra

# else every connection that is no TLS is a line; `handshake` tells who should know
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

with extra("split", "a link between machines"):
    import grpc

__all__ = ["grpc"]
