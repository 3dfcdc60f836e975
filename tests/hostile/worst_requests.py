"""The worst requests, built from the declarations. For each array of each API, one of at most 1 MB
with the maximum number of different rows. For the innermost array, one whose rows have unknown
tagged fields (1 MB). For each array with strings, one with long strings (8 MB, all that a client's
request may have).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from mqd.limits import (
    MIB,
    REQUEST_ELEMENTS_MAX,
    REQUEST_STRING_BYTES_MAX,
    STRING_BYTES_MAX,
    STRUCTURE_ELEMENTS,
    TAGGED_FIELDS_MAX,
)
from mqd.protocol import apis
from mqd.protocol.primitives import pack_unsigned_varint
from mqd.protocol.schema import STRING, Api, Message, _Array, encode_request_header
from mqd.protocol.structures import Structure
from mqd.server.served_apis import SERVED

REQUEST_BYTES = MIB
ROWS_MAX = REQUEST_ELEMENTS_MAX // STRUCTURE_ELEMENTS - 1000
VALUES_MAX = REQUEST_ELEMENTS_MAX - 1000
"""Rows that are numbers or strings."""
LONG_CHARACTERS = (6_000, STRING_BYTES_MAX - 10)
APIS = ("produce", "fetch", *SERVED)

_NAMES = (
    "name",
    "topic",
    "topic_name",
    "group_id",
    "transactional_id",
    "member_id",
    "resource_name",
    "key",
    "protocol",
)
_INDEXES = ("partition", "partition_index", "index", "partition_id")
_SETTINGS = {
    "timeout_ms": 1000,
    "acks": 1,
    "max_wait_ms": 0,
    "share_session_epoch": 1,
    "max_records": 1,
    "batch_size": 500,
}
_OFFSETS = ("first_offset", "last_offset")
_TYPES = "acknowledge_types"
FIRST_TOPIC_ID = UUID(int=1 << 100)
"""The id of the first topic of a request. Tests replace it in the frame."""
Path = tuple[str, ...]


class Worst(NamedTuple):
    """One request, with its header."""

    api: str
    array: str
    rows: int
    frame: bytes


def worst_requests(name: str) -> Iterator[Worst]:
    """The worst requests of the newest version."""
    api = apis.by_name(name)
    assert api is not None
    version = api.versions[1]
    for path in _arrays(api.request, version):
        rows = VALUES_MAX if _element_kind(api.request, path) is None else ROWS_MAX
        if path[-1] == "acknowledgement_batches":
            rows = rows * STRUCTURE_ELEMENTS // (STRUCTURE_ELEMENTS + 1)  # each has a type
        yield Worst(name, "/".join(path), *_largest(api, path, rows, REQUEST_BYTES))
        if name != "fetch" and _has_strings(api.request, version, path):
            for characters in LONG_CHARACTERS:
                array = f"{'/'.join(path)}, {characters:,} characters"
                rows = REQUEST_STRING_BYTES_MAX // characters
                largest = _largest(api, path, rows, REQUEST_STRING_BYTES_MAX, "x" * characters)
                yield Worst(name, array, *largest)
    yield from _with_tagged_fields(name, api)


def _largest(api: Api, path: Path, rows: int, bytes_max: int, long: str = "") -> tuple[int, bytes]:
    """The number of rows, and the request: fewer than `rows` if it would be too large."""
    version = api.versions[1]
    while True:
        body = _with_topic_ids(api, _filled(api.request, version, rows, path, 0, long))
        frame = encoded(api, version, body)
        if len(frame) <= bytes_max:
            return rows, frame
        rows = rows * bytes_max // len(frame) * 99 // 100


def _with_tagged_fields(name: str, api: Api) -> Iterator[Worst]:
    """Each row of the innermost array of structures has the most unknown tagged fields."""
    version = api.versions[1]
    paths = [
        path
        for path in _arrays(api.request, version)
        if _element_kind(api.request, path) is not None
    ]
    if not paths or not api.is_flexible(version):
        return
    path = max(paths, key=len)
    tags = b"".join(pack_unsigned_varint(20_000 + tag) + b"\0" for tag in range(TAGGED_FIELDS_MAX))
    rows = REQUEST_BYTES // (len(tags) + 100)
    innermost = _element_kind(api.request, path)
    assert innermost is not None
    structure = innermost.at(version, flexible=True)

    def build_tagged(self: Structure, obj: Any, stream: Any) -> None:
        if self is structure:
            stream.write(pack_unsigned_varint(TAGGED_FIELDS_MAX) + tags)
        else:
            original(self, obj, stream)

    original = Structure._build_tagged
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Structure, "_build_tagged", build_tagged)
        body = _with_topic_ids(api, _filled(api.request, version, rows, path, 0))
        frame = encoded(api, version, body)
    yield Worst(name, f"{'/'.join(path)}, tagged fields", rows, frame)


def _with_topic_ids(api: Api, body: dict[str, Any]) -> dict[str, Any]:
    """Different topics in requests of share sessions."""
    if api.name in ("ShareFetch", "ShareAcknowledge"):
        for array in ("topics", "forgotten_topics_data"):
            for number, topic in enumerate(body.get(array, ())):
                topic["topic_id"] = UUID(int=FIRST_TOPIC_ID.int + number)
    return body


def smallest_request(api: Api) -> bytes:
    """A request of the newest version with empty arrays, except one row of each array on the path
    to the first of the innermost ones.
    """
    version = api.versions[1]
    path = max(_arrays(api.request, version), key=len, default=())
    return encoded(api, version, _filled(api.request, version, 1, path, 0))


def encoded(api: Api, version: int, body: Mapping[str, Any]) -> bytes:
    """With the request's header, without the four bytes of length."""
    return encode_request_header(api, version, 1, "worst") + api.encode_request(version, body)


