"""Messages of TLS that Python has no functions for, made by OpenSSL itself: key updates (RFC 8446,
4.6.3) and renegotiations.
"""

from __future__ import annotations

import _ssl
import ctypes
import ssl


def key_updates(
    tls: ssl.SSLObject, outgoing: ssl.MemoryBIO, count: int, *, requested: bool
) -> bytes:
    """So many KeyUpdate messages, encrypted. `requested`: the peer must update its keys, too."""
    openssl, pointer = _openssl(tls)
    for _ in range(count):
        assert openssl.SSL_key_update(pointer, int(requested)) == 1
        assert openssl.SSL_do_handshake(pointer) == 1
    return outgoing.read()


def renegotiation(tls: ssl.SSLObject, outgoing: ssl.MemoryBIO) -> bytes:
    """The first message of a renegotiation, encrypted. TLS 1.2 only."""
    openssl, pointer = _openssl(tls)
    assert openssl.SSL_renegotiate(pointer) == 1
    openssl.SSL_do_handshake(pointer)  # it waits for the response
    return outgoing.read()


def _openssl(tls: ssl.SSLObject) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    # PyObject_HEAD, the Python socket, and SSL*
    position = object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p)
    address = id(tls._sslobj) + position  # type: ignore[attr-defined]
    return ctypes.CDLL(_ssl.__file__), ctypes.c_void_p.from_address(address)
