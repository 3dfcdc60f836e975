"""ACLs on a cluster: a change applies on every node, to waiting fetches and open groups, and the
audit log says who was refused.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
import trio

from mqd.client.peer import PeerConnection
from mqd.config import NodeConfig
from mqd.errors import ErrorCode
from mqd.limits import AUDIT_LINES_PER_SECOND, AUDIT_PRINCIPALS_MAX
from mqd.protocol import apis
from mqd.protocol.batch_builder import build_batch
from mqd.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from mqd.security.audit import Audit
from mqd.security.authorizer import DEFAULT_DENY, Authorizer
from mqd.security.principal import ANONYMOUS, Principal
from mqd.server.authorization import authorizer_of
from mqd.testing import Cluster, simulated

OPTIONS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "group.initial.rebalance.delay.ms": "0",
    "default.replication.factor": "3",
    "min.insync.replicas": "1",
    "transaction.two.phase.commit.enable": "true",
}
EFFECT_SECONDS_MAX = 5.0
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
ALICE = Principal("User", "alice")


class Client:
    """A connection of a user to one node. The principal is set inside the node: no login."""

    def __init__(self, connection: PeerConnection) -> None:
        self._connection = connection

    async def __call__(self, name: str, version: int, **request: Any) -> Mapping[str, Any]:
        api = apis.by_name(name)
        assert api is not None
        body = api.encode_request(version, request)
        frame, position = await self._connection.exchange(api, version, body)
        response: Mapping[str, Any] = api.decode_response(version, frame, position)
        return response


async def connect(cluster: Cluster, node: int, principal: Principal) -> Client:
    before = set(cluster.daemon(node).server._connections)
    connection = await cluster.connect(node)
    for made in set(cluster.daemon(node).server._connections) - before:
        if made.client_listener is not None:
            made.principal = principal
    return Client(connection)


async def until(ask: Any, wanted: Any, seconds: float = 30.0) -> float:
    """Repeat a request until its result is as wanted. Returns the virtual seconds."""
    begun = trio.current_time()
    with trio.fail_after(seconds):
        for _ in range(10_000):
            if await ask() == wanted:
                break
            await trio.sleep(0.02)
    return trio.current_time() - begun


def grant(*operations: str, resource_type: int = 2, name: str = "orders") -> list[dict[str, Any]]:
    return [
        {
            "resource_type": resource_type,
            "resource_name": name,
            "resource_pattern_type": 3,
            "principal": "User:alice",
            "host": "*",
            "operation": Operation[operation],
            "permission_type": Permission.ALLOW,
        }
        for operation in operations
    ]


def revoke(resource_type: int = 2) -> list[dict[str, Any]]:
    return [
        {
            "resource_type_filter": resource_type,
            "resource_name_filter": None,
            "pattern_type_filter": 1,
            "principal_filter": "User:alice",
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        }
    ]


@asynccontextmanager
async def secured(nodes: int) -> AsyncIterator[tuple[Cluster, Client, int]]:
    """A cluster with the topic `orders`, a super user's connection to node 1, and the leader."""
    async with Cluster(nodes=nodes, options=OPTIONS) as cluster:
        admin = await connect(cluster, 1, ANONYMOUS)
        topic = {
            "name": "orders",
            "num_partitions": 1,
            "replication_factor": nodes,
            "assignments": [],
            "configs": [],
        }
        created = await admin("CreateTopics", 7, topics=[topic], timeout_ms=30_000)
        assert created["topics"][0]["error_code"] == 0

        async def leader() -> int:
            found = await admin("Metadata", 9, topics=[{"name": "orders"}])
            return max([-1, *(int(row["leader_id"]) for row in found["topics"][0]["partitions"])])

        async def is_led() -> bool:
            return await leader() >= 0

        await until(is_led, True)
        yield cluster, admin, await leader()


def described(client: Client) -> Any:
    async def ask() -> int:
        found = await client("Metadata", 9, topics=[{"name": "orders"}])
        code: int = found["topics"][0]["error_code"]
        return code

    return ask


@simulated(seed=3)
async def test_a_change_of_acls_applies_on_every_node_within_seconds() -> None:
    async with secured(3) as (cluster, admin, _):
        users = [await connect(cluster, node, ALICE) for node in (1, 2, 3)]
        for user in users:
            assert await described(user)() == DENIED
        await admin("CreateAcls", 3, creations=grant("DESCRIBE"))
        for user in users:
            assert await until(described(user), 0) < EFFECT_SECONDS_MAX
        await admin("DeleteAcls", 3, filters=revoke())
        for user in users:
            assert await until(described(user), DENIED) < EFFECT_SECONDS_MAX


