"""The dead letters of share groups: where they go, by the configs of group and topic (KIP-1191).

`errors.deadletterqueue.topic.name` of the group, else `mqd.dlq.topic` of the topic. The letters of
the second always have key, value and headers of the record.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

from mqd.controller.image import MetadataImage
from mqd.coordinator.shard import GroupOptions
from mqd.delay_names import DEAD_LETTERS_CONFIG, TTL_CONFIG
from mqd.io.clock import Clock
from mqd.io.entropy import Entropy
from mqd.relay.ports import Calls
from mqd.relay.producer import RelayProducer
from mqd.relay.stall import WARN_EVERY_SECONDS
from mqd.resource_configs import GROUP_DEAD_LETTERS
from mqd.share.dead_letter_writer import DeadLetterWriter, Records
from mqd.share.dead_letters import Source, Target, progress_group, transactional_id
from mqd.share.ports import ShareKey
from mqd.share.ttl import OFF

logger = logging.getLogger(__name__)

GROUP_COPIES: Final = "errors.deadletterqueue.copy.record.enable"
_WARNED_MAX: Final = 1000


class DeadLetters:
    """Implements mqd.share.partition_letters.DeadLetterPort."""

    def __init__(
        self,
        *,
        image: Callable[[], MetadataImage],
        options: GroupOptions,
        calls: Calls,
        clock: Clock,
        entropy: Entropy,
        create_topic: Callable[[str], None],
    ) -> None:
        self._image = image
        self._options = options
        self._calls = calls
        self._clock = clock
        self._entropy = entropy
        self._create_topic = create_topic
        self._warned: dict[tuple[str, str], float] = {}
        """(group, topic) -> when the last warning was logged."""

    def target(self, group_id: str, topic: str) -> Target | None:
        image = self._image()
        name: str = self._options.group(group_id, GROUP_DEAD_LETTERS)
        copies: bool = self._options.group(group_id, GROUP_COPIES)
        if not name:
            name, copies = image.topic_configs(topic).get(DEAD_LETTERS_CONFIG, "").strip(), True
        if not name:
            return None
        if name == topic:
            self._warn(group_id, topic)
            return None
        found = image.topics.get(name)
        return Target(name, 0 if found is None else len(found.partitions), copies)

    def _warn(self, group_id: str, topic: str) -> None:
        """A letter in the topic itself would be delivered to the group again."""
        now = self._clock.monotonic()
        if now - self._warned.get((group_id, topic), -math.inf) < WARN_EVERY_SECONDS:
            return
        if len(self._warned) >= _WARNED_MAX:
            self._warned.clear()
        self._warned[group_id, topic] = now
        logger.warning(
            "records that a share group gives up are dropped group=%s topic=%s "
            "reason='its dead letters would go to the topic itself' "
            "remedy='name another topic in %s of the group'",
            group_id,
            topic,
            GROUP_DEAD_LETTERS,
        )

    def ttl_ms(self, topic: str) -> int:
        text = self._image().topic_configs(topic).get(TTL_CONFIG)
        return OFF if text is None else int(text)

    def writer(self, key: ShareKey, topic: str, records: Records) -> DeadLetterWriter:
        producer = RelayProducer(
            transactional_id=transactional_id(*key),
            group_id=progress_group(key.group_id),
            calls=self._calls,
            entropy=self._entropy,
        )
        return DeadLetterWriter(
            Source(key.group_id, topic, key.partition),
            records,
            producer,
            target=lambda: self.target(key.group_id, topic),
            create=self._create,
            wall_ms=self._clock.wall_ms,
        )

    def _create(self, topic: str) -> bool:
        """Create a topic soon. Returns whether the configuration allows it."""
        if not self._options.node("auto.create.topics.enable"):
            return False
        self._create_topic(topic)
        return True
