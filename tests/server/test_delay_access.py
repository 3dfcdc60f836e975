"""Whoever makes a delay topic needs WRITE on the topics to which it writes."""

from __future__ import annotations

from mqd.errors import ErrorCode
from mqd.security.principal import ANONYMOUS
from mqd.testing import Cluster, simulated
from tests.server.test_authorization import ALICE, OPTIONS, Client, connect, grant, until

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
TARGET = "mqd.delay.target"


async def create(client: Client, name: str, **configs: str) -> ErrorCode:
    rows = [
        {"name": "mqd." + key.replace("_", "."), "value": value} for key, value in configs.items()
    ]
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": rows}
    response = await client("create_topics", 7, topics=[topic], timeout_ms=5_000)
    return ErrorCode(response["topics"][0]["error_code"])


async def alter(
    client: Client, name: str, key: str, value: str, *, resource_type: int = 2
) -> ErrorCode:
    config = {"name": key, "config_operation": 0, "value": value}
    resource = {"resource_type": resource_type, "resource_name": name, "configs": [config]}
    response = await client("incremental_alter_configs", 1, resources=[resource])
    [row] = response["responses"]
    if row["error_code"] == DENIED:
        assert value in row["error_message"], "it names the topic that needs WRITE"
    return ErrorCode(row["error_code"])


@simulated(seed=1)
async def test_the_target_needs_write() -> None:
    options = {**OPTIONS, "default.replication.factor": "1"}
    async with Cluster(nodes=1, options=options) as cluster:
        admin, alice = await connect(cluster, 1, ANONYMOUS), await connect(cluster, 1, ALICE)
        assert await create(admin, "orders") is ErrorCode.NONE
        own = grant("CREATE", "ALTER_CONFIGS", name="alices")
        own += grant("CREATE", name="alices2")
        await admin("create_acls", 3, creations=own)

        async def may_create() -> ErrorCode:
            return await create(alice, "alices")

        await until(may_create, ErrorCode.NONE)
        assert await create(alice, "alices2", delay_target="orders") is DENIED
        assert await alter(alice, "alices", TARGET, "orders") is DENIED
        assert await alter(alice, "alices", "mqd.dlq.topic", "orders") is DENIED
        group = grant("ALTER_CONFIGS", name="billing", resource_type=3)
        await admin("create_acls", 3, creations=group)
        letters = "errors.deadletterqueue.topic.name"

        async def may_name_letters() -> ErrorCode:
            return await alter(alice, "billing", letters, "orders", resource_type=32)

        await until(may_name_letters, DENIED)
        await admin("create_acls", 3, creations=grant("WRITE"))

        async def may_relay() -> ErrorCode:
            return await alter(alice, "alices", TARGET, "orders")

        await until(may_relay, ErrorCode.NONE)
