"""The declaration of APIs, and the headers of their messages. request_header.py decodes the headers
of requests.

A message is declared once for all its versions: `message(field(...), ...)`. The construct of one
version is created on first use and cached. Names are those of Kafka's schemas in snake_case.
Examples:

    field("name", STRING, since=10, nullable_since=12)      in versions 10 and up, null allowed from
                                                            12 on
    field("topics", array(field("name", STRING)), until=5)  an array of structures, gone after
                                                            version 5
    field("node_endpoints", array(...), since=10, tag=0)    tagged: on the wire only when it is not
                                                            the default

Decoded messages are construct Containers that carry every declared field. Fields that the version
lacks have their defaults, so a reader need not check the version. Encoding takes any mapping: a
missing field is written as its default, and fields that the version lacks are omitted.

The headers are KIP-482's: request header v2 and response header v1 (tagged fields) for flexible
versions. The response to ApiVersions always has response header v0: its reader does not know the
version yet.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field as dataclass_field
from io import BytesIO
from typing import Any, Final, Protocol

from construct import Construct, Container

from mqd import limits
from mqd.errors import ProtocolError
from mqd.protocol.chunks import Chunks
from mqd.protocol.primitives import (
    LENGTH_16,
    LENGTH_32,
    LENGTH_COMPACT,
    Blob,
    Cursor,
    Number,
    String,
    Uuid,
    Varint,
)
from mqd.protocol.structures import (
    Array,
    Member,
    NullableStructure,
    NumberArray,
    Structure,
    skip_tagged_fields,
)
from mqd.types import ZERO_UUID

Buffer = bytes | bytearray | memoryview


class UnsupportedApi(ProtocolError):
    """A request for an unknown API or version. As in Kafka, the node closes the connection."""

    def __init__(self, api_key: int, api_version: int, name: str | None) -> None:
        """`name`: None for an unknown API."""
        super().__init__(
            f"unknown API key {api_key}"
            if name is None
            else f"{name} version {api_version} is not supported"
        )
        self.api_key = api_key
        self.api_version = api_version


# -- kinds of fields


class FieldKind(Protocol):
    """The kind of a field's value. `at` returns its construct in one version; `new` returns the
    default value.
    """

    def at(self, version: int, *, flexible: bool, nullable: bool) -> Construct: ...

    def new(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """A kind with the same bytes in every version."""

    construct: Construct
    default: Any

    def at(self, version: int, *, flexible: bool, nullable: bool) -> Construct:
        assert not nullable
        return self.construct

    def new(self) -> Any:
        return self.default


class Sized:
    """A kind with a length before it, which is compact in flexible versions."""

    def __init__(
        self, make: Callable[..., Construct], length: Any, default: Any, **options: bool
    ) -> None:
        self.default = default
        self._constructs = {
            (flexible, nullable): make(
                LENGTH_COMPACT if flexible else length, nullable=nullable, **options
            )
            for flexible in (False, True)
            for nullable in (False, True)
        }

    def at(self, version: int, *, flexible: bool, nullable: bool) -> Construct:
        return self._constructs[flexible, nullable]

    def new(self) -> Any:
        return self.default


BOOLEAN: Final = Fixed(Number("?"), False)
INT8: Final = Fixed(Number("b"), 0)
INT16: Final = Fixed(Number("h"), 0)
UINT16: Final = Fixed(Number("H"), 0)
INT32: Final = Fixed(Number("l"), 0)
INT64: Final = Fixed(Number("q"), 0)
FLOAT64: Final = Fixed(Number("d"), 0.0)
VARINT: Final = Fixed(Varint(5), 0)
VARLONG: Final = Fixed(Varint(10), 0)
UUID: Final = Fixed(Uuid(), ZERO_UUID)
STRING: Final = Sized(String, LENGTH_16, "")
TEXT: Final = Sized(String, LENGTH_16, "", cut=True)
"""A string for people. It may quote input of a peer and exceed the limit of a string: then it is
truncated.
"""
BYTES: Final = Sized(Blob, LENGTH_32, b"")
RECORDS: Final = Sized(Blob, LENGTH_32, None)
"""Record batches, not decoded."""


class _Array:
    def __init__(self, element: FieldKind) -> None:
        self.element = element

    def at(self, version: int, *, flexible: bool, nullable: bool) -> Construct:
        element = self.element.at(version, flexible=flexible, nullable=False)
        make = NumberArray if isinstance(element, Number) else Array
        return make(LENGTH_COMPACT if flexible else LENGTH_32, element, nullable=nullable)

    def new(self) -> list[Any]:
        return []


class _Unset:
    """No declared default: the default of the kind applies."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field in all versions of its message."""

    name: str
    kind: FieldKind
    since: int
    until: int
    nullable_since: int | None
    tag: int | None
    default: Any

    def in_version(self, version: int) -> bool:
        return self.since <= version <= self.until

    def nullable_in(self, version: int) -> bool:
        return self.nullable_since is not None and version >= self.nullable_since

    def new(self) -> Any:
        """The default value; a new object if it is mutable."""
        return self.kind.new() if self.default is _Unset else self.default


