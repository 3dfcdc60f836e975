"""The ACL matrix with logins, over sockets: the recorded responses are those of a running Apache
Kafka (`--kind kafka`), and those of a node of mqd.

`tests/server/test_acl_matrix.py` compares mqd with the same files, without logins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import unified_diff
from pathlib import Path

import pytest

from chaos.node import Node, free_port
from tests.server.acl_matrix import ALL, VERSIONS_FILE, as_text, cases, file_of, versions_as_text

from .acl_kafka import answers_of, free_ports, kafka, options


class SaslNode(Node):
    """Its line at the start names the protocol."""

    def is_ready(self) -> bool:
        return f"mqd node {self.node_id} ready on " in self.stderr()


@contextmanager
def mqd(users: list[str], directory: Path) -> Iterator[int]:
    port = free_port()
    listeners = (
        f"listeners=SASL_PLAINTEXT://127.0.0.1:{port}",
        f"advertised.listeners=SASL_PLAINTEXT://127.0.0.1:{port}",
    )
    quick = "group.initial.rebalance.delay.ms=0"
    node = SaslNode(directory, (*listeners, quick, *options(users)), port=port)
    node.start()
    try:
        yield port
    finally:
        node.kill()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_responses_to_users_are_those_of_apache_kafka(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    requested = cases()
    users = [case.user for case in requested]
    is_kafka = request.config.getoption("--kind") == "kafka"
    with kafka(users, free_ports()) if is_kafka else mqd(users, tmp_path) as port:
        answers, versions = answers_of(requested, port)
    texts = {file_of(scenario): as_text(scenario, answers[scenario.title]) for scenario in ALL}
    texts[VERSIONS_FILE] = versions_as_text(versions)
    differences = [
        line
        for file, text in texts.items()
        for line in unified_diff(
            file.read_text(encoding="utf-8").splitlines(), text.splitlines(), lineterm="", n=0
        )
    ]
    assert not differences, "\n".join(differences)
