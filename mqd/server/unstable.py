"""Versions of APIs that Apache Kafka marks as unstable, and that a node serves only where an option
enables them.

A request of such a version is otherwise answered like one of a version that does not exist, and
ApiVersions does not show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mqd.config import NodeConfig

TWO_PHASE: Final = "transaction.two.phase.commit.enable"

_STABLE_UNTIL: Final[Mapping[int, tuple[int, str]]] = {22: (5, TWO_PHASE)}
"""API key -> the last stable version, and the option that enables those after it."""


def enabled(config: NodeConfig) -> frozenset[int]:
    """The API keys for which this node serves unstable versions."""
    return frozenset(key for key, (_, option) in _STABLE_UNTIL.items() if config.boolean(option))


def versions_until(config: NodeConfig) -> dict[int, int]:
    """API key -> the last version that this node serves, where that is not the last one
    that is spoken.
    """
    return {
        key: last for key, (last, option) in _STABLE_UNTIL.items() if not config.boolean(option)
    }
