"""Encodes a request as parts of memory, without copies of large blobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mqd import limits
from mqd.protocol.batch import Buffer
from mqd.protocol.schema import Api

LARGE_BYTES: Final = 64 * limits.KIB
"""For blobs of this size or more, a separate part costs less than a copy."""


class RequestParts:
    """A stream for constructs. `parts` are in wire order; `size` is the sum of their bytes."""

    def __init__(self) -> None:
        self.parts: list[Buffer] = []
        self.size = 0
        self._small: bytearray | None = None
        """The last part, if small blobs may be added to it."""

    def write(self, data: Buffer) -> None:
        self.size += len(data)
        if len(data) >= LARGE_BYTES:
            self.parts.append(data)
            self._small = None
            return
        if self._small is None:
            self._small = bytearray()
            self.parts.append(self._small)
        self._small += data


def encode_request_parts(api: Api, version: int, mapping: Mapping[str, Any]) -> RequestParts:
    """The body of a request, equal to the result of `api.encode_request`, without copies of large
    blobs.
    """
    assert api.supports(version), (api.name, version)
    parts = RequestParts()
    message = api.request.at(version, flexible=api.is_flexible(version))
    message._build(mapping, parts, None, "")
    return parts
