"""API versions that Apache Kafka marks as unstable. A node serves them only if an option enables
them.

Otherwise ApiVersions does not list them, and a request of such a version is handled like one of a
version that does not exist.
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
    """API key -> the last version that this node serves, if that is not the last version that mqd
    has.
    """
    return {
        key: last for key, (last, option) in _STABLE_UNTIL.items() if not config.boolean(option)
    }