@simulated(seed=6)
async def test_each_node_checks_what_it_forwards() -> None:
    """The controller does not know the client: the node that got the request checks it."""
    async with secured(3) as (cluster, admin, _):
        users = [await connect(cluster, node, ALICE) for node in (1, 2, 3)]

        async def create(user: Client, name: str) -> int:
            topic = {
                "name": name,
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            }
            found = await user("CreateTopics", 7, topics=[topic], timeout_ms=30_000)
            return int(found["topics"][0]["error_code"])

        assert [await create(user, "new") for user in users] == [DENIED] * 3
        assert "new" not in cluster.daemon(1).machine.image.topics
        await admin("CreateAcls", 3, creations=grant("CREATE", name="new"))
        for user in users:

            async def is_allowed(user: Client = user) -> bool:
                return await create(user, "new") in (0, ErrorCode.TOPIC_ALREADY_EXISTS)

            await until(is_allowed, True)


@simulated(seed=7)
async def test_two_phase_commit_needs_its_own_operation() -> None:
    async with secured(1) as (cluster, admin, _):
        user = await connect(cluster, 1, ALICE)

        async def codes() -> list[int]:
            found = []
            for enabled in (False, True):
                response = await user(
                    "InitProducerId",
                    6,
                    transactional_id="tx",
                    transaction_timeout_ms=60_000,
                    enable_2_pc=enabled,
                )
                found.append(int(response["error_code"]))
            return found

        denied = int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        assert await codes() == [denied, denied]
        await admin("CreateAcls", 3, creations=grant("WRITE", resource_type=5, name="tx"))

        async def only_without() -> bool:
            await user("FindCoordinator", 3, key="tx", key_type=1)
            return await codes() == [0, denied]

        await until(only_without, True)
        added = grant("TWO_PHASE_COMMIT", resource_type=5, name="tx")
        await admin("CreateAcls", 3, creations=added)
        await until(codes, [0, 0])


@simulated(seed=4)
async def test_a_waiting_fetch_of_a_former_reader_gets_no_records() -> None:
    async with secured(1) as (cluster, admin, leader):
        await admin("CreateAcls", 3, creations=grant("READ"))
        user = await connect(cluster, leader, ALICE)
        await until(described(user), 0)
        row = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000_000}
        responses: list[Mapping[str, Any]] = []

        async def fetch() -> None:
            responses.append(
                await user(
                    "Fetch",
                    12,
                    max_wait_ms=20_000,
                    min_bytes=1,
                    topics=[{"topic": "orders", "partitions": [row]}],
                    forgotten_topics_data=[],
                )
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch)
            await trio.sleep(1)
            assert responses == [], "the fetch waits for records"
            await admin("DeleteAcls", 3, filters=revoke())
            records = bytes(build_batch([(None, b"secret")]))
            produced = await admin(
                "Produce",
                9,
                acks=-1,
                timeout_ms=5000,
                topic_data=[
                    {"name": "orders", "partition_data": [{"index": 0, "records": records}]}
                ],
            )
            assert produced["responses"][0]["partition_responses"][0]["error_code"] == 0
        (partition,) = responses[0]["responses"][0]["partitions"]
        assert (partition["error_code"], partition["records"] or b"") == (DENIED, b"")


@simulated(seed=5)
async def test_a_member_loses_its_group_with_its_acl() -> None:
    async with secured(1) as (cluster, admin, _):
        await admin("CreateAcls", 3, creations=grant("READ", resource_type=3, name="shop"))
        await admin("CreateAcls", 3, creations=grant("READ"))
        user = await connect(cluster, 1, ALICE)
        member = {"group_id": "shop", "member_id": "AAAAAAAAAAAAAAAAAAAAAA"}
        joined: dict[str, Any] = {}

        async def join() -> bool:
            await user("FindCoordinator", 3, key="shop", key_type=0)
            joined.update(
                await user(
                    "ConsumerGroupHeartbeat",
                    1,
                    **member,
                    member_epoch=0,
                    rebalance_timeout_ms=10_000,
                    subscribed_topic_regex=".*",
                    topic_partitions=[],
                )
            )
            return bool(joined["error_code"] == 0)

        await until(join, True)

        async def heartbeat() -> int:
            found = await user(
                "ConsumerGroupHeartbeat", 1, **member, member_epoch=joined["member_epoch"]
            )
            joined.update((key, found[key]) for key in ("member_epoch", "assignment") if found[key])
            code: int = found["error_code"]
            return code

        async def is_assigned() -> bool:
            await heartbeat()
            return bool((joined.get("assignment") or {}).get("topic_partitions"))

        await until(is_assigned, True)
        # the expression matches every topic: the member learns only of those that it may see
        topics = joined["assignment"]["topic_partitions"]
        image = cluster.daemon(1).machine.image
        assert [image.topics_by_id[row["topic_id"]].name for row in topics] == ["orders"]
        assert len(image.topics) > 1
        described = await user("ConsumerGroupDescribe", 1, group_ids=["shop"])
        (group,) = described["groups"]
        assert group["error_code"] == 0
        for part in ("assignment", "target_assignment"):
            (topic,) = group["members"][0][part]["topic_partitions"]
            assert topic["topic_name"] == "orders"
        await admin("DeleteAcls", 3, filters=revoke(resource_type=3))
        took = await until(heartbeat, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        assert took < EFFECT_SECONDS_MAX


@simulated(seed=6)
async def test_an_unknown_topic_id_is_unknown_and_not_denied() -> None:
    """Clients retry UNKNOWN_TOPIC_ID; TOPIC_AUTHORIZATION_FAILED is final."""
    async with secured(1) as (cluster, admin, _):
        topic_id = cluster.daemon(1).machine.image.topics["orders"].topic_id
        await admin("CreateAcls", 3, creations=grant("READ", resource_type=3, name="shop"))
        await admin("CreateAcls", 3, creations=grant("READ"))
        user = await connect(cluster, 1, ALICE)
        ids = [topic_id, UUID(int=77)]
        codes: list[int] = []

        async def fetched() -> list[int]:
            await user("FindCoordinator", 3, key="shop", key_type=0)
            topics = [{"topic_id": one, "partition_indexes": [0]} for one in ids]
            group = {"group_id": "shop", "member_id": None, "member_epoch": -1, "topics": topics}
            found = await user("OffsetFetch", 10, groups=[group], require_stable=False)
            rows = {row["topic_id"]: row for row in found["groups"][0]["topics"]}
            codes[:] = [rows[one]["partitions"][0]["error_code"] for one in ids if one in rows]
            return codes

        await until(fetched, [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID])
        row = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
        committed = await user(
            "OffsetCommit",
            10,
            group_id="shop",
            generation_id_or_member_epoch=-1,
            topics=[{"topic_id": one, "partitions": [row]} for one in ids],
        )
        found = {row["topic_id"]: row for row in committed["topics"]}
        assert [found[one]["partitions"][0]["error_code"] for one in ids] == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_ID,
        ]