def _arrays(message: Message, version: int, before: Path = ()) -> Iterator[Path]:
    for field in message.fields:
        if field.in_version(version) and isinstance(field.kind, _Array):
            yield (*before, field.name)
            if isinstance(field.kind.element, Message):
                yield from _arrays(field.kind.element, version, (*before, field.name))


def _element_kind(message: Message, path: Path) -> Message | None:
    """The structure in the array at `path`; None for numbers and strings."""
    for name in path:
        [kind] = [field.kind for field in message.fields if field.name == name]
        assert isinstance(kind, _Array)
        if not isinstance(kind.element, Message):
            return None
        message = kind.element
    return message


def _has_strings(message: Message, version: int, path: Path) -> bool:
    """Whether the elements of the array at `path` are strings, or have names."""
    element = _element_kind(message, path)
    if element is not None:
        return any(
            field.kind is STRING and field.name in _NAMES and field.in_version(version)
            for field in element.fields
        )
    outer = _element_kind(message, path[:-1])
    assert outer is not None
    [kind] = [field.kind for field in outer.fields if field.name == path[-1]]
    return isinstance(kind, _Array) and kind.element is STRING


def _filled(
    message: Message, version: int, rows: int, path: Path, number: int, long: str = ""
) -> dict[str, Any]:
    """A message whose arrays along `path` have one element each, and the last one `rows`.

    `number`: the number of this row. `long`: the names of the last array begin with it.
    """
    made: dict[str, Any] = {}
    for field in message.fields:
        if not field.in_version(version):
            continue
        if isinstance(field.kind, _Array):
            if path and field.name == path[0]:
                count = rows if len(path) == 1 else 1
                made[field.name] = [
                    1 + index % 2
                    if field.name == _TYPES
                    else _element(field.kind.element, version, rows, path[1:], index, long)
                    for index in range(count)
                ]
            elif field.name == _TYPES:
                made[field.name] = [1]
        elif field.name in _OFFSETS:
            made[field.name] = number
            if path == (_TYPES,) and field.name == _OFFSETS[1]:
                made[field.name] = rows - 1
        elif field.kind is STRING and field.name in _NAMES:
            prefix = "t" if path else long or "t"
            made[field.name] = f"{prefix}{number}" if number else prefix
        elif field.name in _INDEXES:
            made[field.name] = number
        elif field.name in _SETTINGS:
            made[field.name] = _SETTINGS[field.name]
    return made


def _element(kind: Any, version: int, rows: int, path: Path, number: int, long: str) -> Any:
    if isinstance(kind, Message):
        return _filled(kind, version, rows, path, number, long)
    if kind is STRING:
        return f"{long or 't'}{number}"
    empty = kind.new()
    return number % 100 if isinstance(empty, int) and not isinstance(empty, bool) else empty
