"""The ends of leader epochs, reported by a simulated cluster whose leader has changed."""

from __future__ import annotations

from mqd.client.admin import Admin
from mqd.client.descriptions import LATEST
from mqd.client.errors import ClientError
from mqd.client.producer import open_producer
from mqd.errors import ErrorCode
from mqd.testing import Cluster, run
from mqd.types import TopicPartition

TP = TopicPartition("a", 0)
OPTIONS = {"broker.session.timeout.ms": "600", "broker.heartbeat.interval.ms": "200"}


def test_an_epoch_ends_where_the_next_one_starts() -> None:
    run(_scenario, seed=1)


async def _scenario(seed: int = 1) -> None:
    async with Cluster(nodes=3, options=OPTIONS) as cluster:
        client = await cluster.client(request_timeout_s=2.0)
        admin = Admin(client)
        await admin.create_topic("a", 1, 3)
        async with open_producer(client) as producer:
            for _ in range(3):
                await producer.send("a", b"x")
            before = (await admin.list_offsets({TP: LATEST}))[TP]
            assert not isinstance(before, ClientError)
            leader = client.view.leader_of(TP)
            assert leader is not None
            cluster.nodes[leader.node_id].kill()
            for _ in range(2):
                await producer.send("a", b"y")
        after = (await admin.list_offsets({TP: LATEST}))[TP]
        assert not isinstance(after, ClientError) and after.leader_epoch > before.leader_epoch
        assert (await admin.list_epoch_ends({TP: before.leader_epoch}))[TP] == 3
        assert (await admin.list_epoch_ends({TP: after.leader_epoch}))[TP] == 5
        missing = TopicPartition("nope", 0)
        refused = (await admin.list_epoch_ends({missing: 0}))[missing]
        assert isinstance(refused, ClientError)
        assert refused.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
