"""Opens connections to peers: connect, start the tasks, negotiate versions. Failures become
PeerUnreachable with a cause and a remedy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from mqd.client.errors import PeerUnreachable, TlsHandshakeFailed
from mqd.client.login import Login
from mqd.client.nurseries import owned_nursery
from mqd.client.peer import PeerConnection, reason_of
from mqd.errors import ErrorCode
from mqd.io.net import Network, Stream
from mqd.io.tls_errors import TlsFailed


@asynccontextmanager
async def open_peer(
    network: Network,
    host: str,
    port: int,
    *,
    client_id: str = "mqd",
    timeout_s: float = 10.0,
    negotiate: bool = True,
) -> AsyncIterator[PeerConnection]:
    """A connected, negotiated PeerConnection for the length of a block. Raises PeerUnreachable."""
    async with owned_nursery() as nursery:
        connection = await start_peer(
            nursery,
            network,
            host,
            port,
            client_id=client_id,
            timeout_s=timeout_s,
            negotiate=negotiate,
        )
        yield connection


async def start_peer(
    nursery: trio.Nursery,
    network: Network,
    host: str,
    port: int,
    *,
    client_id: str = "mqd",
    timeout_s: float = 10.0,
    negotiate: bool = True,
    authenticate: Callable[[Stream], Awaitable[None]] | None = None,
    login: Login | None = None,
) -> PeerConnection:
    """Connect, run the connection in `nursery`, negotiate, log in. The connection lives until it
    breaks, is closed, or the nursery ends.

    Raises PeerUnreachable, or AuthenticationFailed. `authenticate` completes a handshake on the new
    stream before any other byte. It raises OSError if that fails.
    """
    address = f"{host}:{port}"
    stream = await connect_stream(
        network, host, port, timeout_s=timeout_s, authenticate=authenticate
    )
    connection = PeerConnection(stream, peer=address, client_id=client_id)
    try:
        await nursery.start(connection.run)
        if negotiate:
            with trio.move_on_after(timeout_s) as scope:
                await connection.negotiate()
                if login is not None:
                    await login.begin(connection)
            if scope.cancelled_caught:
                raise PeerUnreachable(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"{address} accepts connections but did not respond within {timeout_s:g} s",
                    remedy="is that the client port of a broker? A stopped or overloaded broker "
                    "behaves like this too",
                )
    except BaseException:
        connection.close()
        raise
    return connection


async def connect_stream(
    network: Network,
    host: str,
    port: int,
    *,
    timeout_s: float,
    authenticate: Callable[[Stream], Awaitable[None]] | None = None,
) -> Stream:
    """A new stream on which `authenticate` has succeeded, see `start_peer`.

    Raises PeerUnreachable.
    """
    address = f"{host}:{port}"
    try:
        stream = await network.connect(host, port, timeout=timeout_s)
    except TlsFailed as error:
        raise TlsHandshakeFailed(
            ErrorCode.NETWORK_EXCEPTION, error.message, remedy=error.remedy
        ) from None
    except OSError as error:
        raise unreachable(address, error) from None
    if authenticate is not None:
        try:
            await authenticate(stream)
        except OSError as error:
            stream.close()
            raise unreachable(address, error) from None
        except BaseException:
            stream.close()
            raise
    return stream


def unreachable(address: str, error: OSError) -> PeerUnreachable:
    """The message for an address that could not be connected to."""
    import errno
    import socket

    code = (
        ErrorCode.REQUEST_TIMED_OUT
        if error.errno == errno.ETIMEDOUT
        else ErrorCode.NETWORK_EXCEPTION
    )
    if error.errno == errno.ECONNREFUSED:
        message = f"nothing listens at {address}"
        remedy = (
            "is the broker running? Start it (for development: `mqd dev`), or name "
            "another with --bootstrap host:port"
        )
    elif isinstance(error, socket.gaierror):
        message = f"the name of {address} does not resolve: {reason_of(error)}"
        remedy = "check the spelling of the host, or the advertised_host in the peers file"
    elif error.errno in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH):
        message = f"{address} cannot be reached: {reason_of(error)}"
        remedy = "check the address, the network between and its firewalls"
    else:
        message = f"no connection to {address}: {reason_of(error)}"
        remedy = "check the address"
    return PeerUnreachable(code, message, remedy=remedy)
