"""Features (KIP-584): what the whole cluster agreed upon, as levels that an administrator raises and lowers.

A new cluster has the newest of all (brokers.FEATURES). One that was made before a feature came has level 0 of it, until somebody raises it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from mqd.controller.brokers import FEATURES
from mqd.controller.image import MetadataImage
from mqd.controller.records import Record, SetFeature
from mqd.controller.rules import Rules
from mqd.errors import ErrorCode, MqError
from mqd.types import Decision

_OWN = "mqd.metadata.version"
"""Not to be done without: the log is written in it."""
LEVELS: Mapping[str, range] = {name: range(1 if name == _OWN else 0, level + 1) for name, level in FEATURES}
"""Levels that this version supports; at level 0 a feature is not finalized."""


class UpgradeType(IntEnum):
    """Kafka's numbers."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """One wish. `upgrade_type` as it came."""

    name: str
    level: int
    upgrade_type: int


@dataclass(frozen=True, slots=True)
class UpdateFeatures:
    """Finalize other levels, or only say whether that could be done."""

    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


def decide_update_features(image: MetadataImage, op: UpdateFeatures, rules: Rules) -> Decision[Record]:
    """Reply: none. Raises INVALID_UPDATE_VERSION for the first wish that cannot be granted, and then none is, as Apache Kafka 4.3 does."""
    counts = Counter(update.name for update in op.updates)
    for update in op.updates:
        if counts[update.name] > 1:
            raise MqError(ErrorCode.INVALID_REQUEST, f"The feature {update.name} is named more than once.")
        _check(image, update)
    if op.validate_only:
        return Decision()
    changed = (update for update in op.updates if update.level != image.features.get(update.name, 0))
    return Decision(tuple(SetFeature(update.name, update.level) for update in changed))


def _check(image: MetadataImage, update: FeatureUpdate) -> None:
    name, level, kind = update
    wrong = f"Invalid update version {level} for feature {name}."
    if kind not in UpgradeType.__members__.values():
        raise MqError(ErrorCode.INVALID_UPDATE_VERSION, f"{wrong} The controller does not support the given upgrade type.")
    if level < 0:
        raise MqError(ErrorCode.INVALID_UPDATE_VERSION, f"{wrong} A feature version cannot be less than 0.")
    present = image.features.get(name, 0)
    if level < present and kind == UpgradeType.UPGRADE:
        raise MqError(
            ErrorCode.INVALID_UPDATE_VERSION, f"{wrong} Can't downgrade the version of this feature without setting the upgrade type."
        )
    if level > present and kind != UpgradeType.UPGRADE:
        raise MqError(ErrorCode.INVALID_UPDATE_VERSION, f"{wrong} Can't downgrade to a newer version.")
    if level != present and level not in LEVELS.get(name, ()):
        raise MqError(ErrorCode.INVALID_UPDATE_VERSION, f"{wrong} This version of mqd does not support it.")
