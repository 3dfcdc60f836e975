"""TLS above the sockets and streams of `net.py`, by OpenSSL on buffers in memory.

`TlsSocket` is a `Socket`: it never waits, and a turn of the server treats it as any other
connection. One call decrypts or encrypts a bounded amount. The handshake runs inside
`receive_into`, one step for each call: until it is complete, the call raises BlockingIOError.

The poller sees only the TCP socket. So a `TlsSocket` reports two things to it (`LayeredSocket`):
decrypted bytes that nobody has received yet, and encrypted bytes that nobody has sent yet.

Invariants of `TlsSocket`:
- At most one piece of encrypted data is unsent; `send` accepts no more before it is sent.
- `send` reports bytes as sent only when their encrypted form is sent. Those that are encrypted but
  not reported (`_ahead`) come again at the start of the next call, which skips them.

`TlsStream` is a `Stream`, for clients and for connections between nodes.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass

import trio

from mqd.io.disk import File
from mqd.io.net import LayeredSocket, Listener, Network, OsSocket, Poller, Stream
from mqd.io.tls_records import TlsRecords
from mqd.limits import KIB, TLS_RECEIVE_BYTES, TLS_SEND_BYTES, TLS_SENT_AT_ONCE_BYTES
from mqd.security.principal import ANONYMOUS, Principal

_HANDSHAKE_RECORD = 0x16
"""First byte of a TLS client (RFC 8446)."""
_ALERT_PROTOCOL_VERSION = bytes.fromhex("15030300020246")
"""For a client that sends plaintext: a fatal alert, protocol_version."""
_UNSENT_BYTES_MAX = 128 * KIB
"""Encrypted bytes of the protocol itself (tickets, key updates) that the peer does not read."""
_RECORD_BYTES = 16 * KIB
_EXTRA_RECORDS = 64
"""Records of one call beside those that fill its view: 2 ms, if they are key updates."""

_scratch = memoryview(bytearray(TLS_RECEIVE_BYTES))
"""Encrypted bytes on their way from a socket to OpenSSL. Only between two statements."""


class TlsFailed(OSError):
    """A TLS connection failed: the text has what happened, why, and what to do."""

    def __init__(self, message: str, remedy: str = "", *, is_plaintext: bool = False) -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message)
        self.message = message
        self.remedy = remedy
        self.is_plaintext = is_plaintext
        """Whether the other side probably has no TLS."""


@dataclass(frozen=True, slots=True)
class TlsAcceptor:
    """How a listener accepts connections. A new certificate is a new value."""

    context: ssl.SSLContext
    principal_of: Callable[[bytes | None], Principal] | None = None
    """(certificate of the client in DER, None without one) -> its principal. Raises ValueError.
    None: certificates name no principal.
    """
    allows_plaintext: bool = False
    """Whether a client may also connect without TLS."""
    refusal_of_node: Callable[[bytes | None, int], str | None] | None = None
    """On the peer listener: (certificate, node id) -> why it is not that of the node."""
    plaintext_remedy: str = (
        "set security.protocol=SSL (SASL_SSL with SASL) in the client, or connect to a PLAINTEXT "
        "listener"
    )


class TlsSocket(LayeredSocket):
    """A Socket that encrypts."""

    __slots__ = (
        "_acceptor",
        "_ahead",
        "_ended",
        "_incoming",
        "_is_plain",
        "_outgoing",
        "_records",
        "_saw_first_byte",
        "_tls",
        "_unsent",
        "inner",
        "is_established",
        "on_established",
        "principal",
        "receive_into",
        "send",
    )

    def __init__(self, inner: OsSocket, acceptor: TlsAcceptor) -> None:
        super().__init__()
        self.inner = inner
        self._acceptor = acceptor
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = acceptor.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._records = TlsRecords()
        self._unsent = b""
        """Encrypted, and not taken by the TCP socket."""
        self._ahead = 0
        """Bytes at the start of the next `send` that are encrypted already."""
        self._saw_first_byte = False
        self._ended = False
        self._is_plain = False
        self.is_established = False
        """Whether the handshake is complete."""
        self.principal = ANONYMOUS
        """The identity of the client's certificate, when the handshake is complete."""
        self.on_established: Callable[[], None] = _do_nothing
        self.receive_into: Callable[[memoryview], int] = self._receive_into
        self.send: Callable[[bytes | bytearray | memoryview], int] = self._send_bytes

    # -- identity

    @property
    def peer(self) -> str:
        return self.inner.peer

    @property
    def is_encrypted(self) -> bool:
        """False where the client connected without TLS, and may."""
        return not self._is_plain

    @property
    def certificate(self) -> bytes | None:
        """The certificate of the peer, in DER."""
        return self._tls.getpeercert(binary_form=True) if self.is_encrypted else None

    def refusal_of_node(self, node_id: int) -> str | None:
        """Why the certificate of the peer is not that of a node. None without TLS."""
        check = self._acceptor.refusal_of_node
        if check is None or not self.is_encrypted:
            return None
        return check(self.certificate, node_id)

    @property
    def version(self) -> str:
        return self._tls.version() or ""

    # -- receiving

    @property
    def has_unread(self) -> bool:
        return self.is_holding or self.inner.has_unread

    def _receive_into(self, view: memoryview) -> int:
        try:
            if not self.is_established:
                self._handshake()
                if not self.is_encrypted:
                    return self.receive_into(view)
            received = self._decrypt(view)
        except ssl.SSLError as error:
            raise self._failed(error) from None
        finally:
            self.report()
        if received or self._ended:
            return received
        raise BlockingIOError

    def _decrypt(self, view: memoryview) -> int:
        """Receive and decrypt until the view is full, or nothing more has arrived."""
        tls, size = self._tls, len(view)
        received = 0
        is_drained = False
        # Tiny records cost as much as full ones, and those without data more: their number is
        # bounded, too (I41).
        records_left = size // _RECORD_BYTES + _EXTRA_RECORDS
        while received < size:
            if tls.pending() or self._incoming.pending:
                try:
                    got = int(tls.read(size - received, view[received:]))
                except ssl.SSLWantReadError:
                    if is_drained:
                        break
                except ssl.SSLZeroReturnError:  # the peer has closed its side
                    self._ended = True
                    break
                except ssl.SSLEOFError:
                    self._ended = True
                    break
                else:
                    if not got:
                        self._ended = True
                        break
                    received += got
                    continue
            elif is_drained:
                break
            if records_left <= 0:
                break
            filled = self._fill(size - received, records_left)
            if filled is None:
                break
            arrived, records = filled
            if not arrived:
                self._ended = True
                break
            records_left -= max(1, records)
            is_drained = arrived < len(_scratch) and not self._records.waiting
        self.is_holding = bool(self._records.waiting) or (
            received == size and bool(tls.pending() or self._incoming.pending)
        )
        if self._outgoing.pending:  # a response to a key update
            self._queue_outgoing()
            self.flush()
        return received

    def _fill(self, wanted: int, records_max: int) -> tuple[int, int] | None:
        """Give OpenSSL encrypted bytes. Returns how many have arrived, and the number of records.
        None: nothing has arrived. 0 bytes: the stream has ended.
        """
        data: bytes | memoryview = self._records.waiting
        if not data:
            room = min(len(_scratch), wanted + 2 * _RECORD_BYTES)
            try:
                data = _scratch[: self.inner.receive_into(_scratch[:room])]
            except BlockingIOError:
                return None
        if not self._saw_first_byte and data:
            self._saw_first_byte = True
            if data[0] != _HANDSHAKE_RECORD:
                self._refuse_plaintext(bytes(data))
        taken, records = self._records.take(data, records_max)
        self._incoming.write(taken)
        if not data:
            self._incoming.write_eof()
        return len(data), records

    def _refuse_plaintext(self, start: bytes) -> None:
        """Raises TlsFailed: the client speaks another protocol."""
        try:
            self.inner.send(_ALERT_PROTOCOL_VERSION)
        except OSError:
            pass
        if start[:4] in (b"GET ", b"POST", b"HEAD", b"PUT "):
            raise TlsFailed(
                "an HTTP request on a TLS listener", "connect with a Kafka client over TLS"
            )
        raise TlsFailed("plaintext on a TLS listener", self._acceptor.plaintext_remedy)

    # -- the handshake

    def _handshake(self) -> None:
        """Continue the handshake. Raises BlockingIOError until it is complete."""
        if self._acceptor.allows_plaintext and not self._saw_first_byte:
            self._choose()
            if not self.is_encrypted:
                return
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._queue_outgoing()
                self.flush()
                filled = self._fill(_RECORD_BYTES, _EXTRA_RECORDS)
                if filled is None:
                    raise BlockingIOError from None
                if not filled[0]:
                    raise TlsFailed(
                        "the client closed the connection during the TLS handshake",
                        "see its log: it may not trust the certificate of this node",
                    ) from None
                continue
            break
        self._queue_outgoing()
        self.flush()
        if self._acceptor.principal_of is not None:
            try:
                self.principal = self._acceptor.principal_of(self.certificate)
            except ValueError as error:
                raise TlsFailed(str(error)) from None
        self.is_established = True
        self.on_established()

    def _choose(self) -> None:
        """Look at the first byte: TLS or plaintext. Raises BlockingIOError before it arrives."""
        inner = self.inner
        first = inner.peek()
        self._saw_first_byte = True
        if first and first[0] != _HANDSHAKE_RECORD:
            self.is_established = True
            self._is_plain = True
            self.receive_into, self.send = inner.receive_into, inner.send
            self.on_established()

    def _failed(self, error: ssl.SSLError) -> TlsFailed:
        """The cause and the remedy. Sends the alert that OpenSSL has for the client."""
        self._queue_outgoing()
        try:
            self.flush()
        except OSError:
            pass
        return TlsFailed(*_server_reason(error))

    # -- sending

    def send_more(self, data: bytes | bytearray | memoryview) -> int:
        return self.send(data)

    def _send_bytes(self, data: bytes | bytearray | memoryview) -> int:
        if not self._unsent and not self._ahead and len(data) <= _RECORD_BYTES:  # most responses
            written = self._tls.write(data)
            encrypted = self._outgoing.read()
            try:
                sent = self.inner.send(encrypted)
            except BlockingIOError:
                sent = 0
            if sent == len(encrypted):
                return written
            self._unsent = encrypted[sent:]
            self._ahead = written
            self.report()
            if not (total := self._reported()):
                raise BlockingIOError
            return total
        view = memoryview(data)
        return self._send(lambda position, size: view[position : position + size], len(view))

    def send_file(self, file: File, position: int, size: int) -> int:
        if not self.is_encrypted:
            return self.inner.send_file(file, position, size)

        def read(offset: int, length: int) -> bytes:
            data = file.read_at(position + offset, length)
            if len(data) != length:
                raise OSError(f"{file.path} ends before position {position + size}")
            return data

        return self._send(read, size)

    def _send(self, read: Callable[[int, int], bytes | memoryview], size: int) -> int:
        """Encrypt and send up to `size` bytes, one piece at a time. Returns how many are sent.
        Raises BlockingIOError for none.
        """
        total = 0
        if self._ahead or self._unsent:
            assert self._ahead <= size, "the next call continues with the same bytes"
            self.flush()
            total = self._reported()
            if self._unsent:
                if not total:
                    raise BlockingIOError
                return total
        while total < size:
            piece = memoryview(read(total, min(size - total, TLS_SEND_BYTES)))
            written = 0
            while written < len(piece):  # one record for each call
                written += self._tls.write(piece[written : written + _RECORD_BYTES])
            self._ahead = written
            self._unsent = self._outgoing.read()
            self.flush()
            total += self._reported()
            if self._unsent or total >= TLS_SENT_AT_ONCE_BYTES:
                break
        if not total:
            raise BlockingIOError
        return total

    def _reported(self) -> int:
        """How many bytes of `_ahead` are sent in their encrypted form by now."""
        left = min(self._ahead, len(self._unsent))
        done = self._ahead - left
        self._ahead = left
        return done

    def _queue_outgoing(self) -> None:
        """Take what OpenSSL wants to send. Raises TlsFailed if the peer reads none of it."""
        if self._outgoing.pending:
            self._unsent += self._outgoing.read()
            if len(self._unsent) > _UNSENT_BYTES_MAX + TLS_SEND_BYTES:
                raise TlsFailed("the client sends key updates, and reads no responses to them")

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def flush(self) -> None:
        """Send the encrypted bytes, as many as the TCP socket takes. Raises OSError."""
        while self._unsent:
            try:
                sent = self.inner.send(self._unsent)
            except BlockingIOError:
                self.report()
                return
            self._unsent = self._unsent[sent:]
        self.report()

    # -- the end

    def close(self) -> None:
        if self.is_established and self.is_encrypted and not self._unsent:
            try:  # close_notify: the peer can tell the end from a cut connection
                self._tls.unwrap()
            except (ssl.SSLError, ValueError):
                pass
            try:
                self.inner.send(self._outgoing.read())
            except OSError:
                pass
        self.inner.close()

    def fileno(self) -> int:
        return self.inner.fileno()


