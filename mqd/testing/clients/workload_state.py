"""The state that all producers and consumers of one run share: the history and the
acknowledgements.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from mqd.client.cluster import ClusterClient
from mqd.delay_names import TTL
from mqd.errors import ErrorCode
from mqd.io.clock import Clock
from mqd.testing.checker import History, Promise, Send
from mqd.testing.share_features import HEADER_TTLS_MS, TTL_SHARE
from mqd.types import NO_OFFSET, TopicPartition

KEYS = 7


@dataclass(slots=True)
class Statistics:
    """Rare events of the clients of one run."""

    reconnects: int = 0
    lost_producer_state: int = 0
    """How often a broker has lost the state of a raw producer (OUT_OF_ORDER_SEQUENCE_NUMBER for its
    oldest unacknowledged batch).
    """
    refusals: int = 0
    refused: dict[str, int] = field(default_factory=dict)


class WorkloadState:
    """The results of all clients."""

    def __init__(
        self,
        *,
        history: History,
        new_client: Callable[[str], Awaitable[ClusterClient]],
        source: Callable[[str], random.Random],
        is_committed: Callable[[TopicPartition, int], bool],
        clock: Clock,
        has_keys: bool = False,
        has_ttl: bool = False,
    ) -> None:
        """`new_client(name)` creates a ClusterClient. `source(purpose)` returns a random source.
        `has_ttl`: some records have a TTL of their own.
        """
        self.history = history
        self.new_client = new_client
        self.source = source
        self.clock = clock
        self.has_keys = has_keys
        self.has_ttl = has_ttl
        self.statistics = Statistics()
        self.stopping = trio.Event()
        self.acknowledged_at: dict[str, float] = {}
        """Producer -> the time of its last acknowledgement with acks=all; -inf before the first."""
        self.positions: dict[tuple[str, TopicPartition], int] = {}
        """(consumer, partition) -> the offset that it reads next."""
        self._is_committed = is_committed
        self._acknowledgements: dict[TopicPartition | None, trio.Event] = {}

    def expect_acknowledgements(self, producer: str) -> None:
        """Record that this producer must get acknowledgements with acks=all."""
        self.acknowledged_at[producer] = -math.inf

    def acknowledged(self, send: Send, offset: int) -> None:
        send.ok(offset)
        self.history.acknowledged += 1
        if send.promise is Promise.ALL:
            self.acknowledged_at[send.session.partition("/")[0]] = trio.current_time()
            for place in (None, send.partition):
                if (event := self._acknowledgements.pop(place, None)) is not None:
                    event.set()
        if (
            send.promise is Promise.ALL
            and offset != NO_OFFSET
            and not self._is_committed(send.partition, offset)
        ):
            self.history.not_committed(send.partition, offset)

    async def next_acknowledgement(self, partition: TopicPartition | None = None) -> None:
        """Wait for the next acknowledgement with acks=all, in this partition or in any one."""
        await self._acknowledgements.setdefault(partition, trio.Event()).wait()

    def count(self, code: int) -> None:
        self.statistics.refusals += 1
        name = ErrorCode(code).name
        self.statistics.refused[name] = self.statistics.refused.get(name, 0) + 1

    def key(self, number: int) -> bytes | None:
        """The key of a record: few for each producer, or none."""
        return b"%d" % (number % KEYS) if self.has_keys else None

    def headers(self, chance: random.Random) -> list[tuple[str, bytes]]:
        """The headers of a record: some have a TTL."""
        if not self.has_ttl or chance.random() >= TTL_SHARE:
            return []
        return [(TTL, b"%d" % chance.choice(HEADER_TTLS_MS))]

    def value(self, name: str, number: int, chance: random.Random) -> bytes:
        return b"%s.%d%s" % (name.encode(), number, b"." * chance.choice([0, 0, 10, 300]))
