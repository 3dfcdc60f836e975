"""Levels of features: raised, lowered, refused."""

from __future__ import annotations

from typing import Any

import pytest

from mqd.controller.features import (
    LEVELS,
    FeatureUpdate,
    UpdateFeatures,
    UpgradeType,
    decide_update_features,
)
from mqd.controller.machine import MetadataMachine
from mqd.controller.snapshot import encode_snapshot
from mqd.errors import ErrorCode, MqError
from mqd.types import NodeId
from tests.controller.cluster import Replica, with_brokers

NAME = "transaction.version"


def update(
    replica: Replica, level: int, kind: int = UpgradeType.UPGRADE, name: str = NAME, **more: Any
) -> None:
    replica.run(decide_update_features, UpdateFeatures((FeatureUpdate(name, level, kind),), **more))


def refusal(replica: Replica, *args: Any) -> str:
    with pytest.raises(MqError) as refused:
        update(replica, *args)
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
    return refused.value.message


def test_a_level_falls_and_rises_and_zero_removes_the_feature() -> None:
    replica = with_brokers(1)
    assert replica.image.features[NAME] == 2
    update(replica, 1, UpgradeType.SAFE_DOWNGRADE)
    assert replica.image.features[NAME] == 1
    update(replica, 0, UpgradeType.UNSAFE_DOWNGRADE)
    assert NAME not in replica.image.features
    update(replica, 2)
    assert replica.image.features[NAME] == 2
    copy = MetadataMachine()
    copy.restore(encode_snapshot(replica.image))
    assert copy.image.features == replica.image.features


def test_validate_only_changes_nothing() -> None:
    replica = with_brokers(1)
    update(replica, 1, UpgradeType.SAFE_DOWNGRADE, validate_only=True)
    assert replica.image.features[NAME] == 2


def test_a_refused_request_changes_nothing() -> None:
    replica = with_brokers(1)
    before = dict(replica.image.features)
    assert "without setting the upgrade type" in refusal(replica, 1)
    assert "does not support" in refusal(replica, 3)
    assert "less than 0" in refusal(replica, -1)
    assert "upgrade type" in refusal(replica, 1, 9)
    assert "does not support" in refusal(replica, 1, UpgradeType.UPGRADE, "no.such.feature")
    assert "does not support" in refusal(
        replica, 0, UpgradeType.SAFE_DOWNGRADE, "mqd.metadata.version"
    )
    update(replica, 1, UpgradeType.SAFE_DOWNGRADE)
    assert "downgrade to a newer version" in refusal(replica, 2, UpgradeType.SAFE_DOWNGRADE)
    updates = (
        FeatureUpdate(NAME, 2, UpgradeType.UPGRADE),
        FeatureUpdate("no.such.feature", 1, UpgradeType.UPGRADE),
    )
    with pytest.raises(MqError):
        replica.run(decide_update_features, UpdateFeatures(updates))
    assert replica.image.features == {**before, NAME: 1}


def test_the_metadata_version_rises_when_all_nodes_support_it_and_never_falls() -> None:
    replica = with_brokers(1, 2)
    name = "mqd.metadata.version"
    assert "cannot be downgraded from 3" in refusal(replica, 2, UpgradeType.UNSAFE_DOWNGRADE, name)
    replica.image.features[name] = 1
    op = UpdateFeatures((FeatureUpdate(name, 2, UpgradeType.UPGRADE),), behind=(NodeId(2),))
    with pytest.raises(MqError, match=r"node 2 runs a release that supports it\. Start it"):
        replica.run(decide_update_features, op)
    assert replica.image.features[name] == 1
    update(replica, 1, name=name)  # no change, whichever node is behind
    replica.run(decide_update_features, UpdateFeatures(op.updates))
    assert replica.image.features[name] == 2


def test_share_groups_need_the_metadata_version_that_keeps_earlier_releases_out() -> None:
    replica = with_brokers(1)
    assert replica.image.features["share.version"] == 1
    update(replica, 0, UpgradeType.SAFE_DOWNGRADE, "share.version")
    replica.image.features["mqd.metadata.version"] = 2
    assert "earlier releases do not know share groups" in refusal(
        replica, 1, UpgradeType.UPGRADE, "share.version"
    )
    both = (
        FeatureUpdate("share.version", 1, UpgradeType.UPGRADE),
        FeatureUpdate("mqd.metadata.version", 3, UpgradeType.UPGRADE),
    )
    replica.run(decide_update_features, UpdateFeatures(both))
    assert replica.image.features["share.version"] == 1


def test_every_level_that_new_clusters_have_is_supported() -> None:
    assert all(level in LEVELS[name] for name, level in with_brokers(1).image.features.items())
