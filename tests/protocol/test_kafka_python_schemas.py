"""An independent check: mqd decodes what kafka-python's schemas encode, and encodes it to the same
bytes; the same in the other direction.

kafka-python contains Kafka's message schemas as JSON. Its classes rename and retype some fields for
its own users, so the tests use the plain schemas. It has the APIs of clients; those between brokers
have hand-written bytes in apis/test_golden.py.
"""

from __future__ import annotations

import warnings
from functools import cache, partial
from io import BytesIO
from random import Random
from typing import Any

import pytest

from mqd.errors import ErrorCode
from mqd.protocol.apis import all_apis
from mqd.protocol.schema import Api, Message
from mqd.types import ZERO_UUID
from tests.protocol.messages import (
    SIDES,
    VERSIONS,
    declared,
    decode,
    encode,
    filled,
    for_each,
    for_each_version,
    plain,
    random_message,
)

with warnings.catch_warnings():
    # it reads its resources in a way that Python 3.11 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.data_container import DataContainer
    from kafka.protocol.schemas import StructField, load_json

PEER_APIS = {
    "AllocateProducerIds",
    "AlterPartition",
    "BrokerHeartbeat",
    "BrokerRegistration",
    "ClaimTopic",
    "DescribeAcknowledgedOffsets",
    "DescribeUnacceptedRecords",
    "DescribeIdleProducer",
    "ReportOfflineReplicas",
    "SealTransactions",
}
SHARE_GROUP_APIS = {
    "ShareGroupHeartbeat",
    "ShareGroupDescribe",
    "ShareFetch",
    "ShareAcknowledge",
    "InitializeShareGroupState",
    "ReadShareGroupState",
    "WriteShareGroupState",
    "DeleteShareGroupState",
    "ReadShareGroupStateSummary",
    "DescribeShareGroupOffsets",
    "AlterShareGroupOffsets",
    "DeleteShareGroupOffsets",
}
UNKNOWN = PEER_APIS | {
    "ConsumerGroupDescribe",
    "ConsumerGroupHeartbeat",
    "CreateDelegationToken",
    "DescribeDelegationToken",
    "ExpireDelegationToken",
    "FindRecords",
    "RenewDelegationToken",
    "UnregisterBroker",
    *SHARE_GROUP_APIS,
}
"""APIs without schemas in kafka-python."""

OUR_TAGS_FROM = 10_000
EXAMPLES = 10

UNSTABLE = {("InitProducerId", 6)}
"""Its schemas end before these; InitProducerId v6 is compared with Apache Kafka itself
(tests/conformance/test_wire_two_phase.py).
"""

KNOWN = {
    api: [
        version
        for version in range(api.versions[0], api.versions[1] + 1)
        if (api.name, version) not in UNSTABLE
    ]
    for api in all_apis()
    if api.name not in UNKNOWN
}
"""Each API that kafka-python knows, and its versions there."""


@cache
def schema_of(name: str, side: str) -> tuple[StructField, type[DataContainer]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        struct = StructField(load_json(f"{name}{side.capitalize()}"))
    return struct, type(name, (DataContainer,), {"_struct": struct})


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("api", KNOWN, ids=lambda api: api.name)
def test_kafka_python_agrees(api: Api, side: str) -> None:
    message = declared(api, side)
    struct, container = schema_of(api.name, side)

    def check(version: int, dice: Random) -> None:
        flexible = api.is_flexible(version)
        mapping = random_message(dice, message, version, complete=True)
        if (api.name, side) == ("ApiVersions", "response"):
            mapping["error_code"] = (
                ErrorCode.NONE
                if mapping["error_code"] == ErrorCode.UNSUPPORTED_VERSION
                else mapping["error_code"]
            )
            if version < 4 and any(
                one["min_version"] <= 0 for one in mapping.get("supported_features", ())
            ):
                return
        mapping = without_our_own(message, mapping)
        theirs = struct.encode(
            as_theirs(message, mapping), version=version, compact=flexible, tagged=flexible
        )
        ours = decode(api, side, version, theirs)
        assert plain(ours) == filled(message, version, mapping)
        assert encode(api, side, version, ours) == theirs

        data = encode(api, side, version, mapping)
        read = BytesIO(data)
        decoded = struct.decode(
            read, version=version, compact=flexible, tagged=flexible, data_class=container
        )
        assert read.read() == b""
        assert struct.encode(decoded, version=version, compact=flexible, tagged=flexible) == data

    for_each_version(api, lambda version: for_each(EXAMPLES, partial(check, version)), KNOWN[api])


def without_our_own(message: Message, mapping: dict[str, Any]) -> dict[str, Any]:
    """Without the tagged fields that only mqd has."""
    known = {
        one.name: one.kind for one in message.fields if one.tag is None or one.tag < OUR_TAGS_FROM
    }
    return {
        name: without_our_own_value(known[name], value)
        for name, value in mapping.items()
        if name in known
    }


def without_our_own_value(kind: Any, value: Any) -> Any:
    if isinstance(value, list):
        return [without_our_own_value(kind.element, element) for element in value]
    return without_our_own(kind, value) if isinstance(value, dict) else value


def as_theirs(message: Message, mapping: dict[str, Any]) -> dict[str, Any]:
    """None for the zero uuid, and tagged fields that have their default left out:
    kafka-python would write them.
    """
    return {
        one.name: as_their_value(one.kind, mapping[one.name])
        for one in message.fields
        if one.name in mapping and (one.tag is None or mapping[one.name] != plain(one.new()))
    }


def as_their_value(kind: Any, value: Any) -> Any:
    if isinstance(value, list):
        return [as_their_value(kind.element, element) for element in value]
    if isinstance(value, dict):
        return as_theirs(kind, value)
    return None if value == ZERO_UUID else value


def test_kafka_python_has_every_api_of_clients() -> None:
    assert {api.name for api, _ in VERSIONS if api.advertised is None} == PEER_APIS
