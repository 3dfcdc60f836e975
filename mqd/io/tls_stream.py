"""TLS for clients and for connections between nodes, above the streams of `net.py`."""

from __future__ import annotations

import ssl

import trio

from mqd.io.net import Listener, Network, Poller, Stream
from mqd.io.tls_errors import NO_TLS, TlsFailed, client_reason
from mqd.limits import TLS_RECEIVE_BYTES, TLS_RECORD_BYTES, TLS_SEND_BYTES


class TlsStream:
    """A Stream that encrypts. One task may receive while another sends."""

    __slots__ = ("_incoming", "_inner", "_outgoing", "_scratch", "_sending", "_tls")

    def __init__(self, inner: Stream, context: ssl.SSLContext, host: str) -> None:
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._sending = trio.Lock()
        self._scratch = memoryview(bytearray(TLS_RECEIVE_BYTES))

    @property
    def certificate(self) -> bytes | None:
        """The certificate of the peer, in DER."""
        return self._tls.getpeercert(binary_form=True)

    async def handshake(self, address: str) -> None:
        """Complete the handshake. Raises TlsFailed, which names `address`."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                try:
                    await self._send_outgoing()
                    arrived = await self._fill()
                except ConnectionError:
                    arrived = 0
                if not arrived:
                    raise TlsFailed(
                        f"{address} closed the connection during the TLS handshake",
                        "is it the address of a TLS listener? The log of the broker has the reason",
                        is_plaintext=True,
                        is_closed=True,
                    ) from None
                continue
            except ssl.SSLError as error:
                failure = TlsFailed(
                    *client_reason(error, address), is_plaintext=error.reason in NO_TLS
                )
                try:
                    await self._send_outgoing()  # the alert, for the log of the other side
                except OSError:
                    pass
                raise failure from None
            await self._send_outgoing()
            return

    async def receive_into(self, view: memoryview) -> int:
        while True:
            try:
                return self._tls.read(len(view), view)  # type: ignore[return-value]
            except ssl.SSLWantReadError:
                if self._outgoing.pending:
                    await self._send_outgoing()
                if not await self._fill():
                    return 0
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0
            except ssl.SSLError as error:
                raise TlsFailed(*client_reason(error, "the broker")) from None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        async with self._sending:
            while view:
                piece = view[:TLS_SEND_BYTES]
                view = view[TLS_SEND_BYTES:]
                while piece:  # one record for each call
                    piece = piece[self._tls.write(piece[:TLS_RECORD_BYTES]) :]
                await self._inner.send_all(self._outgoing.read())

    async def _send_outgoing(self) -> None:
        async with self._sending:
            if self._outgoing.pending:
                await self._inner.send_all(self._outgoing.read())

    async def _fill(self) -> int:
        """Receive encrypted bytes; 0 at the end of the stream."""
        arrived = await self._inner.receive_into(self._scratch)
        self._incoming.write(self._scratch[:arrived])
        return arrived

    def close(self) -> None:
        self._inner.close()


class TlsNetwork:
    """A Network whose `connect` gives encrypted streams."""

    def __init__(self, inner: Network, context: ssl.SSLContext) -> None:
        self.inner = inner
        self.context = context

    async def connect(self, host: str, port: int, *, timeout: float = 10.0) -> TlsStream:
        """Raises OSError, and TlsFailed if the handshake fails."""
        started = trio.current_time()
        stream = await self.inner.connect(host, port, timeout=timeout)
        address = f"{host}:{port}"
        try:
            left = max(0.0, started + timeout - trio.current_time())
            with trio.move_on_after(left) as scope:
                encrypted = TlsStream(stream, self.context, host)
                await encrypted.handshake(address)
            if scope.cancelled_caught:
                raise TlsFailed(
                    f"{address} did not complete the TLS handshake within {timeout:g} s",
                    "is it the address of a TLS listener?",
                )
        except BaseException:
            stream.close()
            raise
        return encrypted

    async def listen(self, host: str, port: int) -> Listener:
        return await self.inner.listen(host, port)

    def poller(self) -> Poller:
        return self.inner.poller()
