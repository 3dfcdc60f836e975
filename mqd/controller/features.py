"""Features (KIP-584): what the whole cluster agreed upon. There is one, and it has one level."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from mqd.controller.brokers import FEATURES
from mqd.controller.image import MetadataImage
from mqd.controller.records import Record
from mqd.controller.rules import Rules
from mqd.errors import ErrorCode, MqError
from mqd.types import Decision

LEVELS: Mapping[str, range] = {name: range(1, level + 1) for name, level in FEATURES}
"""Levels that this version supports."""


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
    """Finalize other levels."""

    updates: tuple[FeatureUpdate, ...]


def decide_update_features(image: MetadataImage, op: UpdateFeatures, rules: Rules) -> Decision[Record]:
    """Reply: none; all wishes are for levels that hold already. Raises for the first that is not, as Apache Kafka 4.3 does."""
    counts = Counter(update.name for update in op.updates)
    for update in op.updates:
        if counts[update.name] > 1:
            raise MqError(ErrorCode.INVALID_REQUEST, f"The feature {update.name} is named more than once.")
        _check(image, update)
    return Decision()


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
    if level != present and level not in LEVELS.get(name, ()):
        raise MqError(ErrorCode.INVALID_UPDATE_VERSION, f"{wrong} This version of mqd does not support it.")
