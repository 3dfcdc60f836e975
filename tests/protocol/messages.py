"""Random messages, from the declarations themselves: what a handler or a client might give to an encoder."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from mqd.protocol import schema
from mqd.protocol.apis import all_apis
from mqd.protocol.schema import Api, Field, Message
from mqd.types import ZERO_UUID

_TEXT = st.one_of(st.text(st.characters(codec="utf-8"), max_size=5), st.sampled_from(("topic", "é" * 70, "x" * 200)))
_KINDS: dict[int, st.SearchStrategy[Any]] = {
    id(schema.BOOLEAN): st.booleans(),
    id(schema.INT8): st.integers(-(2**7), 2**7 - 1),
    id(schema.INT16): st.integers(-(2**15), 2**15 - 1),
    id(schema.UINT16): st.integers(0, 2**16 - 1),
    id(schema.INT32): st.integers(-(2**31), 2**31 - 1),
    id(schema.INT64): st.integers(-(2**63), 2**63 - 1),
    id(schema.UUID): st.one_of(st.just(ZERO_UUID), st.uuids()),
    id(schema.STRING): _TEXT,
    id(schema.TEXT): _TEXT,
    id(schema.BYTES): st.binary(max_size=200),
    id(schema.RECORDS): st.binary(max_size=200),
}

VERSIONS = [(api, version) for api in all_apis() for version in range(api.versions[0], api.versions[1] + 1)]
IDS = [f"{api.name}-{version}" for api, version in VERSIONS]
SIDES = ("request", "response")


def messages(message: Message, version: int, *, complete: bool = False) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings with the fields of one version; some left out, unless `complete`."""
    fields = {one.name: _values(one, version, complete) for one in message.fields if one.in_version(version)}
    return st.fixed_dictionaries(fields) if complete else st.fixed_dictionaries({}, optional=fields)


def _values(one: Field, version: int, complete: bool) -> st.SearchStrategy[Any]:
    values = _of_kind(one.kind, version, complete)
    if one.tag is not None:
        values = st.one_of(st.builds(one.new), values)
    return st.one_of(st.none(), values) if one.nullable_in(version) else values


def _of_kind(kind: Any, version: int, complete: bool) -> st.SearchStrategy[Any]:
    if isinstance(kind, Message):
        return messages(kind, version, complete=complete)
    element = getattr(kind, "element", None)
    if element is not None:
        return st.lists(_of_kind(element, version, complete), max_size=2)
    return _KINDS[id(kind)]


def filled(message: Message, version: int, mapping: dict[str, Any]) -> dict[str, Any]:
    """What decoding must give back: every field, defaults in place of what was not written."""
    return {
        one.name: _filled_value(one.kind, version, mapping[one.name]) if one.name in mapping else plain(one.new()) for one in message.fields
    }


def _filled_value(kind: Any, version: int, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, Message):
        return filled(kind, version, value)
    if isinstance(value, list):
        return [_filled_value(kind.element, version, element) for element in value]
    return value


def plain(value: Any) -> Any:
    """Containers as dicts and slices as bytes, so that == compares all of it."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return bytes(value) if isinstance(value, memoryview) else value


def declared(api: Api, side: str) -> Message:
    return api.request if side == "request" else api.response


def encode(api: Api, side: str, version: int, mapping: Any) -> bytes:
    return api.encode_request(version, mapping) if side == "request" else api.encode_response(version, mapping)


def decode(api: Api, side: str, version: int, data: Any) -> Any:
    return api.decode_request(version, data) if side == "request" else api.decode_response(version, data)
