"""Decoding in slices returns the same as decoding at once: the same message, or the same error."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

import pytest

from mqd import limits
from mqd.errors import ProtocolError
from mqd.protocol import apis
from mqd.protocol.chunks import Chunks
from mqd.protocol.primitives import Cursor, pack_unsigned_varint
from mqd.protocol.schema import Api
from tests.protocol.messages import for_each, for_each_version, random_message
from tests.protocol.test_schema import damaged

EVERY_API = pytest.mark.parametrize("api", apis.all_apis(), ids=lambda api: api.name)


def cursor(body: bytes) -> Cursor:
    return Cursor(body, 0, limits.REQUEST_ELEMENTS_MAX, copies=True)


def finished(work: Generator[int, None, Any]) -> tuple[Any, list[int]]:
    slices = []
    while True:
        try:
            slices.append(next(work))
        except StopIteration as end:
            return end.value, slices


def same(one: Any, other: Any) -> bool:
    """Whether both are equal. NaN, which no comparison finds equal to itself, is equal to NaN:
    damaged bytes can be the NaN of a float field."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other or (one != one and other != other))


@EVERY_API
def test_the_same_message_or_the_same_refusal(api: Api) -> None:
    def check(version: int, dice: Random) -> None:
        body = api.encode_request(version, random_message(dice, api.request, version))
        found, _ = finished(api.decode_request_in_slices(version, cursor(body)))
        assert found == api.decode_request(version, body)
        broken = damaged(body, dice)
        try:
            expected = api.decode_request(version, broken)
        except ProtocolError as error:
            with pytest.raises(ProtocolError) as refusal:
                finished(api.decode_request_in_slices(version, cursor(broken)))
            assert str(refusal.value) == str(error)
        else:
            assert same(
                finished(api.decode_request_in_slices(version, cursor(broken)))[0], expected
            )

    for_each_version(api, lambda version: for_each(20, partial(check, version)))


@EVERY_API
def test_the_other_side_of_a_forward(api: Api) -> None:
    if api.name == "ApiVersions":  # never forwarded, and an error makes its response version 0
        return

    def check(version: int, dice: Random) -> None:
        request, response = (
            random_message(dice, side, version, complete=True)
            for side in (api.request, api.response)
        )
        assert finished(api.encode_request_in_slices(version, request))[0] == api.encode_request(
            version, request
        )
        body = api.encode_response(version, response)
        assert finished(api.decode_response_in_slices(version, body))[0] == api.decode_response(
            version, body
        )
        for broken in (damaged(body, dice), body + b"x"):
            try:
                expected = api.decode_response(version, broken)
            except ProtocolError as error:
                with pytest.raises(ProtocolError) as refusal:
                    finished(api.decode_response_in_slices(version, broken))
                assert str(refusal.value) == str(error)
            else:
                assert same(finished(api.decode_response_in_slices(version, broken))[0], expected)

    for_each_version(api, lambda version: for_each(10, partial(check, version)))


@pytest.mark.parametrize(
    ("name", "version", "body"),
    [
        ("delete_topics", 6, {"topics": [{"name": "t"}] * 5000}),
        ("find_coordinator", 4, {"coordinator_keys": ["k"] * 5000}),
        (
            "offset_delete",
            0,
            {"topics": [{"name": "t", "partitions": [{"partition_index": 0}] * 5000}]},
        ),
        (
            "offset_fetch",
            8,
            {
                "groups": [
                    {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}] * 5000}
                ]
            },
        ),
    ],
)
def test_slices_are_small(name: str, version: int, body: dict[str, Any]) -> None:
    api = apis.by_name(name)
    assert api is not None
    _, slices = finished(
        api.decode_request_in_slices(version, cursor(api.encode_request(version, body)))
    )
    assert sum(slices) >= 5000 and max(slices) <= 100


@pytest.mark.parametrize(
    ("name", "version", "body", "rows"),
    [
        ("delete_topics", 6, {"topics": [{"name": "t"}] * 5000}, 5000),
        ("metadata", 12, {"topics": [{"name": "t"}] * 10}, 10),
        (
            "offset_fetch",
            8,
            {
                "groups": [
                    {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}] * 8}
                ]
            },
            8,
        ),
    ],
)
def test_tagged_fields_are_elements_of_a_slice(
    name: str, version: int, body: dict[str, Any], rows: int
) -> None:
    """Each row has 1,000 unknown tagged fields, or as many as fit into 20,000."""
    api = apis.by_name(name)
    assert api is not None
    count = min(limits.TAGGED_FIELDS_MAX, 20_000 // rows)
    tags = b"".join(pack_unsigned_varint(20_000 + tag) + b"\0" for tag in range(count))
    plain = api.encode_request(version, body)
    row = {
        "delete_topics": b"\x02t" + bytes(16),
        "metadata": bytes(16) + b"\x02t",
        "offset_fetch": b"\x02t\x02" + bytes(4),
    }[name]
    tagged = plain.replace(row + b"\0", row + pack_unsigned_varint(count) + tags)
    assert len(tagged) >= len(plain) + rows * len(tags)
    request, slices = finished(api.decode_request_in_slices(version, cursor(tagged)))
    assert request == api.decode_request(version, plain)
    assert sum(slices) >= rows * (1 + count)
    assert max(slices) <= 100 + count


def test_slices_of_many_strings_are_small() -> None:
    api = apis.by_name("consumer_group_describe")
    assert api is not None
    names = {
        "topic_partitions": [{"topic_id": UUID(int=0), "topic_name": "t", "partitions": [1]}] * 500
    }
    members = [
        {
            "member_id": "m",
            "client_id": "c",
            "client_host": "h",
            "subscribed_topic_names": ["t"] * 5000,
            "assignment": names,
            "target_assignment": names,
            "member_type": 1,
        }
    ]
    row = {
        "error_code": 0,
        "group_id": "g",
        "group_state": "Stable",
        "group_epoch": 1,
        "assignment_epoch": 1,
        "assignor_name": "uniform",
        "members": members,
    }
    chunks = Chunks()
    _, slices = finished(api.encode_response_in_slices(1, {"groups": [row]}, chunks))
    assert b"".join(chunks.take()) == api.encode_response(1, {"groups": [row]})
    assert sum(slices) >= 6000 and max(slices) <= 100


def test_stored_parts_of_a_request_are_counted_and_copied() -> None:
    api = apis.by_name("join_group")
    assert api is not None
    rows = [{"name": "range", "metadata": b"m" * 1000}]
    stream = cursor(
        api.encode_request(9, {"group_id": "g" * 50, "protocols": rows})[:-1] + b"\x01\x09\x02no"
    )
    request, _ = finished(api.decode_request_in_slices(9, stream))
    assert type(request.protocols[0].metadata) is bytes
    assert stream.value_bytes == 50 + len("range") + 1000
