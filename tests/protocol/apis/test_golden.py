"""Bytes written by hand from the protocol guide, so that the encoder and the decoder cannot have
the same error.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from mqd.protocol.apis import by_name
from tests.protocol.messages import decode, encode, plain

TOPIC_ID = "0102030405060708090a0b0c0d0e0f10"

GOLDEN: list[tuple[str, str, int, str, dict[str, Any]]] = [
    ("ApiVersions", "request", 0, "", {}),
    (
        "ApiVersions",
        "request",
        3,
        "04 6d7164 04 312e30 00",
        {"client_software_name": "mqd", "client_software_version": "1.0"},
    ),
    (
        "ApiVersions",
        "response",
        0,
        "0000  00000002  0000 0000 000d  0012 0000 0004",
        {
            "error_code": 0,
            "api_keys": [
                {"api_key": 0, "min_version": 0, "max_version": 13},
                {"api_key": 18, "min_version": 0, "max_version": 4},
            ],
        },
    ),
    (
        "ApiVersions",
        "response",
        3,
        # error, keys (each with its tags), throttle; three tags: supported, epoch, finalized
        "0000  02 0012 0000 0004 00  0000000503  00 0a 02 04 662e76 0001 0003 00  01 08 "
        "0000000000000009  02 0a 02 04 662e76 0003 0001 00",
        {
            "error_code": 0,
            "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 4}],
            "throttle_time_ms": 5,
            "supported_features": [{"name": "f.v", "min_version": 1, "max_version": 3}],
            "finalized_features_epoch": 9,
            "finalized_features": [{"name": "f.v", "max_version_level": 3, "min_version_level": 1}],
        },
    ),
    ("Metadata", "request", 0, "00000001 0001 74", {"topics": [{"name": "t"}]}),
    ("Metadata", "request", 1, "ffffffff", {"topics": None}),
    (
        "Metadata",
        "request",
        12,
        f"02 {TOPIC_ID} 00 00  01 00 00",
        {"topics": [{"topic_id": UUID(TOPIC_ID), "name": None}], "allow_auto_topic_creation": True},
    ),
    (
        "Metadata",
        "response",
        0,
        "00000001 00000001 0001 68 00002384"  # one broker: 1, "h", 9092
        "00000001 0000 0001 74"  # one topic: no error, "t"
        "00000001 0000 00000000 00000001 00000002 00000001 00000002 00000001 00000001",
        {
            "brokers": [{"node_id": 1, "host": "h", "port": 9092}],
            "topics": [
                {
                    "error_code": 0,
                    "name": "t",
                    "partitions": [
                        {
                            "error_code": 0,
                            "partition_index": 0,
                            "leader_id": 1,
                            "replica_nodes": [1, 2],
                            "isr_nodes": [1],
                        },
                    ],
                }
            ],
        },
    ),
    (
        "Metadata",
        "response",
        12,
        "00000000  02 00000001 02 68 00002384 00 00  02 63 00000001"
        f"02 0000 02 74 {TOPIC_ID} 00"
        "02 0000 00000000 00000001 00000003 03 00000001 00000002 02 00000001 01 00"
        "80000000 00  00",
        {
            "brokers": [{"node_id": 1, "host": "h", "port": 9092, "rack": None}],
            "cluster_id": "c",
            "controller_id": 1,
            "topics": [
                {
                    "error_code": 0,
                    "name": "t",
                    "topic_id": UUID(TOPIC_ID),
                    "partitions": [
                        {
                            "error_code": 0,
                            "partition_index": 0,
                            "leader_id": 1,
                            "leader_epoch": 3,
                            "replica_nodes": [1, 2],
                            "isr_nodes": [1],
                        }
                    ],
                }
            ],
        },
    ),
    (
        "DescribeTopicPartitions",
        "request",
        0,
        "02 02 74 00  000007d0  01 02 74 00000005 00  00",
        {"topics": [{"name": "t"}], "cursor": {"topic_name": "t", "partition_index": 5}},
    ),
    (
        "DescribeTopicPartitions",
        "request",
        0,
        "02 02 74 00  000007d0  ff  00",
        {"topics": [{"name": "t"}], "cursor": None},
    ),
    (
        "BrokerRegistration",
        "request",
        4,
        f"00000001 02 63 {TOPIC_ID}  02 02 50 02 68 2384 0000 00  02 02 66 0000 0001 00  00 "
        f"00  02 {TOPIC_ID}  ffffffffffffffff 00",
        {
            "broker_id": 1,
            "cluster_id": "c",
            "incarnation_id": UUID(TOPIC_ID),
            "listeners": [{"name": "P", "host": "h", "port": 9092, "security_protocol": 0}],
            "features": [{"name": "f", "min_supported_version": 0, "max_supported_version": 1}],
            "rack": None,
            "log_dirs": [UUID(TOPIC_ID)],
        },
    ),
    (
        "BrokerHeartbeat",
        "request",
        2,
        f"00000001 0000000000000002 0000000000000003 01 00  02 00 11 02 {TOPIC_ID} 01 01 01",
        {
            "broker_id": 1,
            "broker_epoch": 2,
            "current_metadata_offset": 3,
            "want_fence": True,
            "offline_log_dirs": [UUID(TOPIC_ID)],
            "cordoned_log_dirs": [],
        },
    ),
    (
        "AllocateProducerIds",
        "response",
        0,
        "00000000 0000 00000000000003e8 000003e8 00",
        {"producer_id_start": 1000, "producer_id_len": 1000},
    ),
    (
        "AlterPartition",
        "request",
        2,
        f"00000001 0000000000000002  02 {TOPIC_ID}  02 00000003 00000004 03 00000001 00000002 "
        "00 00000005 00  00 00",
        {
            "broker_id": 1,
            "broker_epoch": 2,
            "topics": [
                {
                    "topic_id": UUID(TOPIC_ID),
                    "partitions": [
                        {
                            "partition_index": 3,
                            "leader_epoch": 4,
                            "new_isr": [1, 2],
                            "partition_epoch": 5,
                        }
                    ],
                }
            ],
        },
    ),
    (
        "AlterPartition",
        "request",
        3,
        f"00000001 0000000000000002  02 {TOPIC_ID}  02 00000003 00000004 02 00000001 "
        "0000000000000009 00 01 00000005 00  00 00",
        {
            "broker_id": 1,
            "broker_epoch": 2,
            "topics": [
                {
                    "topic_id": UUID(TOPIC_ID),
                    "partitions": [
                        {
                            "partition_index": 3,
                            "leader_epoch": 4,
                            "new_isr_with_epochs": [{"broker_id": 1, "broker_epoch": 9}],
                            "leader_recovery_state": 1,
                            "partition_epoch": 5,
                        }
                    ],
                }
            ],
        },
    ),
    (
        "AlterPartition",
        "response",
        3,
        f"00000000 0000  02 {TOPIC_ID}  02 00000003 005f 00000001 00000004 02 00000001 00 "
        "00000005 00  00 00",
        {
            "topics": [
                {
                    "topic_id": UUID(TOPIC_ID),
                    "partitions": [
                        {
                            "partition_index": 3,
                            "error_code": 95,
                            "leader_id": 1,
                            "leader_epoch": 4,
                            "isr": [1],
                            "partition_epoch": 5,
                        }
                    ],
                }
            ]
        },
    ),
    ("UnregisterBroker", "request", 0, "00000003 00", {"broker_id": 3}),
    (
        "UnregisterBroker",
        "response",
        0,
        "00000000 0066 02 6e 00",
        {"error_code": 102, "error_message": "n"},
    ),
    (
        "ReportOfflineReplicas",
        "request",
        0,
        f"00000001 0000000000000002  02 {TOPIC_ID} 03 00000003 00000004 00  00",
        {
            "broker_id": 1,
            "broker_epoch": 2,
            "topics": [{"topic_id": UUID(TOPIC_ID), "partitions": [3, 4]}],
        },
    ),
    ("ReportOfflineReplicas", "response", 0, "004d 00", {"error_code": 77}),
    (
        "FindRecords",
        "request",
        0,
        "02 74 00000001 ffffffff 02 6b 0000000000000005 0000000000000006 0000000000000007 01 01"
        " 00000008 00000009 00",
        {
            "topic": "t",
            "partition_index": 1,
            "current_leader_epoch": -1,
            "key": b"k",
            "offset": 5,
            "since": 6,
            "until": 7,
            "newest_first": True,
            "isolation_level": 1,
            "max_records": 8,
            "max_bytes": 9,
        },
    ),
    (
        "FindRecords",
        "response",
        0,
        "00000000 0000 00 00000002 0000000000000003 0000000000000004 01 0000000000000005"
        " 00000006 00000007 00000008 02 0000000000000009 000000000000000a 0000000b 00"
        " 02 02 6e 00 00 00 00",
        {
            "error_message": None,
            "leader_epoch": 2,
            "high_watermark": 3,
            "next_offset": 4,
            "is_complete": True,
            "scanned_bytes": 5,
            "segments_read": 6,
            "segments_filtered": 7,
            "segments_unindexed": 8,
            "records": [
                {
                    "offset": 9,
                    "timestamp": 10,
                    "leader_epoch": 11,
                    "value": None,
                    "headers": [{"name": b"n", "value": None}],
                }
            ],
        },
    ),
    (
        "ClaimTopic",
        "request",
        0,
        "02 74  02 62  02 61  02 02 63  00",
        {"topic": "t", "transactional_id": "b", "expected_owner": "a", "fenced": ["c"]},
    ),
    (
        "ClaimTopic",
        "response",
        0,
        "0000 0000000000000007 00",
        {"error_code": 0, "metadata_index": 7},
    ),
    ("DescribeIdleProducer", "request", 0, "02 62 00", {"transactional_id": "b"}),
    (
        "DescribeIdleProducer",
        "response",
        0,
        "0069 ffffffffffffffff 0000000000000007 00",
        {"error_code": 105, "idle_ms": -1, "metadata_index": 7},
    ),
]


@pytest.mark.parametrize(
    ("name", "side", "version", "data", "mapping"),
    GOLDEN,
    ids=[f"{g[0]}-{g[2]}-{g[1]}" for g in GOLDEN],
)
def test_bytes_written_by_hand(
    name: str, side: str, version: int, data: str, mapping: dict[str, Any]
) -> None:
    api = by_name(name)
    assert encode(api, side, version, mapping).hex() == bytes.fromhex(data).hex()
    back = plain(decode(api, side, version, bytes.fromhex(data)))
    assert contains(back, mapping), back


def contains(whole: Any, part: Any) -> bool:
    if isinstance(part, dict):
        return all(contains(whole[name], value) for name, value in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(contains, whole, part))
    return bool(whole == part)
