"""The whole ACL matrix on three nodes, with logins. Each request goes to the nodes that serve it:
the leader, the coordinator, the broker that it names, or every node. Their responses are those that
one node of Apache Kafka gave (tests/golden/acl). The other nodes must deny the same. With `--kind
kafka` on Apache Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from functools import partial
from typing import Any
from uuid import UUID

import pytest
import trio

from tests.server.acl_matrix import (
    ALL,
    CLOSED,
    VERSIONS_FILE,
    Case,
    cases,
    denied_in_all_versions,
    file_of,
    is_expressible,
    prepare,
    prepare_groups,
    versions_as_text,
)
from tests.server.acl_scenario import Scenario
from tests.server.acl_token_and_share_scenarios import SHARE_PARTITION

from .acl_kafka import SaslConnection, shape_from, until_acls_apply
from .secured_cluster import SecuredCluster

WAIT_S = 60.0
DENIED = {29, 30, 31, 53, 65}
"""Error codes of denied requests: topic, group, cluster, transactional id, delegation token."""
TOPIC_AUTHORIZATION_FAILED = 29
NOT_HERE = {5, 6, 14, 15, 16}
"""Another node leads or coordinates, or none does yet."""

BY_LEADER = {
    *("Produce", "Fetch", "ListOffsets", "DeleteRecords"),
    *("OffsetForLeaderEpoch", "DescribeProducers", "ShareFetch", "ShareAcknowledge"),
}
BY_GROUP_COORDINATOR = {
    *("OffsetCommit", "OffsetFetch", "OffsetDelete", "TxnOffsetCommit"),
    *("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"),
    *("DescribeGroups", "ListGroups", "DeleteGroups"),
    *("ConsumerGroupHeartbeat", "ConsumerGroupDescribe"),
    *("ShareGroupHeartbeat", "ShareGroupDescribe"),
}
BY_TRANSACTION_COORDINATOR = {
    *("AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn"),
    *("DescribeTransactions", "ListTransactions"),
}
BY_SHARE_COORDINATOR = {
    *("InitializeShareGroupState", "ReadShareGroupState", "ReadShareGroupStateSummary"),
    *("WriteShareGroupState", "DeleteShareGroupState"),
}
BY_NAMED_BROKER = {"DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs"}
OF_BROKER = {4, 8}
"""Resource types: broker and its loggers. The scenarios name broker 1."""
ONCE = ("Metadata that creates a topic", "DeleteTopics by id")
"""A second request gets another response."""
ROWS_OF_COORDINATOR = (
    *("ConsumerGroupDescribe", "OffsetDelete", "OffsetFetch", "ShareGroupDescribe"),
)
"""The topics of a group are known, and denied, at its coordinator only."""
INVALID_REQUEST = 42


@dataclass(frozen=True)
class Roles:
    """Node ids."""

    nodes: tuple[int, ...]
    leader: int
    """The leader of all topics of the matrix."""
    group_coordinator: int
    transaction_coordinator: int
    share_coordinator: int

    def of(self, api: str, request: Mapping[str, Any]) -> tuple[int, ...]:
        """The nodes that serve the request."""
        if api in BY_LEADER:
            return (self.leader,)
        if api in BY_GROUP_COORDINATOR:
            return (self.group_coordinator,)
        if api in BY_TRANSACTION_COORDINATOR:
            return (self.transaction_coordinator,)
        if api in BY_SHARE_COORDINATOR:
            return (self.share_coordinator,)
        if api == "InitProducerId" and request["transactional_id"] is not None:
            return (self.transaction_coordinator,)
        if api in BY_NAMED_BROKER:
            types = {row["resource_type"] for row in request["resources"]}
            return (1,) if types & OF_BROKER else self.nodes
        return self.nodes


class Routed:
    """Requests of a super user, each to a node that serves it."""

    def __init__(self, connections: Mapping[int, SaslConnection], roles: Roles) -> None:
        self._connections = connections
        self._roles = roles

    async def __call__(
        self, api: str, version: int, request: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        node_id = self._roles.of(api, request)[0]
        return await self._connections[node_id](api, version, request)


async def until(is_ready: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(WAIT_S):
        while True:
            if await is_ready():
                return
            await trio.sleep(0.1)


async def coordinator(admin: SaslConnection, key: str, key_type: int) -> int:
    """The node id. The first request creates the internal topic."""
    found = -1

    async def is_found() -> bool:
        nonlocal found
        request = {"coordinator_keys": [key], "key_type": key_type}
        response = (await admin("FindCoordinator", 6, request))["coordinators"][0]
        assert response["error_code"] in {0, *NOT_HERE}, response
        found = int(response["node_id"])
        return found >= 0

    await until(is_found)
    return found


async def gives_producer_ids(admin: SaslConnection) -> bool:
    """Apache Kafka requests producer ids from the controller when a client needs the first."""
    request = {"transactional_id": None, "transaction_timeout_ms": 60_000}
    response = await admin("InitProducerId", 4, request)
    return bool(response["error_code"] == 0)


async def roles_in(cluster: SecuredCluster, admin: SaslConnection) -> Roles:
    """The roles of the nodes. The leader is no coordinator."""
    nodes = tuple(cluster.ports)
    group, transaction = await coordinator(admin, "shop", 0), await coordinator(admin, "tx", 1)
    share = await coordinator(admin, SHARE_PARTITION, 2)
    leader = next(node_id for node_id in nodes if node_id not in (group, transaction))
    return Roles(nodes, leader, group, transaction, share)


async def prepared(
    cluster: SecuredCluster, requested: list[Case]
) -> tuple[Roles, Mapping[str, UUID]]:
    """Make what the cases need. Returns the ids of the topics."""
    admins = {node_id: cluster.connection(node_id) for node_id in cluster.ports}
    try:
        roles = await roles_in(cluster, admins[1])
        ask = Routed(admins, roles)
        ids = await prepare(ask, requested, leader=roles.leader)
        for admin in admins.values():
            await until(partial(gives_producer_ids, admin))
        await until(partial(prepare_groups, ask))
    finally:
        for admin in admins.values():
            admin.__exit__(None, None, None)
    for node_id in cluster.ports:
        await until_acls_apply(requested, cluster.ports[node_id]["SASL"])
    return roles, ids


async def asked(
    cluster: SecuredCluster, node_id: int, case: Case, ids: Mapping[str, UUID], version: int
) -> str:
    """The shape of the response of this node to the user of the case."""
    return await shape_from(cluster.ports[node_id]["SASL"], case, ids, version)


def recorded() -> dict[tuple[str, str], str]:
    """Scenario and case -> the shape of the response of Apache Kafka (tests/golden/acl)."""
    found = {}
    for scenario in ALL:
        text = ""
        for line in file_of(scenario).read_text(encoding="utf-8").splitlines():
            if line.startswith("  "):
                found[scenario.title, line.strip()] = text
            elif line and not line.startswith("#"):
                text = line
    return found


def codes_in(text: str) -> list[int]:
    """All error codes in the shape of a response."""
    return [int(code) for code in re.findall(r'error_code": (\d+)', text)]


def denials(text: str) -> list[int]:
    """The codes of denied resources in the shape of a response."""
    return sorted(code for code in codes_in(text) if code in DENIED)


def denies_the_same(scenario: Scenario, found: str, wanted: str) -> bool:
    """Whether a node that does not serve the request denies what the serving one denies.

    Apache Kafka refuses changes of the configuration of another broker before it looks at ACLs.
    """
    if scenario.api in BY_NAMED_BROKER and INVALID_REQUEST in codes_in(found):
        return True
    denied, expected = denials(found), denials(wanted)
    if scenario.api in ROWS_OF_COORDINATOR and NOT_HERE & set(codes_in(found)):
        denied += [code for code in expected if code == TOPIC_AUTHORIZATION_FAILED]
    return sorted(denied) == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_node_responds_as_one_node_of_apache_kafka(secured_nodes: SecuredCluster) -> None:
    requested, expected = cases(), recorded()

    async def main() -> list[str]:
        roles, ids = await prepared(secured_nodes, requested)
        differences = []
        for number, case in enumerate(requested):
            scenario = case.scenario
            serving = roles.of(scenario.api, scenario.request)
            if scenario.title in ONCE:
                serving = (roles.nodes[number % len(roles.nodes)],)
            wanted = expected[scenario.title, case.title]
            others = [node_id for node_id in roles.nodes if node_id not in serving]
            for node_id in (*serving, *others):
                found = await asked(secured_nodes, node_id, case, ids, scenario.version)
                if node_id in serving:
                    is_same = found == wanted
                else:
                    is_same = denies_the_same(scenario, found, wanted)
                if not is_same:
                    name = f"{scenario.title}: {case.title} on node {node_id} of {roles}"
                    differences.append(f"{name}\n  {found}\n  expected {wanted}")
        versions: dict[tuple[str, int], str] = {}
        for case, version in denied_in_all_versions(requested):
            scenario = case.scenario
            if not is_expressible(case, version):
                continue
            node_id = roles.of(scenario.api, scenario.request)[0]
            try:
                text = await asked(secured_nodes, node_id, case, ids, version)
            except ConnectionError:
                text = CLOSED
            versions[scenario.title, version] = text
        return [*differences, *difference_of_versions(versions_as_text(versions))]

    differences = trio.run(main)
    assert not differences, "\n".join(differences)


def difference_of_versions(found: str) -> list[str]:
    wanted = VERSIONS_FILE.read_text(encoding="utf-8")
    return list(unified_diff(wanted.splitlines(), found.splitlines(), lineterm="", n=0))
