"""Recognizes clients of other protocols, for the message in the log."""

from __future__ import annotations

_HTTP_STARTS = frozenset(
    (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"CONN", b"OPTI", b"TRAC", b"PATC", b"PRI ")
)
"""The first four bytes of HTTP requests, by their methods (RFC 9110, RFC 5789); the last is
how HTTP/2 begins (RFC 9113).
"""
_TLS_HANDSHAKE = b"\x16\x03"
"""The first bytes of a TLS client (RFC 8446)."""


def other_protocol(size: int, *, is_of_nodes: bool) -> str | None:
    """The protocol of a client whose first four bytes are `size`, and the remedy. None if it is not
    recognized. `is_of_nodes`: on the peer listener.
    """
    start = (size & 0xFFFFFFFF).to_bytes(4, "big")
    if start in _HTTP_STARTS:
        return "an HTTP request: this port speaks the Kafka protocol, connect with a Kafka client"
    if start.startswith(_TLS_HANDSHAKE) and is_of_nodes:
        return (
            "a TLS handshake: a node connects with TLS, set peer.ssl=preferred or required on "
            "this node"
        )
    if start.startswith(_TLS_HANDSHAKE):
        return (
            "a TLS handshake: this port speaks the Kafka protocol without TLS, set "
            "security.protocol=PLAINTEXT in the client"
        )
    return None
