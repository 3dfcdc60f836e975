"""Scenarios of the ACL matrix with resources of their own: delegation tokens and share groups.

mqd has no delegation tokens, and Apache Kafka has none without `delegation.token.secret.key`. Both
refuse these requests, but look at ACLs before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mqd.security.acls import ResourceType
from tests.server.acl_scenario import TOPIC_ID, Needed, Scenario, cluster

_PLACE = "AAAAAAAAAAAAAAAAAAAKzg"
"""TOPIC_ID as text."""
_MEMBER_ID = "{user}"
"""Apache Kafka may end the session of a new connection when the member's last one has closed."""
SHARING_MEMBER: Final = {
    "group_id": "sharers",
    "member_id": "CCCCCCCCCCCCCCCCCCCCCC",
    "member_epoch": 0,
    "subscribed_topic_names": ["orders"],
}
"""The heartbeat of a member that the share group `sharers` has from the beginning."""

_TOKEN = Needed(ResourceType.DELEGATION_TOKEN, "token", "DESCRIBE")
_TOKENS_OF_NOBODY = Needed(ResourceType.USER, "User:nobody", "DESCRIBE_TOKENS")
_READ_SHARERS = Needed(ResourceType.GROUP, "sharers", "READ")
_READ_ORDERS = Needed(ResourceType.TOPIC, "orders", "READ")
_DESCRIBE_ORDERS = Needed(ResourceType.TOPIC, "orders", "DESCRIBE")
_REFUSED = "refused: mqd has no delegation tokens"


def _topics(**fields: Any) -> list[dict[str, Any]]:
    rows = [{"partition_index": 0, "acknowledgement_batches": [], **fields}]
    return [{"topic_id": TOPIC_ID, "partitions": rows}]


_SHARE_FETCH: Final[Mapping[str, Any]] = {
    "group_id": "sharers",
    "member_id": _MEMBER_ID,
    "share_session_epoch": 0,
    "max_wait_ms": 0,
    "min_bytes": 0,
    "max_records": 10,
    "batch_size": 10,
    "topics": _topics(),
    "forgotten_topics_data": [],
}
"""The first one of a session."""
_OPENED = ("ShareFetch", 2, {**_SHARE_FETCH, "max_wait_ms": 20})
"""Apache Kafka reads the state of a share partition during the first fetch."""

SHARE_PARTITION: Final = f"sharers:{_PLACE}:0"
SHARE_STATE: Final[Mapping[str, Any]] = {
    "group_id": "sharers",
    "topics": [{"topic_id": TOPIC_ID, "partitions": [{"partition": 0, "leader_epoch": 0}]}],
}
"""A request for the state of that share partition."""

_ACCEPTED = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}]


def _state(title: str, **fields: int | list[Any]) -> Scenario:
    """A request of brokers for the state of a share partition."""
    rows = [{"partition": 0, **fields}]
    return Scenario(
        title,
        title,
        0,
        (cluster("CLUSTER_ACTION"),),
        {"group_id": "state-{user}", "topics": [{"topic_id": TOPIC_ID, "partitions": rows}]},
    )


_STATES = (
    _state("InitializeShareGroupState", state_epoch=0, start_offset=0),
    _state("ReadShareGroupState", leader_epoch=0),
    _state("ReadShareGroupStateSummary", leader_epoch=0),
    _state("WriteShareGroupState", state_epoch=0, leader_epoch=0, start_offset=0, state_batches=[]),
    _state("DeleteShareGroupState"),
    Scenario(
        "FindCoordinator of a share partition",
        "FindCoordinator",
        6,
        (cluster("CLUSTER_ACTION"),),
        {"coordinator_keys": [SHARE_PARTITION], "key_type": 2},
    ),
)
"""The APIs of brokers."""