# -- the audit log -------------------------------------------------------------------------------


def test_denied_requests_are_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    audit, authorizer = Audit(), Authorizer()
    alice = authorizer.permissions(ALICE, "10.0.0.1")
    caplog.set_level(logging.INFO, "mqd.audit")

    def deny(permissions: Any, now: float) -> None:
        audit.note(
            permissions, Operation.READ, ResourceType.TOPIC, "a\nb", DEFAULT_DENY, "Fetch", now
        )

    for _ in range(AUDIT_LINES_PER_SECOND + 7):
        deny(alice, 1.5)
    assert len(caplog.messages) == AUDIT_LINES_PER_SECOND
    assert caplog.messages[0] == (
        "authorization result=denied principal='User:alice' host=10.0.0.1 operation=READ "
        "resource='Topic:LITERAL:a\\nb' api=Fetch rule='DefaultDeny' suppressed=0"
    )
    deny(alice, 2.5)
    assert caplog.messages[-1].endswith("suppressed=7")
    audit.note(
        alice, Operation.READ, ResourceType.GROUP, "g" * 30_000, DEFAULT_DENY, "JoinGroup", 2.5
    )
    assert len(caplog.messages[-1]) < 1000
    for number in range(AUDIT_PRINCIPALS_MAX + 50):
        deny(authorizer.permissions(Principal("User", str(number)), "10.0.0.1"), 3.5)
    assert len(audit._lines) <= AUDIT_PRINCIPALS_MAX + 1


def test_allowed_requests_are_logged_for_debugging_only(caplog: pytest.LogCaptureFixture) -> None:
    authorizer = Authorizer(["User:alice"])
    alice = authorizer.permissions(ALICE, "10.0.0.1")
    rule = alice.rule(Operation.READ, ResourceType.TOPIC, "orders")
    for level, lines in ((logging.INFO, 0), (logging.DEBUG, 1)):
        caplog.set_level(level, "mqd.audit")
        Audit().note(alice, Operation.READ, ResourceType.TOPIC, "orders", rule, "Fetch", 1.0)
        assert len(caplog.messages) == lines
    assert "result=allowed" in caplog.messages[0]
    assert "rule='SuperUser'" in caplog.messages[0]


def test_an_acl_is_of_an_address_in_any_spelling() -> None:
    authorizer = Authorizer()
    authorizer.add(
        UUID(int=1),
        Acl(
            ResourceType.TOPIC,
            "orders",
            PatternType.LITERAL,
            "User:alice",
            "0:0:0:0:0:0:0:1",
            Operation.READ,
            Permission.ALLOW,
        ),
    )
    for host, allowed in (("::1", True), ("[::1]", True), ("::2", False)):
        found = (
            authorizer.permissions(ALICE, host)
            .rule(Operation.READ, ResourceType.TOPIC, "orders")
            .allowed
        )
        assert found == allowed, host


def test_super_users_without_an_authorizer_are_an_error(caplog: pytest.LogCaptureFixture) -> None:
    authorizer_of(NodeConfig.load(overrides={"super.users": "User:admin"}))
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "every client may do everything" in record.getMessage()
