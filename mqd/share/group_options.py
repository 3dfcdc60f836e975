"""The options of share groups and of the topics that they read, as they are now. Pure."""

from __future__ import annotations

from mqd.back_off import parse_back_off
from mqd.resource_configs import AUTO_OFFSET_RESET, RETRY_BACK_OFF, parse_offset_reset
from mqd.share.partition_letters import DeadLetterPort
from mqd.share.ports import GroupOption
from mqd.share.values import Limits


class ShareOptions:
    def __init__(self, option: GroupOption, dead_letters: DeadLetterPort) -> None:
        self._option = option
        self._dead_letters = dead_letters

    def limits(self, group_id: str, topic: str, state_bytes: int) -> Limits:
        option = self._option
        return Limits(
            delivery_count=option(group_id, "share.delivery.count.limit"),
            record_locks=option(group_id, "share.partition.max.record.locks"),
            lock_seconds=self.lock_ms(group_id) / 1000,
            state_bytes=state_bytes,
            back_off=parse_back_off(option(group_id, RETRY_BACK_OFF)),
            dead_letters=self._dead_letters.target(group_id, topic) is not None,
        )

    def lock_ms(self, group_id: str) -> int:
        """How long a member may hold a record."""
        found: int = self._option(group_id, "share.record.lock.duration.ms")
        return found

    def renews(self, group_id: str) -> bool:
        """Whether members may renew the locks of records (KIP-1222)."""
        found: bool = self._option(group_id, "share.renew.acknowledge.enable")
        return found

    def reads_committed(self, group_id: str) -> bool:
        found: str = self._option(group_id, "share.isolation.level")
        return found == "read_committed"

    def orders_by_key(self, group_id: str) -> bool:
        found: bool = self._option(group_id, "share.key.affinity")
        return found

    def offset_reset(self, group_id: str) -> int:
        """Where a new share partition begins: EARLIEST, LATEST, or so many ms ago."""
        return parse_offset_reset(str(self._option(group_id, AUTO_OFFSET_RESET)))

    def ttl_ms(self, topic: str) -> int:
        """`mqd.message.ttl.ms` of the topic, or `ttl.OFF`."""
        return self._dead_letters.ttl_ms(topic)