TOKENS_AND_SHARES: Final = (
    *_STATES,
    Scenario(
        "ShareGroupDescribe",
        "ShareGroupDescribe",
        1,
        (Needed(ResourceType.GROUP, "sharers", "DESCRIBE"), _DESCRIBE_ORDERS),
        {"group_ids": ["sharers"], "include_authorized_operations": True},
    ),
    Scenario(
        "ShareGroupHeartbeat",
        "ShareGroupHeartbeat",
        1,
        (Needed(ResourceType.GROUP, "sharing-{user}", "READ"), _DESCRIBE_ORDERS),
        {**SHARING_MEMBER, "group_id": "sharing-{user}"},
        deep=False,  # Apache Kafka assigns partitions later
    ),
    Scenario(
        "ShareFetch", "ShareFetch", 2, (_READ_SHARERS, _READ_ORDERS), _SHARE_FETCH, before=_OPENED
    ),
    Scenario(
        "ShareAcknowledge",
        "ShareAcknowledge",
        2,
        (_READ_SHARERS, _READ_ORDERS),
        {
            "group_id": "sharers",
            "member_id": _MEMBER_ID,
            "share_session_epoch": 1,
            "topics": _topics(acknowledgement_batches=_ACCEPTED),
        },
        before=_OPENED,
    ),
    Scenario(
        "DescribeShareGroupOffsets",
        "DescribeShareGroupOffsets",
        1,
        (Needed(ResourceType.GROUP, "offsets-{user}", "DESCRIBE"), _DESCRIBE_ORDERS),
        {
            "groups": [
                {
                    "group_id": "offsets-{user}",
                    "topics": [{"topic_name": "orders", "partitions": [0]}],
                }
            ]
        },
    ),
    Scenario(
        "DescribeShareGroupOffsets of all topics",
        "DescribeShareGroupOffsets",
        1,
        (Needed(ResourceType.GROUP, "sharers", "DESCRIBE"), _DESCRIBE_ORDERS),
        {"groups": [{"group_id": "sharers", "topics": None}]},
    ),
    Scenario(
        "AlterShareGroupOffsets",
        "AlterShareGroupOffsets",
        0,
        (Needed(ResourceType.GROUP, "altered-{user}", "READ"), _READ_ORDERS),
        {
            "group_id": "altered-{user}",
            "topics": [
                {
                    "topic_name": "orders",
                    "partitions": [{"partition_index": 0, "start_offset": 0}],
                }
            ],
        },
    ),
    Scenario(
        "DeleteShareGroupOffsets",
        "DeleteShareGroupOffsets",
        0,
        (Needed(ResourceType.GROUP, "unknown-{user}", "DELETE"), _READ_ORDERS),
        {"group_id": "unknown-{user}", "topics": [{"topic_name": "orders"}]},
    ),
    Scenario(
        "CreateDelegationToken",
        "CreateDelegationToken",
        3,
        (Needed(ResourceType.USER, "User:nobody", "CREATE_TOKENS"),),
        {
            "owner_principal_type": "User",
            "owner_principal_name": "nobody",
            "renewers": [],
            "max_lifetime_ms": -1,
        },
        note="CREATE_TOKENS on the owner, a User resource; then " + _REFUSED,
    ),
    Scenario(
        "CreateDelegationToken for itself",
        "CreateDelegationToken",
        2,
        (Needed(ResourceType.USER, "User:{user}", "CREATE_TOKENS"),),
        {"renewers": [], "max_lifetime_ms": -1},
        note=_REFUSED,
    ),
    Scenario(
        "RenewDelegationToken",
        "RenewDelegationToken",
        2,
        (_TOKEN,),
        {"hmac": b"unknown", "renew_period_ms": -1},
        note=_REFUSED,
    ),
    Scenario(
        "ExpireDelegationToken",
        "ExpireDelegationToken",
        2,
        (_TOKEN,),
        {"hmac": b"unknown", "expiry_time_period_ms": -1},
        note=_REFUSED,
    ),
    Scenario(
        "DescribeDelegationToken",
        "DescribeDelegationToken",
        3,
        (_TOKEN,),
        {"owners": [{"principal_type": "User", "principal_name": "nobody"}]},
        (_TOKENS_OF_NOBODY,),
        note=_REFUSED,
    ),
)
