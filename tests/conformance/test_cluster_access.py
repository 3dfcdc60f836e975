"""Access control on three nodes: requests that a node forwards to the controller, users and ACLs
that take effect on every node. With `--kind kafka` on Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import trio
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from .acl_kafka import PASSWORD, SaslConnection
from .secured_cluster import SecuredCluster
from .wire import until

TIMEOUT_S = 30.0
TOPIC, CLUSTER, LITERAL, ALLOW, DESCRIBE = 2, 4, 3, 3, 8
TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED = 29, 31


def ask(connection: SaslConnection, api: str, version: int, **request: Any) -> Mapping[str, Any]:
    async def main() -> Mapping[str, Any]:
        return await connection(api, version, request)

    return trio.run(main)


def new_topic(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }


def acl(name: str, user: str) -> dict[str, Any]:
    """The user may describe the topic."""
    return {
        "resource_type": TOPIC,
        "resource_name": name,
        "resource_pattern_type": LITERAL,
        "principal": f"User:{user}",
        "host": "*",
        "operation": DESCRIBE,
        "permission_type": ALLOW,
    }


def topic_code(cluster: SecuredCluster, node_id: int, user: str, topic: str) -> int:
    """The error code of the topic in the metadata of a node. 3: the node does not know it."""
    with cluster.connection(node_id, user) as connection:
        request = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        code: int = ask(connection, "Metadata", 9, **request)["topics"][0]["error_code"]
        return code


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_forwarded_requests_take_effect_on_all_nodes(
    secured_nodes: SecuredCluster, new_name: Callable[[], str], node_id: int
) -> None:
    """At least two of the nodes are not the controller."""
    topic, nodes = new_name(), list(secured_nodes.ports)
    with secured_nodes.connection(node_id) as admin:
        (row,) = ask(admin, "CreateTopics", 7, topics=[new_topic(topic)], timeout_ms=30_000)[
            "topics"
        ]
        assert row["error_code"] == 0, row
        for each in nodes:
            until(
                lambda each=each: topic_code(secured_nodes, each, "admin", topic) == 0,  # type: ignore[misc]
                f"the topic on node {each}",
            )
            assert topic_code(secured_nodes, each, "alice", topic) == TOPIC_AUTHORIZATION_FAILED
        (row,) = ask(admin, "CreateAcls", 3, creations=[acl(topic, "alice")])["results"]
        assert row["error_code"] == 0, row
    for each in nodes:
        until(
            lambda each=each: topic_code(secured_nodes, each, "alice", topic) == 0,  # type: ignore[misc]
            f"the ACL on node {each}",
        )
    with secured_nodes.connection(node_id % 3 + 1) as admin:
        wanted = {
            "resource_type_filter": TOPIC,
            "resource_name_filter": topic,
            "pattern_type_filter": LITERAL,
            "principal_filter": None,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        }
        (row,) = ask(admin, "DeleteAcls", 3, filters=[wanted])["filter_results"]
        assert (row["error_code"], len(row["matching_acls"])) == (0, 1)
    for each in nodes:
        until(
            lambda each=each: (  # type: ignore[misc]
                topic_code(secured_nodes, each, "alice", topic) == TOPIC_AUTHORIZATION_FAILED
            ),
            f"no ACL on node {each}",
        )


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_a_user_of_one_node_logs_in_to_all(
    secured_nodes: SecuredCluster, new_name: Callable[[], str], node_id: int
) -> None:
    user, nodes = new_name(), list(secured_nodes.ports)

    def alter(at: int, **changes: Any) -> None:
        with secured_nodes.connection(at) as admin:
            request = {"upsertions": [], "deletions": [], **changes}
            (row,) = ask(admin, "AlterUserScramCredentials", 0, **request)["results"]
            assert (row["user"], row["error_code"]) == (user, 0), row

    alter(node_id, upsertions=[upsertion(user)])
    for each in nodes:
        until(lambda each=each: logs_in(secured_nodes, each, user), f"a login to node {each}")  # type: ignore[misc]
    alter(node_id % 3 + 1, deletions=[{"name": user, "mechanism": 1}])
    for each in nodes:
        until(
            lambda each=each: not logs_in(secured_nodes, each, user),  # type: ignore[misc]
            f"no login to node {each}",
        )


def upsertion(user: str) -> dict[str, Any]:
    """A credential for SCRAM-SHA-256."""
    from hashlib import pbkdf2_hmac

    salt = b"s" * 16
    return {
        "name": user,
        "mechanism": 1,
        "iterations": 4096,
        "salt": salt,
        "salted_password": pbkdf2_hmac("sha256", PASSWORD.encode(), salt, 4096),
    }


def logs_in(cluster: SecuredCluster, node_id: int, user: str) -> bool:
    """Whether the user can log in to this node, with SCRAM by librdkafka."""
    errors: list[str] = []
    client = AdminClient(
        {
            "bootstrap.servers": cluster.address("SASL", node_id),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": PASSWORD,
            # the types know no callbacks
            "error_cb": lambda error: errors.append(error.str()),  # type: ignore[dict-item]
        }
    )
    try:
        client.list_topics(timeout=2.0)
    except KafkaException:
        client.poll(0)
        assert any("invalid credentials" in error for error in errors), errors
        return False
    return True


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_forwarded_requests_are_denied(
    secured_nodes: SecuredCluster, new_name: Callable[[], str], node_id: int
) -> None:
    """The controller decides for the user of the client, not for the node that forwards."""
    topic = new_name()
    with secured_nodes.connection(node_id, "alice") as alice:
        (row,) = ask(alice, "CreateTopics", 7, topics=[new_topic(topic)], timeout_ms=30_000)[
            "topics"
        ]
        assert row["error_code"] == TOPIC_AUTHORIZATION_FAILED
        (row,) = ask(alice, "CreateAcls", 3, creations=[acl(topic, "alice")])["results"]
        assert row["error_code"] == CLUSTER_AUTHORIZATION_FAILED
        changes = {"upsertions": [upsertion("alice")], "deletions": []}
        (row,) = ask(alice, "AlterUserScramCredentials", 0, **changes)["results"]
        assert row["error_code"] == CLUSTER_AUTHORIZATION_FAILED
    assert topic_code(secured_nodes, node_id, "admin", topic) == 3
