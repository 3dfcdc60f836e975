"""The owner of a topic among the transactional ids (I60)."""

from __future__ import annotations

import pytest

from mqd.controller.decision_options import DecisionOptions
from mqd.controller.image import TOPIC
from mqd.controller.topic_claims import ClaimTopic, Ownership, decide_claim_topic, ownership
from mqd.errors import ErrorCode, MqError
from mqd.resource_configs import check_fixed_configs
from mqd.types import PRODUCER_OWNER
from tests.controller.cluster import Replica, create_topics, new_topic, with_brokers


def claimed(replica: Replica, claimer: str, expected: str, *fenced: str) -> Ownership:
    replica.run(decide_claim_topic, ClaimTopic("orders", claimer, expected, fenced))
    return ownership(replica.image, "orders")


def test_one_of_several_claims_succeeds_and_former_owners_are_fenced_first() -> None:
    replica = topic_orders()
    assert claimed(replica, "a", "") == ("a", ())
    assert claimed(replica, "b", "") == ("a", ())
    assert claimed(replica, "b", "a") == ("b", ("a",))
    assert claimed(replica, "c", "b") == ("c", ("a", "b"))
    assert claimed(replica, "c", "c", "a") == ("c", ("b",))
    assert claimed(replica, "b", "b", "b") == ("c", ("b",))
    assert claimed(replica, "b", "c") == ("b", ("c",))
    assert claimed(replica, "b", "b", "c") == ("b", ())


def test_claims_that_are_refused() -> None:
    replica = topic_orders()
    options = DecisionOptions()
    for op, code in (
        (ClaimTopic("other", "a", ""), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ClaimTopic("orders", "", ""), ErrorCode.INVALID_REQUEST),
        (ClaimTopic("orders", "a\nb", ""), ErrorCode.INVALID_REQUEST),
    ):
        with pytest.raises(MqError) as refused:
            decide_claim_topic(replica.image, op, options)
        assert refused.value.code is code


def test_only_the_cluster_sets_the_owner() -> None:
    owner = {PRODUCER_OWNER: "a"}
    for before, after in (({}, owner), (owner, {}), (owner, {PRODUCER_OWNER: "b"})):
        with pytest.raises(MqError) as refused:
            check_fixed_configs(before, after)
        assert refused.value.code is ErrorCode.INVALID_CONFIG
    check_fixed_configs(owner, owner)
    with pytest.raises(MqError):
        check_fixed_configs({}, owner, is_new=True)


def topic_orders() -> Replica:
    replica = with_brokers(1)
    create_topics(replica, new_topic("orders"))
    assert (TOPIC, "orders") not in replica.image.configs
    return replica
