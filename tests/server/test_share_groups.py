"""Share groups on a real node (KIP-932): records are acquired, acknowledged, and stay so after a
restart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import trio

from mqd.client.peer import PeerConnection
from mqd.errors import ErrorCode
from mqd.peers import Peers
from mqd.testing import Cluster, simulated
from tests.nodes import ask, batch, connected, create_topic, node, one_node_peers, produce

OPTIONS = {
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.share.min.record.lock.duration.ms": "1000",
}
TOPIC, GROUP = "orders", "g"
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
SECONDS_MAX = 20


class Member:
    """A member of the share group, with a connection of its own."""

    def __init__(self, client: PeerConnection, member_id: str) -> None:
        self._client = client
        self.member_id = member_id
        self.topic_id = UUID(int=0)
        self._epoch = 0

    async def join(self) -> None:
        with trio.fail_after(SECONDS_MAX):
            while True:
                found = await ask(
                    self._client, "find_coordinator", 3, {"key": GROUP, "key_type": 0}
                )
                if not found.error_code:
                    joined = await ask(
                        self._client,
                        "share_group_heartbeat",
                        1,
                        {
                            "group_id": GROUP,
                            "member_id": self.member_id,
                            "member_epoch": 0,
                            "subscribed_topic_names": [TOPIC],
                        },
                    )
                    if not joined.error_code and joined.assignment.topic_partitions:
                        break
                await trio.sleep(0.05)
        [row] = joined.assignment.topic_partitions
        assert list(row.partitions) == [0]
        self.topic_id = row.topic_id

    async def fetch(
        self, *acknowledged: tuple[int, int, int], wait_ms: int = 500, **more: Any
    ) -> list[tuple[int, int, int]]:
        """Acknowledge (first, last, type), and acquire: (first, last, delivery count)."""
        row = await self.row(*acknowledged, wait_ms=wait_ms, **more)
        assert not row or (row.error_code, row.acknowledge_error_code) == (0, 0), row
        found = row.acquired_records if row else ()
        return [(one.first_offset, one.last_offset, one.delivery_count) for one in found]

    async def row(
        self,
        *acknowledged: tuple[int, int, int],
        wait_ms: int = 0,
        epoch: int | None = None,
        max_records: int = 500,
    ) -> Any:
        """`max_records` is exact if it is less than 500 (KIP-1206). A request that renews locks
        acquires nothing."""
        renews = any(kind == RENEW for _, _, kind in acknowledged)
        batches = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": [kind]}
            for first, last, kind in acknowledged
        ]
        partition = {"partition_index": 0, "acknowledgement_batches": batches}
        answer = await ask(
            self._client,
            "share_fetch",
            2,
            {
                "group_id": GROUP,
                "member_id": self.member_id,
                "share_session_epoch": self._epoch if epoch is None else epoch,
                "max_wait_ms": 0 if renews else wait_ms,
                "min_bytes": 0 if renews else 1,
                "max_bytes": 0 if renews else 1_000_000,
                "max_records": 0 if renews else max_records,
                "share_acquire_mode": int(max_records < 500),
                "batch_size": 500,
                "is_renew_ack": renews,
                "topics": [{"topic_id": self.topic_id, "partitions": [partition]}],
            },
        )
        assert answer.error_code == 0, answer
        self._epoch += 1
        rows = [one for topic in answer.responses for one in topic.partitions]
        return rows[0] if rows else None


async def configure(client: PeerConnection, **configs: str) -> None:
    rows = [
        {"name": key.replace("_", "."), "config_operation": 0, "value": value}
        for key, value in configs.items()
    ]
    resource = {"resource_type": 32, "resource_name": GROUP, "configs": rows}
    answer = await ask(
        client, "incremental_alter_configs", 1, {"resources": [resource], "validate_only": False}
    )
    assert [row.error_code for row in answer.responses] == [0]


async def write(client: PeerConnection, *values: bytes) -> None:
    assert (await produce(client, TOPIC, batch(*values))).error_code == 0


def running(directory: Path, peers: Peers) -> Any:
    return node(directory, peers=peers, options=OPTIONS)


async def test_accepted_records_stay_accepted_after_a_restart(tmp_path: Path) -> None:
    peers = one_node_peers()
    async with running(tmp_path, peers) as first, connected(first) as client:
        await create_topic(client, TOPIC)
        await configure(client, share_auto_offset_reset="earliest")
        await write(client, b"0", b"1", b"2", b"3", b"4")
        member = Member(client, "m1")
        await member.join()
        request = {"group_ids": [GROUP, "none"], "include_authorized_operations": False}
        described = await ask(client, "share_group_describe", 1, request)
        assert [row.error_code for row in described.groups] == [0, ErrorCode.GROUP_ID_NOT_FOUND]
        assert [row.member_id for row in described.groups[0].members] == ["m1"]
        assert await member.fetch() == [(0, 4, 1)]
        assert await member.fetch((0, 1, ACCEPT), (2, 2, RELEASE), (3, 3, ACCEPT)) == [(2, 2, 2)]
    async with running(tmp_path, peers) as second, connected(second) as client:
        member = Member(client, "m2")
        await member.join()
        found = await member.fetch()
        assert [(first, last) for first, last, _ in found] == [(2, 2), (4, 4)]
        assert await member.fetch((2, 2, ACCEPT), (4, 4, REJECT), wait_ms=0) == []
        await write(client, b"5")
        assert await member.fetch() == [(5, 5, 1)]


async def test_a_fetch_waits_for_records_and_for_released_ones(tmp_path: Path) -> None:
    async with (
        running(tmp_path, one_node_peers()) as one,
        connected(one) as client,
        connected(one) as other,
    ):
        await create_topic(client, TOPIC)
        await configure(client, share_auto_offset_reset="earliest")
        first, second = Member(client, "m1"), Member(other, "m2")
        await first.join()
        await second.join()
        results: list[list[tuple[int, int, int]]] = []

        async def wait(member: Member) -> None:
            results.append(await member.fetch(wait_ms=15_000))

        with trio.fail_after(SECONDS_MAX):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, first)
                async with connected(one) as writer:
                    await write(writer, b"0")
            assert results == [[(0, 0, 1)]]
            assert await second.fetch(wait_ms=0) == []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, second)
                await first.row((0, 0, RELEASE), epoch=-1)
            assert results[1] == [(0, 0, 2)]


async def test_the_records_of_a_closed_connection_are_available_again(tmp_path: Path) -> None:
    async with running(tmp_path, one_node_peers()) as one, connected(one) as client:
        await create_topic(client, TOPIC)
        await configure(client, share_auto_offset_reset="earliest")
        await write(client, b"0", b"1")
        async with connected(one) as lost:
            member = Member(lost, "m1")
            await member.join()
            assert await member.fetch() == [(0, 1, 1)]
        other = Member(client, "m2")
        await other.join()
        assert await other.fetch(wait_ms=10_000) == [(0, 1, 2)]


@simulated(seed=1)
async def test_a_lock_ends_and_can_be_renewed() -> None:
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        client = await cluster.connect(1)
        await create_topic(client, TOPIC)
        await configure(
            client, share_auto_offset_reset="earliest", share_record_lock_duration_ms="1000"
        )
        await write(client, b"0", b"1")
        member = Member(client, "m1")
        await member.join()
        assert await member.fetch() == [(0, 1, 1)]
        for _ in range(3):
            await trio.sleep(0.4)
            assert (await member.row((0, 0, RENEW))).acknowledge_error_code == 0
        assert await member.fetch(wait_ms=5_000) == [(1, 1, 2)]
        assert await member.fetch((1, 1, ACCEPT), wait_ms=5_000) == [(0, 0, 2)]


@simulated(seed=4)
async def test_a_session_may_end_while_its_node_ends() -> None:
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        client = await cluster.connect(1)
        await create_topic(client, TOPIC)
        await configure(client, share_auto_offset_reset="earliest")
        await write(client, b"0")
        member = Member(client, "m1")
        await member.join()
        assert await member.fetch() == [(0, 0, 1)]
        share = cluster.daemon(1).coordinators.share
        share.partitions._nursery.cancel_scope.cancel()
        while share.partitions.is_running:  # noqa: ASYNC110
            await trio.sleep(0.01)
        row = await member.row((0, 0, ACCEPT))
        assert row.acknowledge_error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        share.connection_closed("nobody")
        [session] = share.sessions._sessions.values()
        await share.release(session)


async def test_errors_of_sessions_and_acknowledgements(tmp_path: Path) -> None:
    async with running(tmp_path, one_node_peers()) as one, connected(one) as client:
        await create_topic(client, TOPIC)
        await configure(client, share_auto_offset_reset="earliest")
        await write(client, b"0")
        member = Member(client, "m1")
        await member.join()
        assert await member.fetch() == [(0, 0, 1)]
        row = await member.row((0, 5, ACCEPT))
        assert row.acknowledge_error_code == ErrorCode.INVALID_REQUEST
        body = {
            "group_id": GROUP,
            "member_id": "m1",
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_records": 1,
            "batch_size": 1,
            "topics": [],
        }
        wrong = await ask(client, "share_fetch", 1, {**body, "share_session_epoch": 77})
        assert wrong.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        unknown = {**body, "member_id": "m9", "share_session_epoch": 1}
        wrong = await ask(client, "share_fetch", 1, unknown)
        assert wrong.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


async def test_share_groups_depend_on_the_feature_level(tmp_path: Path) -> None:
    """As in Apache Kafka 4.3: all nodes list the APIs, and level 0 refuses them."""
    async with running(tmp_path, one_node_peers()) as one, connected(one) as client:
        await create_topic(client, TOPIC)
        answer = await ask(
            client, "api_versions", 4, {"client_software_name": "t", "client_software_version": "1"}
        )
        assert {76, 77, 78, 79, *range(83, 88), 90, 91, 92} <= {
            row.api_key for row in answer.api_keys
        }
        levels = {row.name: row.max_version_level for row in answer.finalized_features}
        assert levels["share.version"] == 1
        await finalize(client, 0, kind=2)
        heartbeat = {
            "group_id": GROUP,
            "member_id": "m1",
            "member_epoch": 0,
            "subscribed_topic_names": [TOPIC],
        }
        session = {"group_id": GROUP, "member_id": "m1", "share_session_epoch": 0, "topics": []}
        limits = {"max_wait_ms": 0, "min_bytes": 0, "max_records": 1, "batch_size": 1}
        topic = {"topic_name": TOPIC, "partitions": [{"partition_index": 0, "start_offset": 0}]}
        for name, version, body in (
            ("share_group_heartbeat", 1, heartbeat),
            ("share_fetch", 2, {**session, **limits}),
            ("share_acknowledge", 2, session),
            ("alter_share_group_offsets", 0, {"group_id": GROUP, "topics": [topic]}),
            ("delete_share_group_offsets", 0, {"group_id": GROUP, "topics": [topic]}),
        ):
            refused = await ask(client, name, version, body)
            assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION, name
        described = {"group_ids": [GROUP], "include_authorized_operations": False}
        refused = await ask(client, "share_group_describe", 1, described)
        assert refused.groups[0].error_code == ErrorCode.UNSUPPORTED_VERSION
        groups = {"groups": [{"group_id": GROUP, "topics": None}]}
        refused = await ask(client, "describe_share_group_offsets", 1, groups)
        assert refused.groups[0].error_code == ErrorCode.UNSUPPORTED_VERSION
        await finalize(client, 1, kind=1)
        await Member(client, "m1").join()


async def finalize(client: PeerConnection, level: int, *, kind: int) -> None:
    update = {"feature": "share.version", "max_version_level": level, "upgrade_type": kind}
    body = {"timeout_ms": 10_000, "feature_updates": [update], "validate_only": False}
    assert (await ask(client, "update_features", 1, body)).error_code == 0
