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


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 250, "nul\0x", "é", "a b", "a\n"])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(MqError) as refusal:
        validate_topic_name(name)
    assert refusal.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert code_of(with_brokers(1), new_topic(name)) == [17]


@pytest.mark.parametrize("name", ["a", "...", "x" * 249, "A-Za_z0.9"])
def test_valid_names_are_accepted(name: str) -> None:
    validate_topic_name(name)
