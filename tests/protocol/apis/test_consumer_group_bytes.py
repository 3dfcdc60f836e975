"""ConsumerGroupHeartbeat and ConsumerGroupDescribe to the byte, as the serializer of Apache
Kafka 4.3.1 wrote them.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from mqd.protocol.apis import by_name
from tests.protocol.messages import decode, encode, plain

TOPIC = UUID("0102030405060708090a0b0c0d0e0f10")
ROWS = [{"topic_id": TOPIC, "partitions": [0, 2]}]
BEAT = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": 3,
    "instance_id": "i",
    "rack_id": "r",
    "rebalance_timeout_ms": 5000,
    "subscribed_topic_names": ["t", "u"],
    "server_assignor": "range",
    "topic_partitions": ROWS,
}
LEAVE = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": -1,
    "topic_partitions": None,
    "subscribed_topic_regex": None,
}
ANSWER = {
    "throttle_time_ms": 1,
    "error_message": None,
    "member_id": "m",
    "member_epoch": 4,
    "heartbeat_interval_ms": 5000,
    "assignment": {"topic_partitions": [{"topic_id": TOPIC, "partitions": [1]}]},
}
MEMBER = {
    "member_id": "m",
    "instance_id": "i",
    "rack_id": "r",
    "member_epoch": 2,
    "client_id": "c",
    "client_host": "/h",
    "subscribed_topic_names": ["t"],
    "subscribed_topic_regex": "",
    "assignment": {
        "topic_partitions": [{"topic_id": TOPIC, "topic_name": "t", "partitions": [0, 1]}]
    },
    "target_assignment": {"topic_partitions": []},
}
GROUP = {
    "error_code": 0,
    "error_message": None,
    "group_id": "g",
    "group_state": "Stable",
    "group_epoch": 2,
    "assignment_epoch": 2,
    "assignor_name": "uniform",
    "authorized_operations": -(2**31),
}
HEARTBEAT, DESCRIBE = "ConsumerGroupHeartbeat", "ConsumerGroupDescribe"
_PLACES = "020102030405060708090a0b0c0d0e0f10"
_DESCRIBED = (
    "0000000002000000026707537461626c65000000020000000208756e69666f726d02026d0269027200000002"
    "0263032f68020274010201020304"
    "05060708090a0b0c0d0e0f1002740300000000000000010000010000"
)

WRITTEN = [
    (
        HEARTBEAT,
        "request",
        0,
        f"0267026d00000003026902720000138803027402750672616e6765{_PLACES}0300000000000000020000",
        BEAT,
    ),
    (
        HEARTBEAT,
        "request",
        1,
        f"0267026d000000030269027200001388030274027504782e2a0672616e6765{_PLACES}0300000000000000020000",
        {**BEAT, "subscribed_topic_regex": "x.*"},
    ),
    (HEARTBEAT, "request", 1, "0267026dffffffff0000ffffffff0000000000", LEAVE),
    (
        HEARTBEAT,
        "response",
        0,
        f"00000001000000026d000000040000138801{_PLACES}0200000001000000",
        ANSWER,
    ),
    (
        HEARTBEAT,
        "response",
        1,
        "00000000006e036e6f000000000000000000ff00",
        {"error_code": 110, "error_message": "no", "assignment": None},
    ),
    (
        DESCRIBE,
        "request",
        1,
        "03026702680100",
        {"group_ids": ["g", "h"], "include_authorized_operations": True},
    ),
    (
        DESCRIBE,
        "response",
        0,
        f"{_DESCRIBED}800000000000",
        {"groups": [{**GROUP, "members": [MEMBER]}]},
    ),
    (
        DESCRIBE,
        "response",
        1,
        f"{_DESCRIBED[:-2]}0100800000000000",
        {"groups": [{**GROUP, "members": [{**MEMBER, "member_type": 1}]}]},
    ),
]


@pytest.mark.parametrize(("name", "side", "version", "data", "mapping"), WRITTEN)
def test_bytes_that_kafka_wrote(
    name: str, side: str, version: int, data: str, mapping: dict[str, Any]
) -> None:
    api = by_name(name)
    assert encode(api, side, version, mapping).hex() == data
    back = plain(decode(api, side, version, bytes.fromhex(data)))
    assert encode(api, side, version, back).hex() == data
    for field, value in mapping.items():
        assert field in back and (isinstance(value, list) or back[field] == value), field
