"""TLS on the side of the server: above the sockets of `net.py`, by OpenSSL on buffers in memory.

`TlsSocket` is a `Socket`: it never waits, and a turn of the server treats it as any other
connection. One call decrypts or encrypts a bounded amount. The handshake runs inside
`receive_into`, one step for each call: until it is complete, the call raises BlockingIOError.

The poller sees only the TCP socket. So a `TlsSocket` reports two things to it (`LayeredSocket`):
decrypted bytes that nobody has received yet, and encrypted bytes that nobody has sent yet.

Invariants of `TlsSocket`:
- At most one piece of encrypted data is unsent; `send` accepts no more before it is sent.
- `send` reports bytes as sent only when their encrypted form is sent. The next call starts with
  the encrypted but unreported bytes (`_ahead`), and skips them.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from mqd.io.disk import File
from mqd.io.net import LayeredSocket, Listener, TcpSocket
from mqd.io.tls_errors import TlsFailed, server_reason
from mqd.io.tls_records import TlsRecords
from mqd.limits import (
    KIB,
    TLS_RECEIVE_BYTES,
    TLS_RECORD_BYTES,
    TLS_SEND_BYTES,
    TLS_SENT_AT_ONCE_BYTES,
)
from mqd.security.principal import ANONYMOUS, Principal

_HANDSHAKE_RECORD = 0x16
"""First byte of a TLS client (RFC 8446)."""
_ALERT_PROTOCOL_VERSION = bytes.fromhex("15030300020246")
"""For a client that sends plaintext: a fatal alert, protocol_version."""
_UNSENT_BYTES_MAX = 128 * KIB
"""Encrypted bytes of the protocol itself (tickets, key updates) that the peer does not read."""
_EXTRA_RECORDS = 64
"""Records of one call beside those that fill its view: 2 ms, if they are key updates."""

_scratch = memoryview(bytearray(TLS_RECEIVE_BYTES))
"""Encrypted bytes on their way from a socket to OpenSSL. Its content is valid only until the next
statement."""


@dataclass(frozen=True, slots=True)
class TlsAcceptor:
    """How a listener accepts connections. A reloaded certificate creates a new TlsAcceptor."""

    context: ssl.SSLContext
    principal_of: Callable[[bytes | None], Principal] | None = None
    """(certificate of the client in DER, None without one) -> its principal. Raises ValueError.
    None: certificates name no principal.
    """
    allows_plaintext: bool = False
    """Whether a client may also connect without TLS."""
    is_of_nodes: bool = False
    """Whether the clients are other nodes: for messages."""
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
        "is_established",
        "on_established",
        "principal",
        "receive_into",
        "send",
    )

    def __init__(self, inner: TcpSocket, acceptor: TlsAcceptor) -> None:
        super().__init__(inner)
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
        if self._ended:  # the end may have arrived together with data
            return 0
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
        records_left = size // TLS_RECORD_BYTES + _EXTRA_RECORDS
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
            room = min(len(_scratch), wanted + 2 * TLS_RECORD_BYTES)
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
        records_left = _EXTRA_RECORDS  # a message may come in records of one byte (I41)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._queue_outgoing()
                self.flush()
                filled = self._fill(TLS_RECORD_BYTES, records_left) if records_left > 0 else None
                self.is_holding = bool(self._records.waiting)
                if filled is None:
                    raise BlockingIOError from None
                records_left -= max(1, filled[1])
                if not filled[0]:
                    client = "another node" if self._acceptor.is_of_nodes else "the client"
                    raise TlsFailed(
                        f"{client} closed the connection during the TLS handshake",
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
        return TlsFailed(*server_reason(error, is_of_nodes=self._acceptor.is_of_nodes))

    # -- sending

    def send_more(self, data: bytes | bytearray | memoryview) -> int:
        return self.send(data)

    def _send_bytes(self, data: bytes | bytearray | memoryview) -> int:
        if not self._unsent and not self._ahead and len(data) <= TLS_RECORD_BYTES:  # most responses
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
                written += self._tls.write(piece[written : written + TLS_RECORD_BYTES])
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
        # A reference cycle that is older than a freeze would stay for hours (io/garbage.py).
        self.on_established = _do_nothing
        self.receive_into, self.send = self.inner.receive_into, self.inner.send

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
        return TlsSocket(cast(TcpSocket, sock), self.acceptor)

    def close(self) -> None:
        self.inner.close()


def _do_nothing() -> None:
    pass
