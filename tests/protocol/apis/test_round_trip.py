"""Every API in every version: encoded values decode to themselves, and decoded values encode to the
same bytes.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import pytest

from mqd.errors import ErrorCode, ProtocolError
from mqd.protocol.apis import all_apis, by_key, by_name
from mqd.protocol.schema import Api
from tests.protocol.messages import (
    SIDES,
    declared,
    decode,
    encode,
    filled,
    for_each,
    for_each_version,
    plain,
    random_message,
)

EXAMPLES = 15


def api_versions_own_rules(api: Api, side: str, version: int, mapping: dict[str, Any]) -> bool:
    """Fields that ApiVersions omits or reads as v0 by its own rules;
    tests/protocol/apis/test_gotchas.py tests them.
    """
    return (api.name, side) == ("ApiVersions", "response") and (
        mapping.get("error_code") == ErrorCode.UNSUPPORTED_VERSION
        or (
            version < 4
            and any(one.get("min_version", 0) <= 0 for one in mapping.get("supported_features", ()))
        )
    )


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("api", all_apis(), ids=lambda api: api.name)
def test_encoded_values_decode_to_themselves(api: Api, side: str) -> None:
    message = declared(api, side)

    def check(version: int, dice: Random) -> None:
        mapping, garbage = (
            random_message(dice, message, version),
            dice.randbytes(dice.randint(1, 8)),
        )
        if api_versions_own_rules(api, side, version, mapping):
            return
        data = encode(api, side, version, mapping)
        back = decode(api, side, version, data)
        assert plain(back) == filled(message, version, mapping)
        assert encode(api, side, version, back) == data
        if side == "request":
            assert plain(decode(api, side, version, data + garbage)) == plain(back)
        else:
            with pytest.raises(ProtocolError):
                decode(api, side, version, data + garbage)
        if data:
            with pytest.raises(ProtocolError):
                decode(api, side, version, data[:-1])

    for_each_version(api, lambda version: for_each(EXAMPLES, partial(check, version)))


def test_fields_that_a_version_lacks_decode_as_defaults() -> None:
    metadata = by_name("Metadata")
    request = {"topics": [{"name": "t"}], "allow_auto_topic_creation": False}
    assert metadata.encode_request(1, request) == metadata.encode_request(
        1, {"topics": [{"name": "t"}]}
    )
    assert (
        metadata.decode_request(1, metadata.encode_request(1, request)).allow_auto_topic_creation
        is True
    )
    assert (
        metadata.decode_request(4, metadata.encode_request(4, request)).allow_auto_topic_creation
        is False
    )


def test_defaults_are_never_shared_between_messages() -> None:
    fetch = by_name("Fetch")
    body = fetch.encode_request(4, {})
    first = fetch.decode_request(4, body)
    first.forgotten_topics_data.append(1)
    first.replica_state.replica_id = 7
    second = fetch.decode_request(4, body)
    assert second.forgotten_topics_data == []
    assert second.replica_state.replica_id == -1
    assert fetch.encode_request(15, {}) == fetch.encode_request(
        15, {"replica_state": {"replica_id": -1}}
    )


def test_record_bytes_are_a_slice_of_the_frame() -> None:
    produce = by_name("Produce")
    topics = [{"name": "t", "partition_data": [{"index": 0, "records": b"batch"}]}]
    frame = bytearray(produce.encode_request(9, {"acks": -1, "topic_data": topics}))
    records = produce.decode_request(9, frame).topic_data[0].partition_data[0].records
    assert records == b"batch"
    records[0] = ord("B")
    assert b"Batch" in frame


def test_the_registry_finds_by_key_and_by_name() -> None:
    for api in all_apis():
        assert by_key(api.key) is api
        assert by_name(api.name) is api
    assert by_name("list_offsets").key == 2
    assert by_key(4) is None
    with pytest.raises(KeyError):
        by_name("LeaderAndIsr")


def test_only_peers_have_the_controller_s_apis() -> None:
    assert {api.name for api in all_apis() if api.advertised is None} == {
        "BrokerRegistration",
        "BrokerHeartbeat",
        "AllocateProducerIds",
        "AlterPartition",
        "ReportOfflineReplicas",
        "SealTransactions",
        "ClaimTopic",
        "DescribeIdleProducer",
        "DescribeAcknowledgedOffsets",
        "DescribeUnacceptedRecords",
    }
