"""The worst requests of 1 MB, built from the declarations: for each array of each API, one with the
maximum number of different rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mqd.limits import MIB, REQUEST_ELEMENTS_MAX, STRUCTURE_ELEMENTS
from mqd.protocol import apis
from mqd.protocol.schema import STRING, Api, Message, _Array, encode_request_header
from mqd.server.served_apis import SERVED

REQUEST_BYTES = MIB
ROWS_MAX = REQUEST_ELEMENTS_MAX // STRUCTURE_ELEMENTS - 1000
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
_SETTINGS = {"timeout_ms": 1000, "acks": 1, "max_wait_ms": 0}
Path = tuple[str, ...]


class Worst(NamedTuple):
    """One request, with its header."""

    api: str
    array: str
    rows: int
    frame: bytes


def worst_requests(name: str) -> Iterator[Worst]:
    """One for each array of the newest version."""
    api = apis.by_name(name)
    assert api is not None
    version = api.versions[1]
    for path in _arrays(api.request, version):
        rows = ROWS_MAX
        while (
            len(frame := encoded(api, version, _filled(api.request, version, rows, path, 0)))
            > REQUEST_BYTES
        ):
            rows = rows * REQUEST_BYTES // len(frame) - 100
        yield Worst(name, "/".join(path), rows, frame)


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


def _filled(message: Message, version: int, rows: int, path: Path, number: int) -> dict[str, Any]:
    """A message whose arrays along `path` have one element each, and the last one `rows`.

    `number`: the number of this row.
    """
    made: dict[str, Any] = {}
    for field in message.fields:
        if not field.in_version(version):
            continue
        if isinstance(field.kind, _Array):
            if path and field.name == path[0]:
                count = rows if len(path) == 1 else 1
                made[field.name] = [
                    _element(field.kind.element, version, rows, path[1:], index)
                    for index in range(count)
                ]
        elif field.kind is STRING and field.name in _NAMES:
            made[field.name] = f"t{number}" if number else "t"
        elif field.name in _INDEXES:
            made[field.name] = number
        elif field.name in _SETTINGS:
            made[field.name] = _SETTINGS[field.name]
    return made


def _element(kind: Any, version: int, rows: int, path: Path, number: int) -> Any:
    if isinstance(kind, Message):
        return _filled(kind, version, rows, path, number)
    if kind is STRING:
        return f"t{number}"
    empty = kind.new()
    return number % 100 if isinstance(empty, int) and not isinstance(empty, bool) else empty
