"""Which names topics may have: the error codes that Apache Kafka 4.3.1 returned for the same
requests.
"""

from __future__ import annotations

import pytest

from mqd.controller.create_topics import NewTopic
from mqd.errors import ErrorCode, MqError
from mqd.topic_names import validate_topic_name
from tests.controller.cluster import Replica, create_topics, new_topic, with_brokers


def code_of(replica: Replica, *topics: NewTopic) -> list[int]:
    return [
        int(result.error_code) for result in create_topics(replica, *topics, validate_only=True)
    ]


OTHER_CHARACTERS = (
    "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("x" * 250, f"the length of '{'x' * 57}...' is longer than the max allowed length 249"),
        ("a/b", f"'a/b' {OTHER_CHARACTERS}"),
        ("nul\0x", f"'nul\\x00x' {OTHER_CHARACTERS}"),
        ("é", f"'é' {OTHER_CHARACTERS}"),
        ("a b", f"'a b' {OTHER_CHARACTERS}"),
        ("a\n", f"'a\\n' {OTHER_CHARACTERS}"),
    ],
)
def test_invalid_names_are_refused_with_kafkas_sentence(name: str, reason: str) -> None:
    with pytest.raises(MqError) as refusal:
        validate_topic_name(name)
    assert refusal.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert refusal.value.message == f"Topic name is invalid: {reason}"
    assert code_of(with_brokers(1), new_topic(name)) == [17]


@pytest.mark.parametrize("name", ["a", "...", "x" * 249, "A-Za_z0.9"])
def test_valid_names_are_accepted(name: str) -> None:
    validate_topic_name(name)
