"""The order in which a consumer takes records of several topics: by weight. Pure.

Each topic has a virtual time: the records that were taken, divided by the weight. The next records
are those of the topic with the lowest virtual time, among the topics that have some (start-time
fair queueing; Goyal, Vin and Cheng, SIGCOMM '96). So with records in all topics, the numbers of
records are as the weights, also if the batches of one topic are larger. A topic without records
saves nothing up: when it has records again, it begins at the virtual time of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from mqd.client.arguments import check_topic, check_whole, shown
from mqd.client.errors import invalid_type

WEIGHT_MAX: Final = 1_000_000
WEIGHT_DEFAULT: Final = 1
"""The weight of a topic that is not named."""


class TopicWeights:
    """See the head of this file."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights = dict(weights)
        self._times: dict[str, float] = {}
        self._now = 0.0
        """The virtual time of the topic that was last chosen."""

    def choose(self, topics: Iterable[str]) -> str:
        """The topic to take from, of those that have records; at least one. The first one if
        several have the same virtual time."""
        return min(topics, key=self._time)

    def _time(self, topic: str) -> float:
        return max(self._times.get(topic, 0.0), self._now)

    def taken(self, topic: str, records: int) -> None:
        """So many records of a topic that `choose` returned were taken."""
        self._now = self._time(topic)
        self._times[topic] = self._now + records / self._weights.get(topic, WEIGHT_DEFAULT)


def check_weights(name: str, weights: object) -> None:
    """Raises InvalidType or InvalidValue unless `weights` is None or a mapping of topic names to
    whole numbers from 1 on."""
    if weights is None:
        return
    if not isinstance(weights, Mapping):
        example = "{'urgent': 8, 'normal': 1}"
        raise invalid_type(f"{name} is {shown(weights)}", f"give weights by topic: {example}")
    for topic, weight in weights.items():
        check_topic(topic, f"a topic of {name}")
        check_whole(f"the weight of {topic!r}", weight, 1, WEIGHT_MAX)
