"""Which partitions a query reads, and their offsets: the driver's requests to the cluster.

Every response may come from a node with outdated metadata. What looks like a loss is therefore
looked at again (`fetchOffset.numRetries`) before anybody reports it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from mqd.client.errors import ClientError
from mqd.errors import ErrorCode, MqError
from mqd.types import ZERO_UUID, TopicPartition

from .connection import Unreachable, client_for
from .errors import ConnectorError, OptionError
from .offsets import EARLIEST, LATEST, Offsets, StreamOffset, TopicState, show_partitions
from .option_limits import AsOf, ByGlobalTimestamp, ByOffset, ByTimestamp, Earliest, EndLimit
from .options import Assign, SourceOptions, Subscribe, compile_pattern
from .planning import changes

if TYPE_CHECKING:
    from mqd.client.descriptions import ListedOffset
    from mqd.client.metadata import TopicInfo
    from mqd.client.sync import BlockingClient

ResultT = TypeVar("ResultT")

logger = logging.getLogger("pyspark_mqd")


class OffsetReader:
    """Partitions and offsets for one query. Each call sends requests to the cluster."""

    def __init__(
        self, options: SourceOptions, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._options = options
        self._sleep = sleep

    @property
    def client(self) -> BlockingClient:
        return client_for(self._options.connection)

    # -- partitions

    def topics(self, *, strict: bool = True) -> dict[str, TopicInfo]:
        """The topics that the query reads, without internal ones.

        With `strict`, a topic that the options name must exist: ConnectorError.
        """
        strategy = self._options.strategy
        if isinstance(strategy, Subscribe):
            names = list(strategy.topics)
        elif isinstance(strategy, Assign):
            names = sorted({tp.topic for tp in strategy.partitions})
        else:
            matches = compile_pattern(strategy.pattern).search
            found = self.client.admin.list_topics()
            return {topic.name: topic for topic in found if matches(topic.name)}
        topics = {}
        for name, outcome in self.client.admin.describe_topics(names).items():
            if not isinstance(outcome, ClientError):
                if not outcome.internal:
                    topics[name] = outcome
            elif outcome.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise outcome
            elif strict:
                raise ConnectorError(
                    f"Topic '{name}' does not exist: this server does not host this "
                    "topic-partition (UnknownTopicOrPartitionException). Create the topic, or "
                    "correct option 'subscribe' or 'assign'."
                )
        return topics

    def _assigned(self, topics: Mapping[str, TopicInfo]) -> list[TopicPartition]:
        existing = [
            TopicPartition(name, row.partition)
            for name, topic in topics.items()
            for row in topic.partitions
        ]
        if isinstance(self._options.strategy, Assign):
            wanted = set(self._options.strategy.partitions)
            existing = [tp for tp in existing if tp in wanted]
        return sorted(existing)

    # -- offsets

    def log_starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each partition that exists."""
        wanted = sorted(set(partitions))
        if not wanted:
            return {}

        def attempt() -> dict[TopicPartition, int]:
            existing = self._existing(wanted)
            listed = self._list(dict.fromkeys(existing, EARLIEST))
            return {tp: row.offset for tp, row in listed.items()}

        return self._retried(attempt)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids of topics that exist, where the cluster has ids."""
        return {
            name: _id_of(outcome)
            for name, outcome in self.client.admin.describe_topics(sorted(set(topics))).items()
            if not isinstance(outcome, ClientError)
        }

    def latest(self, known: StreamOffset | None = None) -> StreamOffset:
        """The end of every partition. Compared with `known`, a loss is looked at again.

        Partitions that `known` does not have, and those of topics that were created again, get a
        `begin`: their log start.
        """

        def attempt() -> StreamOffset:
            topics = self.topics(strict=known is None)
            ends = self._list(dict.fromkeys(self._assigned(topics), LATEST))
            return StreamOffset(
                {tp: row.offset for tp, row in ends.items()},
                {
                    name: TopicState(
                        _id_of(topic),
                        {
                            tp.partition: row.leader_epoch
                            for tp, row in ends.items()
                            if tp.topic == name and row.leader_epoch >= 0
                        },
                    )
                    for name, topic in topics.items()
                },
            )

        found = self._retried(attempt)
        for _ in range(self._options.num_retries - 1):
            if known is None or not (losses := changes(known, found)):
                break
            logger.warning("Retrying to fetch latest offsets: %s", losses[0].reason)
            self._sleep(self._options.retry_interval_s)
            found = self._retried(attempt)
        return found if known is None else self.with_begins(known, found)

    def with_begins(self, known: StreamOffset, latest: StreamOffset) -> StreamOffset:
        """`latest` with the log starts of partitions that are new since `known`."""
        new = [
            tp for tp in latest.ends if tp not in known.ends or known.is_replaced(tp.topic, latest)
        ]
        return latest.with_begins(self.log_starts(new)) if new else latest

    def truncated(self, known: StreamOffset, latest: StreamOffset) -> dict[TopicPartition, int]:
        """Partitions whose logs were cut off below `known` by an unclean election, and where.

        Only partitions whose leader epoch has changed can be among them (KIP-320).
        """
        epochs = {
            tp: epoch
            for tp in latest.ends
            if tp in known.ends
            and not known.is_replaced(tp.topic, latest)
            and (epoch := known.epoch(tp)) is not None
            and latest.epoch(tp) not in (None, epoch)
        }
        if not epochs:
            return {}
        ends = self.client.admin.list_epoch_ends(epochs)
        return {
            tp: end
            for tp, end in ends.items()
            if not isinstance(end, ClientError) and 0 <= end < known.ends[tp]
        }

    def offset_bytes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, float]:
        """The mean size of an offset of each partition, from what its log takes on disk."""
        wanted = sorted(set(partitions))
        starts, ends = self.log_starts(wanted), self._list(dict.fromkeys(wanted, LATEST))
        sizes: dict[TopicPartition, int] = {}
        for outcome in self.client.admin.describe_log_dirs().values():
            for directory in [] if isinstance(outcome, ClientError) else outcome:
                for replica in directory.replicas:
                    sizes[replica.tp] = max(replica.size_bytes, sizes.get(replica.tp, 0))
        return {
            tp: sizes[tp] / count
            for tp in wanted
            if tp in sizes and tp in starts and (count := ends[tp].offset - starts[tp]) > 0
        }

    def resolve(self, limit: EndLimit, *, starting: bool) -> StreamOffset:
        """The offsets that an option describes. Raises OptionError where they do not exist."""

        def attempt() -> StreamOffset:
            topics = self.topics()
            assigned = self._assigned(topics)
            states = {name: TopicState(_id_of(topic)) for name, topic in topics.items()}
            return StreamOffset(self._resolved(limit, assigned, states, starting), states)

        return self._retried(attempt)

    def _resolved(
        self,
        limit: EndLimit,
        assigned: list[TopicPartition],
        states: Mapping[str, TopicState],
        starting: bool,
    ) -> Offsets:
        if isinstance(limit, ByOffset):
            self._check_assigned("start" if starting else "end", limit.offsets, assigned)
            special = {tp: spec for tp, spec in limit.offsets.items() if spec < 0}
            return {**limit.offsets, **_offsets(self._list(special))}
        if isinstance(limit, ByTimestamp | ByGlobalTimestamp):
            if isinstance(limit, ByTimestamp):
                side = "starting" if starting else "ending"
                self._check_timestamps(side, limit.timestamps, assigned)
                timestamps = dict(limit.timestamps)
            else:
                timestamps = dict.fromkeys(assigned, limit.timestamp)
            return self._by_timestamp(timestamps, starting)
        if isinstance(limit, AsOf):
            return self._as_of(limit.offset, assigned, states)
        spec = EARLIEST if isinstance(limit, Earliest) else LATEST
        return _offsets(self._list(dict.fromkeys(assigned, spec)))

    def _by_timestamp(
        self, timestamps: Mapping[TopicPartition, int], starting: bool
    ) -> dict[TopicPartition, int]:
        found = _offsets(self._list(timestamps))
        unmatched = sorted(tp for tp, offset in found.items() if offset < 0)
        if unmatched and starting and not self._options.no_match_latest:
            tp = unmatched[0]
            raise OptionError(
                f"No offset matched from request of topic-partition {tp} and timestamp "
                f"{timestamps[tp]}. Choose an earlier timestamp, or set option "
                "'startingOffsetsByTimestampStrategy' to 'latest'."
            )
        return {**found, **_offsets(self._list(dict.fromkeys(unmatched, LATEST)))}

    def _as_of(
        self,
        offset: StreamOffset,
        assigned: list[TopicPartition],
        states: Mapping[str, TopicState],
    ) -> Offsets:
        unknown = offset.ends.keys() - set(assigned)
        if unknown:
            raise OptionError(
                f"Option 'asOfOffsets' names {show_partitions(unknown)}, which the query does not "
                f"read: {show_partitions(assigned)}. Remove them, or subscribe to their topics."
            )
        for topic in sorted({tp.topic for tp in offset.ends}):
            if offset.is_replaced(topic, StreamOffset({}, states)):
                raise OptionError(
                    f"Option 'asOfOffsets' is about another topic: '{topic}' was deleted and "
                    "created again since. Its old records are gone."
                )
        return offset.ends

    def _check_assigned(self, side: str, given: Offsets, assigned: list[TopicPartition]) -> None:
        if given.keys() != set(assigned):
            raise OptionError(
                f"Partitions specified for Kafka {side} offsets don't match what are assigned. "
                "Maybe topic partitions are created or deleted while the query is running. "
                "Use -1 for latest, -2 for earliest. "
                f"Specified: {show_partitions(given)} Assigned: {show_partitions(assigned)}"
            )

    def _check_timestamps(self, side: str, given: Offsets, assigned: list[TopicPartition]) -> None:
        if given.keys() != set(assigned):
            raise OptionError(
                f"Partitions specified for Kafka timestamp based {side} offsets don't match what "
                "are assigned. Maybe topic partitions are created or deleted while the query is "
                "running, or you didn't specify all the partitions. "
                f"Specified: {show_partitions(given)} Assigned: {show_partitions(assigned)}"
            )

    # -- requests

    def _existing(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        wanted = sorted(set(partitions))
        described = self.client.admin.describe_topics(sorted({tp.topic for tp in wanted}))
        existing = {
            TopicPartition(name, row.partition)
            for name, topic in described.items()
            if not isinstance(topic, ClientError)
            for row in topic.partitions
        }
        return [tp for tp in wanted if tp in existing]

    def _list(self, specs: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        """ListOffsets for partitions that exist; the first refusal is raised."""
        if not specs:
            return {}
        listed = {}
        committed = self._options.read_committed
        for tp, row in self.client.admin.list_offsets(specs, read_committed=committed).items():
            if isinstance(row, ClientError):
                raise row
            listed[tp] = row
        return listed

    def _retried(self, attempt: Callable[[], ResultT]) -> ResultT:
        """`fetchOffset.numRetries` attempts, with `fetchOffset.retryIntervalMs` between them."""
        failures = 0
        while True:
            try:
                return attempt()
            except (OptionError, Unreachable):  # the client has tried for long enough
                raise
            except (MqError, ConnectorError) as error:
                failures += 1
                if failures >= self._options.num_retries:
                    raise
                logger.warning("Error in attempt %d getting Kafka offsets: %s", failures, error)
            self._sleep(self._options.retry_interval_s)


def _offsets(listed: Mapping[TopicPartition, ListedOffset]) -> dict[TopicPartition, int]:
    return {tp: row.offset for tp, row in listed.items()}


def _id_of(topic: TopicInfo) -> str:
    return "" if topic.topic_id == ZERO_UUID else str(topic.topic_id)
