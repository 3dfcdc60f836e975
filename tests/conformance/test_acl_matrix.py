"""The recorded responses of the ACL matrix are those of a running Apache Kafka.

`tests/server/test_acl_matrix.py` compares mqd with the same files.
"""

from __future__ import annotations

import pytest

from tests.server.acl_matrix import ALL, as_text, cases, file_of

from .acl_kafka import answers_of, free_port, kafka


@pytest.mark.timeout(180)
def test_the_recorded_responses_are_those_of_apache_kafka(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--kind") != "kafka":
        pytest.skip("compares Apache Kafka only: use --kind kafka")
    asked = cases()
    with kafka([case.user for case in asked], free_port()) as port:
        answers = answers_of(asked, port)
    differences = [
        scenario.title
        for scenario in ALL
        if as_text(scenario, answers[scenario.title])
        != file_of(scenario).read_text(encoding="utf-8")
    ]
    assert differences == []
