"""mqd's answers of the ACL matrix are those that Apache Kafka gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio

from mqd.client.errors import ConnectionBroken
from mqd.client.peer import PeerConnection
from mqd.protocol import apis
from mqd.security.client_listeners import SecurityProtocol
from mqd.security.principal import ANONYMOUS, Principal
from mqd.server.served_apis import SERVED, SERVED_TO_CLIENTS, Handler
from mqd.testing import Cluster, run
from tests.server.acl_matrix import (
    ALL,
    CLOSED,
    OPEN_APIS,
    OWN_APIS,
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

    def become(self, principal: Principal, host: str = "127.0.0.1") -> None:
        for connection in self._cluster.daemon(1).server._connections:
            if connection.client_listener is not None:
                connection.principal = principal
                connection.peer = f"{host}:4711"
                connection.client_listener = replace(
                    connection.client_listener, protocol=SecurityProtocol.SASL_PLAINTEXT
                )

    async def as_user(self, case: Case, version: int, ids: Mapping[str, UUID]) -> str:
        """The shape of the response to the user of the case."""
        scenario, known = case.scenario, ids_of(case, ids)
        if scenario.before is not None:
            self.become(ANONYMOUS)
            api, at, body = scenario.before
            before = await self(api, at, substituted(body, case.user, known))
            assert not before["error_code"], before
        self.become(Principal("User", case.user), case.host)
        request = substituted(scenario.request, case.user, known)
        return shape(case, await self(scenario.api, version, request))

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
            text = await ask.as_user(case, case.scenario.version, ids)
            found.setdefault(case.scenario.title, {})[case.title] = text
        versions: dict[tuple[str, int], str] = {}
        for case, version in denied_in_all_versions(requested):
            if not is_expressible(case, version):
                continue
            try:
                text = await ask.as_user(case, version, ids)
            except ConnectionBroken:
                text = CLOSED
                ask = Asker(cluster, await cluster.connect(1))
            versions[case.scenario.title, version] = text
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
    names = (*SERVED, *SERVED_TO_CLIENTS)
    served = {Handler(name).api.name for name in names} | {"Produce", "Fetch"}
    assert sorted(served - {scenario.api for scenario in SCENARIOS} - {*OPEN_APIS, *OWN_APIS}) == []


def test_the_document_has_the_table_of_the_matrix() -> None:
    document = (Path(__file__).parents[2] / "docs" / "SECURITY.md").read_text(encoding="utf-8")
    assert table() in document, f"docs/SECURITY.md lacks this table:\n{table()}"