class TlsListener:
    """A Listener whose connections are encrypted."""

    def __init__(self, inner: Listener, acceptor: TlsAcceptor) -> None:
        self.inner = inner
        self.acceptor = acceptor
        """Replaced by a new certificate: connections that are open keep theirs."""
        self.port = inner.port

    async def accept(self) -> TlsSocket:
        sock = await self.inner.accept()
        assert isinstance(sock, OsSocket)
        return TlsSocket(sock, self.acceptor)

    def close(self) -> None:
        self.inner.close()


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
                    ) from None
                continue
            except ssl.SSLError as error:
                failure = TlsFailed(
                    *_client_reason(error, address), is_plaintext=error.reason in _NO_TLS
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
                raise TlsFailed(*_client_reason(error, "the broker")) from None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        async with self._sending:
            while view:
                piece = view[:TLS_SEND_BYTES]
                view = view[TLS_SEND_BYTES:]
                while piece:  # one record for each call
                    piece = piece[self._tls.write(piece[:_RECORD_BYTES]) :]
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


_ALERTS = {
    "CERTIFICATE_UNKNOWN": "it does not accept the certificate",
    "BAD_CERTIFICATE": "it does not accept the certificate",
    "UNKNOWN_CA": "it does not trust the authority that signed the certificate",
    "CERTIFICATE_EXPIRED": "the certificate is expired",
    "CERTIFICATE_REVOKED": "the certificate is revoked",
    "HANDSHAKE_FAILURE": "there is no common cipher suite or protocol version",
    "PROTOCOL_VERSION": "there is no common protocol version",
    "CERTIFICATE_REQUIRED": "it requires a certificate",
}
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"})
_NOTHING_IN_COMMON = frozenset(
    {"NO_SHARED_CIPHER", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE", "NO_CIPHERS_AVAILABLE"}
)


def _alert(error: ssl.SSLError) -> str | None:
    """What an alert of the other side means. None if the error is none."""
    name = (error.reason or "").partition("_ALERT_")[2]
    return _ALERTS.get(name, name.lower().replace("_", " ")) if name else None


def _server_reason(error: ssl.SSLError) -> tuple[str, str]:
    """(What happened and why, what to do) on the server."""
    alert = _alert(error)
    if alert is not None:
        return (
            f"the client ended the TLS handshake: {alert}",
            "check ssl.truststore.*, the clock and the address in the client",
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of the client is not accepted: {error.verify_message}",
            "it must be signed by a certificate in ssl.truststore.*, and be valid now",
        )
    if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return (
            "the client has no certificate, and ssl.client.auth=required",
            "set ssl.keystore.* in the client",
        )
    if error.reason in _NOTHING_IN_COMMON:
        return (
            "the client has no common TLS version or cipher suite with this listener",
            "compare ssl.enabled.protocols and ssl.cipher.suites",
        )
    return f"the TLS connection failed: {error.reason or error}", ""


def _client_reason(error: ssl.SSLError, address: str) -> tuple[str, str]:
    """(What happened and why, what to do) on the client."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message
        if error.verify_code == 10:  # X509_V_ERR_CERT_HAS_EXPIRED
            return (
                f"the certificate of {address} is expired",
                "renew it on the broker (`mqctl cert renew`), and check the clock of this machine",
            )
        if error.verify_code in (62, 63, 64) or "mismatch" in why.lower():
            return (
                f"the certificate of {address} is for another host: {why.rstrip('.')}",
                "connect to a name of the certificate, add this name to it, or set "
                "ssl.endpoint.identification.algorithm= (empty) if the network is safe",
            )
        return (
            f"the certificate of {address} is not trusted: {why}",
            "set the truststore (ssl.truststore.location) to the certificate of the authority "
            "that signed it",
        )
    alert = _alert(error)
    if alert is not None:
        return (
            f"{address} ended the TLS handshake: {alert}",
            "check the client's certificate and protocols (ssl.keystore.*, "
            "ssl.enabled.protocols); the log of the broker has the reason",
        )
    if error.reason in _NO_TLS:
        return (
            f"{address} does not speak TLS",
            "set security.protocol=PLAINTEXT, or connect to a TLS listener",
        )
    if error.reason in _NOTHING_IN_COMMON:
        return (
            f"{address} has no common TLS version or cipher suite with this client",
            "compare ssl.enabled.protocols and ssl.cipher.suites",
        )
    return f"the TLS connection to {address} failed: {error.reason or error}", ""


def _do_nothing() -> None:
    pass