class Message:
    """A structure in all its versions: a request, a response, or a field or element of one."""

    def __init__(self, fields: tuple[Field, ...]) -> None:
        assert len({one.name for one in fields}) == len(fields)
        self.fields = fields
        self._structures: dict[tuple[int, bool], Structure] = {}

    def at(self, version: int, *, flexible: bool, nullable: bool = False) -> Construct:
        """The construct of one version."""
        structure = self._structures.get((version, flexible))
        if structure is None:
            structure = self._structures[version, flexible] = self._make(version, flexible)
        return NullableStructure(structure) if nullable else structure

    def new(self) -> Container:
        """Every field with its default."""
        return Container({one.name: one.new() for one in self.fields})

    def _make(self, version: int, flexible: bool) -> Structure:
        present = [one for one in self.fields if one.in_version(version)]
        members = [
            Member(
                one.name,
                one.kind.at(version, flexible=flexible, nullable=one.nullable_in(version)),
                one.new(),
                one.tag,
            )
            for one in present
        ]
        return Structure(members, flexible=flexible, absent=self._absent(version))

    def _absent(self, version: int) -> Callable[[], Container]:
        """Returns a function that creates the defaults of the fields that the bytes may lack: one
        copy in C, except for lists and structures.
        """
        absent = [one for one in self.fields if one.tag is not None or not one.in_version(version)]
        fresh = [(one.name, one.new) for one in absent if isinstance(one.new(), dict | list)]
        constant = Container({one.name: one.new() for one in absent})

        def make() -> Container:
            container = Container(constant)
            for name, new in fresh:
                container[name] = new()
            return container

        return make


VERSION_MAX: Final = 32_767
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
AUTHORIZED_OPERATIONS_UNKNOWN: Final = -(2**31)
"""The value of this field (KIP-430) when the client did not request it."""


def field(
    name: str,
    kind: FieldKind,
    *,
    since: int = 0,
    until: int = VERSION_MAX,
    nullable_since: int | None = None,
    tag: int | None = None,
    default: Any = _Unset,
) -> Field:
    """Declare a field of the versions `since` to `until` (inclusive), nullable from
    `nullable_since` on. A default of None implies a nullable field.
    """
    assert since <= until
    if default is None and nullable_since is None:
        nullable_since = 0
    return Field(name, kind, since, until, nullable_since, tag, default)


def message(*fields: Field) -> Message:
    """Declare a request, a response or a structure within one."""
    return Message(fields)


def array(*of: FieldKind | Field) -> FieldKind:
    """Declare an array of one kind, or of structures with these fields."""
    if len(of) == 1 and not isinstance(of[0], Field):
        return _Array(of[0])
    fields = tuple(one for one in of if isinstance(one, Field))
    assert len(fields) == len(of)
    return _Array(Message(fields))


# -- an API


