"""The two addresses of a node: for clients and for peers."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mqd.config import PeerNode, StartError
from mqd.io.net import Listener, Network
from mqd.peers import Peers
from mqd.server.context import CLIENT, PEER

_LISTEN_REMEDIES = {
    errno.EADDRINUSE: "stop the process that uses it, or change",
    errno.EACCES: "a port below 1024 needs a privilege: set another one for",
}
_NO_ADDRESS = "it must be an address of this machine: see"


@asynccontextmanager
async def listeners(
    network: Network, me: PeerNode, peers: Peers
) -> AsyncIterator[dict[str, Listener]]:
    """Listen on both addresses. Raises StartError if one cannot be used."""
    found: dict[str, Listener] = {}
    try:
        for kind, port in ((CLIENT, me.port), (PEER, me.peer_port)):
            try:
                found[kind] = await network.listen(me.host, port)
            except OSError as error:
                raise StartError(
                    f"cannot listen on {me.host}:{port} for {kind}s "
                    f"({error.strerror or error}); "
                    f"{_LISTEN_REMEDIES.get(error.errno or 0, _NO_ADDRESS)} node "
                    f"{me.id} in {peers.path}"
                ) from error
        yield found
    finally:
        for listener in found.values():
            listener.close()
