"""Defects to plant in TLS. Only runs with TLS find them."""

from __future__ import annotations

from mqd.io.tls import TlsSocket
from tests.sim.planting import Patches, bug

_PART_BYTES = 512


@bug("a TLS socket holds decrypted bytes without a report to the poller", security="SASL_SSL")
def decrypted_bytes_are_not_reported() -> Patches:
    original = TlsSocket._decrypt

    def decrypt(self: TlsSocket, view: memoryview) -> int:
        received = original(self, view[:_PART_BYTES])
        self.is_holding = False
        return received

    yield TlsSocket, "_decrypt", decrypt


@bug("a TLS socket loses the end of what it sends", security="SASL_SSL")
def end_of_sent_bytes_is_lost() -> Patches:
    original = TlsSocket._send_bytes

    def send_bytes(self: TlsSocket, data: bytes | bytearray | memoryview) -> int:
        part = memoryview(data)[: len(data) - len(data) // 4]
        sent = original(self, part)
        return len(data) if sent == len(part) else sent

    yield TlsSocket, "_send_bytes", send_bytes
