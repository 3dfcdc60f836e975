"""Decodes the header of a request for a broker: API, version, and client id.

The size of the header depends on the API and the version (KIP-482), so this file uses both the API
table and their schema. The encoder is in schema.py.
"""

from __future__ import annotations

from typing import NamedTuple

from mqd.errors import ProtocolError
from mqd.protocol.apis import by_key
from mqd.protocol.primitives import Cursor
from mqd.protocol.schema import API_VERSIONS_KEY, REQUEST_HEADER, Api, Buffer, UnsupportedApi
from mqd.protocol.structures import skip_tagged_fields


class RequestHeader(NamedTuple):
    """`body_position`: the start of the body in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def decode_request_header(frame: Buffer) -> RequestHeader:
    """The header of a request frame.

    Raises UnsupportedApi for an unknown key or version. ApiVersions is the exception: a client
    begins with any version and gets the versions of this broker. So for an unknown version the
    header is decoded up to the client id, which every version has at the same position. The body is
    not decoded.
    """
    size = len(frame)
    if size < REQUEST_HEADER.size:
        raise ProtocolError(f"a frame of {size} bytes is too short for a request header")
    api_key, api_version, correlation_id, client_id_bytes = REQUEST_HEADER.unpack_from(frame)
    position = REQUEST_HEADER.size
    api = _api(api_key)
    if api is None or not (api.supports(api_version) or api_key == API_VERSIONS_KEY):
        raise UnsupportedApi(api_key, api_version, None if api is None else api.name)
    client_id = None
    if client_id_bytes >= 0:
        end = position + client_id_bytes
        if end > size:
            raise ProtocolError(f"client id of {client_id_bytes} bytes in a frame of {size}")
        try:
            client_id = str(frame[position:end], "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"client id is not UTF-8: {error.reason}") from None
        position = end
    elif client_id_bytes != -1:
        raise ProtocolError(f"client id of {client_id_bytes} bytes")
    if not api.supports(api_version):
        return RequestHeader(api_key, api_version, correlation_id, client_id, size)
    if api.is_flexible(api_version):
        if position < size and not frame[position]:  # no tagged fields: what every client sends
            position += 1
        else:
            stream = Cursor(frame, position, 0)
            skip_tagged_fields(stream)
            position = stream.position
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


_apis: dict[int, Api] = {}


def _api(key: int) -> Api | None:
    """The API with this key. A dictionary lookup, because every request needs it."""
    api = _apis.get(key)
    if api is None:
        api = by_key(key)
        if api is not None:
            _apis[key] = api
    return api
