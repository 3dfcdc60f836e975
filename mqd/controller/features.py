"""Features (KIP-584): levels for the whole cluster, which an administrator raises and lowers.

A new cluster has the newest level of each feature (brokers.FEATURES). A cluster that is older than
a feature has its level 0, until an administrator raises it.

`mqd.metadata.version` is the version of what nodes write for each other (raft/versions.py). A new
release runs at the level of the previous one until an administrator raises it. Then every
registered node must run the new release. The level cannot be lowered.

`share.version` 1 serves share groups, as in Apache Kafka 4.3. It needs the `mqd.metadata.version`
from which on no node runs a release without them (I49).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from mqd.controller.brokers import FEATURES
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.image import MetadataImage
from mqd.controller.records import SetFeature
from mqd.controller.result import ControllerResult
from mqd.errors import ErrorCode, MqError
from mqd.raft.versions import FEATURE as METADATA_VERSION, SHARE_FEATURE, allows_share_groups
from mqd.types import NodeId

LEVELS: Mapping[str, range] = {
    name: range(1 if name == METADATA_VERSION else 0, level + 1) for name, level in FEATURES
}
"""Levels that this version supports; at level 0 a feature is not finalized."""


class UpgradeType(IntEnum):
    """Kafka's numbers."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """One feature of an UpdateFeatures request. `upgrade_type` is not yet validated."""

    name: str
    level: int
    upgrade_type: int


@dataclass(frozen=True, slots=True)
class UpdateFeatures:
    """Finalize other levels, or only validate them."""

    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False
    behind: tuple[NodeId, ...] = ()
    """Registered nodes that are not known to run this release."""


def decide_update_features(
    image: MetadataImage, op: UpdateFeatures, options: DecisionOptions
) -> ControllerResult:
    """Reply: none.

    Raises INVALID_UPDATE_VERSION for the first invalid update; then no level changes, as in Apache
    Kafka 4.3.
    """
    counts = Counter(update.name for update in op.updates)
    for update in op.updates:
        if counts[update.name] > 1:
            raise MqError(
                ErrorCode.INVALID_REQUEST,
                f"The request names feature {update.name!r} more than once.",
            )
        _check(image, update)
        if update.name == METADATA_VERSION:
            _check_metadata_version(image, update, op.behind)
        if update.name == SHARE_FEATURE and update.level > 0:
            _check_share_version(image, update, op)
    if op.validate_only:
        return ControllerResult()
    changed = (
        update for update in op.updates if update.level != image.features.get(update.name, 0)
    )
    return ControllerResult(tuple(SetFeature(update.name, update.level) for update in changed))


def _check(image: MetadataImage, update: FeatureUpdate) -> None:
    name, level, kind = update
    wrong = f"Invalid update version {level} for feature {name}."
    if kind not in UpgradeType.__members__.values():
        raise MqError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{wrong} The controller does not support the given upgrade type.",
        )
    if level < 0:
        raise MqError(
            ErrorCode.INVALID_UPDATE_VERSION, f"{wrong} A feature version cannot be less than 0."
        )
    present = image.features.get(name, 0)
    if level < present and kind == UpgradeType.UPGRADE:
        raise MqError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{wrong} Can't downgrade the version of this feature without setting the "
            "upgrade type.",
        )
    if level > present and kind != UpgradeType.UPGRADE:
        raise MqError(
            ErrorCode.INVALID_UPDATE_VERSION, f"{wrong} Can't downgrade to a newer version."
        )
    if level != present and level not in LEVELS.get(name, ()):
        raise MqError(
            ErrorCode.INVALID_UPDATE_VERSION, f"{wrong} This version of mqd does not support it."
        )


def _check_share_version(image: MetadataImage, update: FeatureUpdate, op: UpdateFeatures) -> None:
    present = image.features.get(METADATA_VERSION, 0)
    finalized = max(present, *(one.level for one in op.updates if one.name == METADATA_VERSION), 0)
    if not allows_share_groups(finalized):
        raise MqError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {update.level} for feature {update.name}. The metadata of "
            f"this cluster has version {finalized}, and earlier releases do not know share groups. "
            "Upgrade every node, then run 'mqctl feature upgrade'.",
        )


def _check_metadata_version(
    image: MetadataImage, update: FeatureUpdate, behind: tuple[NodeId, ...]
) -> None:
    present = image.features.get(update.name, 0)
    wrong = f"Invalid update version {update.level} for feature {update.name}."
    if update.level < present:
        raise MqError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{wrong} It cannot be downgraded from {present}: the metadata log may contain records "
            "that earlier releases cannot read.",
        )
    if update.level > present and behind:
        nodes = ", ".join(map(str, behind))
        raise MqError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{wrong} No connection to the controller shows that node {nodes} runs a release that "
            "supports it. Start it with this release, or unregister it if it will not return.",
        )
