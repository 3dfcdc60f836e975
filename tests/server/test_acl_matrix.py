"""mqd's answers of the ACL matrix are those that Apache Kafka gave."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from mqd.client.errors import ConnectionBroken
from mqd.client.peer import PeerConnection
from mqd.protocol import apis
from mqd.security.principal import ANONYMOUS, Principal
from mqd.server.served_apis import SERVED, Handler
from mqd.testing import Cluster, run
from tests.server.acl_matrix import (
    ALL,
    CLOSED,
    OPEN_APIS,
    SCENARIOS,
    VERSIONS_FILE,
    Case,
    as_text,
    cases,
    denied_in_all_versions,
    encoded,
    file_of,
    ids_of,
    is_expressible,
    prepare,
    prepare_groups,
    shape,
    substituted,
    table,
    versions_as_text,
)

OPTIONS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
    "group.initial.rebalance.delay.ms": "0",
}


Answers = tuple[dict[str, dict[str, str]], dict[tuple[str, int], str]]
"""Scenario -> case -> shape of the response; (scenario, version) -> shape."""


class Asker:
    """One connection. Its principal is set inside the node: there is no login."""

    def __init__(self, cluster: Cluster, connection: PeerConnection) -> None:
        self._cluster = cluster
        self._connection = connection

    def become(self, principal: Principal) -> None:
        for connection in self._cluster.daemon(1).server._connections:
            if connection.client_listener is not None:
                connection.principal = principal

    async def __call__(
        self, api_name: str, version: int, request: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        api = apis.by_name(api_name)
        assert api is not None
        body = encoded(api_name, version, request)
        frame, position = await self._connection.exchange(api, version, body)
        response: Mapping[str, Any] = api.decode_response(version, frame, position)
        return response


async def answers_of(requested: list[Case]) -> Answers:
    found: dict[str, dict[str, str]] = {}
    async with Cluster(nodes=1, options=OPTIONS) as cluster:
        ask = Asker(cluster, await cluster.connect(1))
        ids = await prepare(ask, requested)
        for _ in range(100):
            if await prepare_groups(ask):
                break
            await trio.sleep(0.1)
        for case in requested:
            scenario = case.scenario
            ask.become(Principal("User", case.user))
            request = substituted(scenario.request, case.user, ids_of(case, ids))
            response = await ask(scenario.api, scenario.version, request)
            found.setdefault(scenario.title, {})[case.title] = shape(case, response)
        versions: dict[tuple[str, int], str] = {}
        for case, version in denied_in_all_versions(requested):
            if not is_expressible(case, version):
                continue
            ask.become(Principal("User", case.user))
            request = substituted(case.scenario.request, case.user, ids_of(case, ids))
            try:
                response = await ask(case.scenario.api, version, request)
            except ConnectionBroken:
                versions[case.scenario.title, version] = CLOSED
                ask = Asker(cluster, await cluster.connect(1))
            else:
                versions[case.scenario.title, version] = shape(case, response)
        ask.become(ANONYMOUS)
    return found, versions


@pytest.fixture(scope="module")
def answers() -> Answers:
    return run(lambda: answers_of(cases()), seed=1)


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.title)
def test_answers_are_those_of_apache_kafka(scenario: Any, answers: Answers) -> None:
    expected = file_of(scenario).read_text(encoding="utf-8")
    assert as_text(scenario, answers[0][scenario.title]) == expected


def test_denials_are_those_of_apache_kafka_in_each_version(answers: Answers) -> None:
    expected = VERSIONS_FILE.read_text(encoding="utf-8")
    assert versions_as_text(answers[1]) == expected


def test_every_api_of_clients_is_in_the_matrix() -> None:
    served = {Handler(name).api.name for name in SERVED} | {"Produce", "Fetch"}
    assert sorted(served - {scenario.api for scenario in SCENARIOS} - set(OPEN_APIS)) == []


def test_the_document_has_the_table_of_the_matrix() -> None:
    document = (Path(__file__).parents[2] / "docs" / "SECURITY.md").read_text(encoding="utf-8")
    assert table() in document, f"docs/SECURITY.md lacks this table:\n{table()}"
