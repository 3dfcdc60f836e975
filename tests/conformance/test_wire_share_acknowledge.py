"""ShareAcknowledge on the wire (KIP-932), in all versions.

Apache Kafka 4.3.1 returns the same responses (`make conformance-kafka`), but for these. With an
empty group id it responds with UNKNOWN_TOPIC_OR_PARTITION if the member has a session, because it
creates one for such a group; mqd responds with INVALID_GROUP_ID. A partition that is named twice:
Kafka acknowledges what the second one says, mqd both.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from .share_exchanges import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledged,
    Plain,
    Sharing,
    acquired,
)

VERSIONS = (1, 2)
UNKNOWN_PARTITION, INVALID_GROUP_ID, INVALID_REQUEST, UNKNOWN_TOPIC_ID = 3, 24, 42, 100
INVALID_RECORD_STATE, NO_SESSION, WRONG_SESSION_EPOCH = 121, 122, 123
COUNT = 10


class Member:
    """A member that has acquired records, and acknowledges them in one version."""

    def __init__(self, sharing: Sharing, version: int) -> None:
        self.sharing, self.version = sharing, version
        sharing.join()
        sharing.write(COUNT)
        found = sharing.fetch(0, max_wait_ms=5000)
        ((row,),) = [topic["partitions"] for topic in found["responses"]]
        assert row["acquired_records"] == [acquired(0, COUNT - 1)]

    def acknowledge(self, epoch: int, *acknowledged: Acknowledged, **more: Any) -> Plain:
        return self.sharing.acknowledge(epoch, *acknowledged, version=self.version, **more)

    def response(self, **row: int) -> Plain:
        """The response with one row, without its defaults."""
        return self.empty | {"responses": self.sharing.rows(dict(row))}

    @property
    def empty(self) -> Plain:
        return {"acquisition_lock_timeout_ms": 30_000} if self.version >= 2 else {}


@pytest.fixture(params=VERSIONS)
def member(request: pytest.FixtureRequest, sharing: Sharing) -> Member:
    return Member(sharing, request.param)


@pytest.mark.parametrize("version", VERSIONS)
def test_without_a_session(sharing: Sharing, version: int) -> None:
    for fields in (
        {"group_id": None},
        {"member_id": ""},
        {"member_id": None},
        {"member_id": "m" * 37},
    ):
        invalid = sharing.acknowledge(1, (0, 0, ACCEPT), version=version, **fields)
        assert invalid == {"error_code": INVALID_REQUEST}
    for epoch, code in ((1, NO_SESSION), (-1, NO_SESSION), (-2, NO_SESSION)):
        refused = sharing.acknowledge(epoch, (0, 0, ACCEPT), version=version)
        assert refused == {"error_code": code}
    initial = sharing.acknowledge(0, (0, 0, ACCEPT), version=version)
    assert initial == {"error_code": WRONG_SESSION_EPOCH}


@pytest.mark.mqd_only("Apache Kafka 4.3 has no such check")
def test_an_empty_group_id(sharing: Sharing) -> None:
    refused = sharing.acknowledge(1, (0, 0, ACCEPT), group_id="")
    assert refused == {"error_code": INVALID_GROUP_ID}


def test_epochs(member: Member) -> None:
    for epoch in (0, 2, 9, -2):
        refused = member.acknowledge(epoch, (0, 0, ACCEPT))
        assert refused == {"error_code": WRONG_SESSION_EPOCH}
    assert member.acknowledge(1) == member.empty
    assert member.acknowledge(2, topics=member.sharing.topics()) == member.empty
    assert member.acknowledge(3, (0, 0, ACCEPT)) == member.response()
    assert member.acknowledge(-1, (1, 1, ACCEPT)) == member.response()
    assert member.acknowledge(4, (2, 2, ACCEPT)) == {"error_code": NO_SESSION}


def test_each_type(member: Member) -> None:
    assert member.acknowledge(1, (0, 3, ACCEPT, GAP, REJECT, RELEASE)) == member.response()
    assert member.acknowledge(2, (0, 2, ACCEPT)) == member.response(), "before the start offset"
    again = member.sharing.fetch(3, max_wait_ms=5000, version=member.version)
    ((row,),) = [topic["partitions"] for topic in again["responses"]]
    assert row["acquired_records"] == [acquired(3, 3, 2)]
    assert member.acknowledge(4, (3, 9, ACCEPT)) == member.response()
    assert member.acknowledge(-1) == member.empty
    again = member.sharing.fetch(0, member="m2", max_wait_ms=300)
    assert again["responses"] == member.sharing.rows({}), "all are done"


def test_records_that_were_not_acquired(member: Member) -> None:
    """Such an acknowledgement changes nothing."""
    past = "Batch record not found. The {} offset in request is past acquired records."
    for epoch, batches, which in (
        (1, [(10, 10, ACCEPT)], "first"),
        (2, [(9, 10, ACCEPT)], "last"),
        (3, [(5, 5, ACCEPT), (20, 20, ACCEPT)], "first"),
    ):
        refused = member.acknowledge(epoch, *batches)
        assert refused == member.response(error_code=INVALID_REQUEST)
        assert member.sharing.wire.messages == [past.format(which)]
    assert member.acknowledge(4, (5, 5, ACCEPT), (9, 9, ACCEPT)) == member.response()
    assert member.acknowledge(5, (4, 5, ACCEPT)) == member.response(error_code=INVALID_RECORD_STATE)
    assert member.acknowledge(6, (4, 4, ACCEPT)) == member.response()


def test_unknown_partitions(member: Member) -> None:
    topics = member.sharing.topics((0, 0, ACCEPT), partition=3)
    assert member.acknowledge(1, topics=topics) == member.response(
        partition_index=3, error_code=UNKNOWN_PARTITION
    )
    unknown = UUID(int=77)
    topics = member.sharing.topics((0, 0, ACCEPT), topic_id=unknown)
    rows = [{"topic_id": unknown, "partitions": [{"error_code": UNKNOWN_TOPIC_ID}]}]
    assert member.acknowledge(2, topics=topics) == member.empty | {"responses": rows}


@pytest.mark.parametrize(
    "batches",
    [
        [(1, 1, 5)],
        [(1, 1, -1)],
        [(1, 1, RENEW)],
        [(2, 4, ACCEPT, ACCEPT)],
        [(2, 4)],
        [(4, 2, ACCEPT)],
        [(4, 4, ACCEPT), (2, 2, ACCEPT)],
        [(-5, -5, ACCEPT)],
    ],
    ids=str,
)
def test_invalid_acknowledgements(member: Member, batches: list[Acknowledged]) -> None:
    """The session stays open."""
    refused = member.acknowledge(1, *batches)
    assert refused == member.response(error_code=INVALID_REQUEST)
    assert member.acknowledge(2, (0, 9, ACCEPT)) == member.response()


def test_records_of_another_member(member: Member) -> None:
    member.sharing.open("m2")
    refused = member.acknowledge(1, (0, 0, ACCEPT), member="m2")
    assert refused == member.response(error_code=INVALID_RECORD_STATE)


@pytest.mark.parametrize("sends_flag", [True, False])
def test_renewals(sharing: Sharing, sends_flag: bool) -> None:
    """Version 2 (KIP-1222)."""
    member = Member(sharing, 2)
    renewed = member.acknowledge(1, (0, 1, RENEW, ACCEPT), is_renew_ack=sends_flag)
    if not sends_flag:
        assert renewed == member.response(error_code=INVALID_REQUEST)
        return
    assert renewed == member.response()
    assert member.acknowledge(2, (0, 0, RENEW), is_renew_ack=True) == member.response()
    assert member.acknowledge(3, (1, 1, RENEW), is_renew_ack=True) == member.response(
        error_code=INVALID_RECORD_STATE
    )
    sharing.wire.configure(sharing.group, share_renew_acknowledge_enable="false")
    assert member.acknowledge(4, (0, 0, RENEW), is_renew_ack=True) == member.response(
        error_code=INVALID_RECORD_STATE
    )
    assert sharing.wire.messages == ["Renewing acquisition locks is not enabled for the group."]
    assert member.acknowledge(5, (0, 0, ACCEPT), is_renew_ack=True) == member.response()


def test_a_renewed_lock_lasts(sharing: Sharing) -> None:
    """It begins again with each renewal."""
    sharing.wire.configure(sharing.group, share_record_lock_duration_ms="1000")
    sharing.join()
    sharing.write(2)
    sharing.fetch(0, max_wait_ms=5000)
    sharing.fetch(0, member="m2", max_records=0)
    taken = []
    for epoch in range(1, 9):
        taken += sharing.fetch(epoch, member="m2", max_wait_ms=250).get("responses", [])
        renewed = sharing.acknowledge(epoch, (0, 0, RENEW), is_renew_ack=True)
        assert renewed["responses"] == sharing.rows({}), epoch
    (row,) = taken[0]["partitions"]
    assert row["acquired_records"] == [acquired(1, 1, 2)]
    accepted = sharing.acknowledge(9, (0, 0, ACCEPT))
    assert accepted["responses"] == sharing.rows({})
    late = sharing.acknowledge(10, (1, 1, ACCEPT))
    assert late["responses"] == sharing.rows({"error_code": INVALID_RECORD_STATE})