@dataclass(frozen=True, slots=True, eq=False)
class Api:
    """One request and its response. `versions` are supported; `advertised` are sent to clients
    (None: the API is not advertised).
    """

    key: int
    name: str
    versions: tuple[int, int]
    advertised: tuple[int, int] | None
    flexible_from: int
    request: Message
    response: Message
    response_header_flexible: bool = dataclass_field(default=True, kw_only=True)

    def is_flexible(self, version: int) -> bool:
        """Whether the version has compact lengths and tagged fields; also true for unknown later
        versions.
        """
        return version >= self.flexible_from

    def supports(self, version: int) -> bool:
        """Whether this node supports the version."""
        return self.versions[0] <= version <= self.versions[1]

    def decode_request(self, version: int, buffer: Buffer, position: int = 0) -> Container:
        """The request body from `position` on. Bytes fields are slices of `buffer`. Bytes after the
        last field are ignored, as in Apache Kafka: librdkafka 2.16 sends three extra bytes when it
        requests all topics (Metadata v13).

        Raises UnsupportedApi for an unsupported version, ProtocolError for invalid bytes.
        """
        return self._decode(
            self.request, "request", version, buffer, position, limits.REQUEST_ELEMENTS_MAX
        )

    def decode_request_in_slices(
        self, version: int, stream: Cursor
    ) -> Generator[int, None, Container]:
        """The same, as a generator that returns the request. It yields the number of elements and
        tagged fields decoded since the last yield.
        """
        declared = self.request.at(version, flexible=self.is_flexible(version))
        try:
            container: Container = yield from declared.parse_in_slices(stream)
        except ProtocolError as error:
            raise ProtocolError(f"{self.name} v{version} request: {error}") from None
        return container

    def decode_response(self, version: int, buffer: Buffer, position: int = 0) -> Container:
        """The response body from `position` to the end of `buffer`; errors as in decode_request."""
        return self._decode(
            self.response, "response", version, buffer, position, limits.RESPONSE_ELEMENTS_MAX
        )

    def decode_response_in_slices(
        self, version: int, buffer: Buffer, position: int = 0
    ) -> Generator[int, None, Container]:
        """The same, as a generator: see `decode_request_in_slices`."""
        stream = Cursor(buffer, position, limits.RESPONSE_ELEMENTS_MAX)
        declared = self.response.at(version, flexible=self.is_flexible(version))
        try:
            container: Container = yield from declared.parse_in_slices(stream)
            if stream.position != stream.end:
                raise ProtocolError(
                    f"{stream.end - stream.position} bytes too many at {stream.position}"
                )
        except ProtocolError as error:
            raise ProtocolError(f"{self.name} v{version} response: {error}") from None
        return container

    def encode_request_in_slices(
        self, version: int, mapping: Mapping[str, Any]
    ) -> Generator[int, None, bytes]:
        """The request body, returned at the end of a generator that yields now and then the number
        of elements written since.
        """
        stream = BytesIO()
        yield from self.request.at(version, flexible=self.is_flexible(version)).build_in_slices(
            mapping, stream
        )
        return stream.getvalue()

    def encode_request(self, version: int, mapping: Mapping[str, Any]) -> bytes:
        """The request body, without header."""
        return self._encode(self.request, version, mapping)

    def encode_response(self, version: int, mapping: Mapping[str, Any]) -> bytes:
        """The response body, without header."""
        return self._encode(self.response, version, mapping)

    def encode_response_in_slices(
        self, version: int, mapping: Mapping[str, Any], chunks: Chunks
    ) -> Generator[int, None, None]:
        """The same, written to `chunks` by a generator that yields now and then the number of
        elements written since.
        """
        yield from self.response.at(version, flexible=self.is_flexible(version)).build_in_slices(
            mapping, chunks
        )

    def _decode(
        self,
        declared: Message,
        side: str,
        version: int,
        buffer: Buffer,
        position: int,
        elements_max: int,
    ) -> Container:
        if not self.supports(version):
            raise UnsupportedApi(self.key, version, self.name)
        stream = Cursor(buffer, position, elements_max)
        try:
            container = declared.at(version, flexible=self.is_flexible(version))._parse(
                stream, None, ""
            )
            if stream.position != stream.end and side == "response":
                raise ProtocolError(
                    f"{stream.end - stream.position} bytes too many at {stream.position}"
                )
        except ProtocolError as error:
            raise ProtocolError(f"{self.name} v{version} {side}: {error}") from None
        return container

    def _encode(self, declared: Message, version: int, mapping: Mapping[str, Any]) -> bytes:
        assert self.supports(version), (self.name, version)
        stream = BytesIO()
        declared.at(version, flexible=self.is_flexible(version))._build(mapping, stream, None, "")
        return stream.getvalue()


# -- headers

API_VERSIONS_KEY: Final = 18

REQUEST_HEADER: Final = struct.Struct(">hhlh")
"""API key, version, correlation id, bytes of the client id; -1 for none."""
_CORRELATION_ID: Final = struct.Struct(">l")


def encode_request_header(
    api: Api, version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """The header of a request; append the body to it."""
    assert api.supports(version), (api.name, version)
    encoded = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(encoded)
    header = REQUEST_HEADER.pack(api.key, version, correlation_id, size) + encoded
    return header + b"\x00" if api.is_flexible(version) else header


def encode_response_header(api: Api, version: int, correlation_id: int) -> bytes:
    """The header of a response; append the body to it."""
    header = _CORRELATION_ID.pack(correlation_id)
    return header + b"\x00" if api.response_header_flexible and api.is_flexible(version) else header


def decode_response_header(api: Api, version: int, frame: Buffer) -> tuple[int, int]:
    """The correlation id, and the start of the body."""
    if len(frame) < _CORRELATION_ID.size:
        raise ProtocolError(f"a frame of {len(frame)} bytes is too short for a response header")
    (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
    stream = Cursor(frame, _CORRELATION_ID.size, 0)
    if api.response_header_flexible and api.is_flexible(version):
        skip_tagged_fields(stream)
    return correlation_id, stream.position
