"""Random messages, built from the declarations: any input that a handler or a client might give to
an encoder.

The random numbers are Python's: Hypothesis takes ten times as long for a message, and there are
hundreds of APIs in their versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any
from uuid import UUID

import pytest

from mqd.protocol import schema
from mqd.protocol.apis import all_apis
from mqd.protocol.schema import Api, Field, Message
from mqd.types import ZERO_UUID

VERSIONS = [
    (api, version) for api in all_apis() for version in range(api.versions[0], api.versions[1] + 1)
]
SIDES = ("request", "response")
FAILURES = (Exception, pytest.fail.Exception)
"""What a failing check raises; `pytest.raises` does not raise a subclass of Exception."""


def for_each(count: int, check: Callable[[Random], None]) -> None:
    """Other random numbers in every run; an error of `check` prints its seed."""
    for _ in range(count):
        seed = Random().getrandbits(32)
        try:
            check(Random(seed))
        except FAILURES as error:
            error.add_note(f"with Random({seed})")
            raise


def for_each_version(
    api: Api, check: Callable[[int], None], versions: Iterable[int] | None = None
) -> None:
    """Calls `check` with every version of an API, or with `versions`. Thousands of pytest items of
    microseconds cost more than their checks, so one item has all versions. After a failure the
    others are still checked; each error has its version in a note.
    """
    errors = []
    for version in range(api.versions[0], api.versions[1] + 1) if versions is None else versions:
        try:
            check(version)
        except FAILURES as error:
            error.add_note(f"in {api.name} v{version}")
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise BaseExceptionGroup(f"{len(errors)} versions of {api.name}", errors)


def random_message(
    dice: Random, message: Message, version: int, *, complete: bool = False
) -> dict[str, Any]:
    """A mapping with the fields of one version; some left out, unless `complete`."""
    fields = [
        one
        for one in message.fields
        if one.in_version(version) and (complete or dice.random() < 0.7)
    ]
    return {one.name: _value(dice, one, version, complete) for one in fields}


def _value(dice: Random, one: Field, version: int, complete: bool) -> Any:
    if one.nullable_in(version) and dice.random() < 0.3:
        return None
    if one.tag is not None and dice.random() < 0.4:
        return one.new()
    return _of_kind(dice, one.kind, version, complete)


def _of_kind(dice: Random, kind: Any, version: int, complete: bool) -> Any:
    if isinstance(kind, Message):
        return random_message(dice, kind, version, complete=complete)
    element = getattr(kind, "element", None)
    if element is not None:
        return [
            _of_kind(dice, element, version, complete) for _ in range(dice.choice((0, 1, 1, 2)))
        ]
    return _KINDS[id(kind)](dice)


def _integers(low: int, high: int) -> Callable[[Random], int]:
    return lambda dice: dice.choice(
        (
            low,
            high,
            0,
            1,
            max(low, -1),
            dice.randint(low, high),
            dice.randint(max(low, -200), min(high, 200)),
        )
    )


def _text(dice: Random) -> str:
    if dice.random() < 0.3:
        return dice.choice(("", "topic", "é" * 70, "x" * 126, "x" * 127, "x" * 200))
    highest = dice.choice((0x7F, 0x7FF, 0xD7FF, 0x10FFFF))
    drawn = (dice.randrange(highest + 1) for _ in range(dice.randrange(6)))
    # no lone surrogates
    return "".join(chr(point) for point in drawn if not 0xD800 <= point < 0xE000)


def _bytes(dice: Random) -> bytes:
    return dice.randbytes(dice.choice((0, 1, 126, 127, dice.randrange(201))))


_KINDS: dict[int, Callable[[Random], Any]] = {
    id(schema.BOOLEAN): lambda dice: dice.random() < 0.5,
    id(schema.INT8): _integers(-(2**7), 2**7 - 1),
    id(schema.INT16): _integers(-(2**15), 2**15 - 1),
    id(schema.UINT16): _integers(0, 2**16 - 1),
    id(schema.INT32): _integers(-(2**31), 2**31 - 1),
    id(schema.INT64): _integers(-(2**63), 2**63 - 1),
    id(schema.FLOAT64): lambda dice: dice.choice((0.0, -1.5, 1e300, dice.random())),
    id(schema.UUID): lambda dice: (
        ZERO_UUID if dice.random() < 0.3 else UUID(int=dice.getrandbits(128))
    ),
    id(schema.STRING): _text,
    id(schema.TEXT): _text,
    id(schema.BYTES): _bytes,
    id(schema.RECORDS): _bytes,
}


def filled(message: Message, version: int, mapping: dict[str, Any]) -> dict[str, Any]:
    """The expected result of decoding: every field, with defaults in place of missing ones."""
    return {
        one.name: _filled_value(one.kind, version, mapping[one.name])
        if one.name in mapping
        else plain(one.new())
        for one in message.fields
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
    return (
        api.encode_request(version, mapping)
        if side == "request"
        else api.encode_response(version, mapping)
    )


def decode(api: Api, side: str, version: int, data: Any) -> Any:
    return (
        api.decode_request(version, data)
        if side == "request"
        else api.decode_response(version, data)
    )
