"""Gives OpenSSL a bounded number of TLS records at a time. Pure.

One call of OpenSSL handles all records that it has until one of them has data for the application.
A client may send thousands of records without data: key updates (RFC 8446, 4.6.3) take 27 bytes and
15 to 33 us each. Here the headers of the records (RFC 8446, 5.1) are read before OpenSSL gets them.
"""

from __future__ import annotations

_HEADER_BYTES = 5


class TlsRecords:
    """The encrypted bytes of one connection, in the order of their arrival."""

    __slots__ = ("_body_left", "_header", "waiting")

    def __init__(self) -> None:
        self.waiting = b""
        """Bytes that have arrived and that OpenSSL does not have yet: at most one receive."""
        self._header = b""
        """The start of a header whose end has not arrived."""
        self._body_left = 0
        """Bytes of the current record that have not arrived."""

    def take(self, data: bytes | memoryview, records_max: int) -> tuple[bytes | memoryview, int]:
        """The start of `data` with at most `records_max` records, and how many begin in it. The
        rest is in `waiting`.
        """
        position = records = 0
        while position < len(data):
            if self._body_left:
                step = min(self._body_left, len(data) - position)
                self._body_left -= step
                position += step
                continue
            if records == records_max:
                break
            part = bytes(data[position : position + _HEADER_BYTES - len(self._header)])
            self._header += part
            position += len(part)
            if len(self._header) == _HEADER_BYTES:
                self._body_left = int.from_bytes(self._header[3:])
                self._header = b""
                records += 1
        self.waiting = bytes(data[position:])
        return data[:position], records
