"""Known problems of clients, byte by byte. The numbers are those of the project's first list of
problems: 1 ApiVersions of an unknown version, 2 its response header, 3 the range advertised for
Produce, 8 features that start at level 0.
"""

from __future__ import annotations

import pytest

from mqd.errors import ErrorCode
from mqd.protocol.apis import by_name
from mqd.protocol.request_header import decode_request_header
from mqd.protocol.schema import (
    UnsupportedApi,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)

API_VERSIONS = by_name("ApiVersions")


@pytest.mark.parametrize("version", [5, 99, 32_767])
@pytest.mark.parametrize("rest", ["", "00", "00 07 6d7164 04 312e30 00", "ffffffffffff"])
def test_gotcha_1_an_unknown_version_of_api_versions_still_has_a_header(
    version: int, rest: str
) -> None:
    frame = bytes.fromhex(f"0012 {version:04x} 00000007 0005 6672616e7a {rest}")
    header = decode_request_header(frame)
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (
        18,
        version,
        7,
        "franz",
    )
    assert not API_VERSIONS.supports(version)


def test_gotcha_1_the_response_is_v0_with_error_35_and_our_range() -> None:
    answer = {
        "error_code": ErrorCode.UNSUPPORTED_VERSION,
        "api_keys": [
            {
                "api_key": 18,
                "min_version": API_VERSIONS.versions[0],
                "max_version": API_VERSIONS.versions[1],
            }
        ],
    }
    frame = encode_response_header(API_VERSIONS, 99, 7) + API_VERSIONS.encode_response(0, answer)
    assert frame == bytes.fromhex("00000007  0023  00000001 0012 0000 0004")


@pytest.mark.parametrize("requested", range(5))
def test_gotcha_1_our_client_reads_that_response_at_any_version(requested: int) -> None:
    frame = bytes.fromhex("00000007  0023  00000001 0012 0000 0002")
    correlation_id, position = decode_response_header(API_VERSIONS, requested, frame)
    answer = API_VERSIONS.decode_response(requested, frame, position)
    assert correlation_id == 7
    assert answer.error_code == 35
    assert answer.api_keys == [{"api_key": 18, "min_version": 0, "max_version": 2}]


def test_gotcha_1_other_apis_in_unknown_versions_are_refused() -> None:
    for name, version in (("Metadata", 14), ("Fetch", 3), ("Metadata", -1)):
        api = by_name(name)
        frame = (
            api.key.to_bytes(2, "big")
            + version.to_bytes(2, "big", signed=True)
            + bytes.fromhex("00000001 ffff 00")
        )
        with pytest.raises(UnsupportedApi, match=f"{api.name} version {version}"):
            decode_request_header(frame)


@pytest.mark.parametrize("version", range(5))
def test_gotcha_2_the_response_header_of_api_versions_has_no_tagged_fields(version: int) -> None:
    assert encode_response_header(API_VERSIONS, version, 1) == bytes.fromhex("00000001")
    assert decode_response_header(API_VERSIONS, version, bytes.fromhex("00000001 0000")) == (1, 4)


def test_gotcha_2_its_request_header_and_other_responses_have_them() -> None:
    metadata = by_name("Metadata")
    assert encode_request_header(API_VERSIONS, 3, 1, None) == bytes.fromhex(
        "0012 0003 00000001 ffff 00"
    )
    assert encode_request_header(API_VERSIONS, 2, 1, None) == bytes.fromhex(
        "0012 0002 00000001 ffff"
    )
    assert encode_response_header(metadata, 9, 1) == bytes.fromhex("00000001 00")
    assert encode_response_header(metadata, 8, 1) == bytes.fromhex("00000001")


def test_gotcha_3_produce_is_advertised_from_0_but_spoken_from_3() -> None:
    produce = by_name("Produce")
    assert produce.advertised == (0, 13)
    assert produce.versions == (3, 13)
    for version in range(3):
        with pytest.raises(UnsupportedApi):
            decode_request_header(bytes.fromhex(f"0000 {version:04x} 00000001 ffff"))
    assert decode_request_header(bytes.fromhex("0000 0003 00000001 ffff")).body_position == 10


def test_gotcha_8_features_from_level_0_are_left_out_below_v4() -> None:
    answer = {
        "supported_features": [
            {"name": "a", "min_version": 0, "max_version": 2},
            {"name": "b", "min_version": 1, "max_version": 2},
        ]
    }
    #                       error keys throttle | tags: count, tag 0, size, features
    v3 = bytes.fromhex("0000 01 00000000  01 00 08 02 02 62 0001 0002 00")
    v4 = bytes.fromhex("0000 01 00000000  01 00 0f 03 02 61 0000 0002 00 02 62 0001 0002 00")
    assert API_VERSIONS.encode_response(3, answer) == v3
    assert API_VERSIONS.encode_response(4, answer) == v4
    only_0 = {"supported_features": answer["supported_features"][:1]}
    assert API_VERSIONS.encode_response(3, only_0) == bytes.fromhex("0000 01 00000000 00")
