"""Offsets as text: Spark's JSON for partitions and offsets, and the offsets of a stream. Pure.

The offset of a stream is Spark's own `{"topic": {"0": 23}}`: a checkpoint of format `kafka`
continues under `mqd`. One optional key, `__mqd`, adds what the plain offsets lack. It has topic ids
and leader epochs, first offsets of partitions that are new in the batch, and the group to commit
to. Invariant: an offset without `__mqd` means the same as one of Spark's Kafka source.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mqd.types import TopicPartition

from .errors import OptionError, shortened

LATEST = -1
EARLIEST = -2
EXTRA_KEY = "__mqd"
EXTRA_VERSION = 1
_OFFSET_MAX = 2**63 - 1
_PARTITION_MAX = 2**31 - 1
_SHOWN_PARTITIONS_MAX = 20
_INDEX_DIGITS_MAX = 10

Offsets = Mapping[TopicPartition, int]
KeyT = TypeVar("KeyT")


# -- JSON of options


def parse_partitions(text: str) -> tuple[TopicPartition, ...]:
    """Partitions of option `assign`: `{"topicA": [0, 1]}`. Raises OptionError."""
    try:
        found = {
            TopicPartition(topic, _whole(index, 0, _PARTITION_MAX))
            for topic, indexes in _object(parse_json(text)).items()
            for index in _list(indexes)
        }
    except (ValueError, TypeError):
        raise OptionError(
            f'Expected e.g. {{"topicA":[0,1],"topicB":[0,1]}}, got {shortened(text)}'
        ) from None
    return tuple(sorted(found))


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """Offsets by partition; -1 is the latest, -2 the earliest. Raises OptionError."""
    try:
        return _by_partition(parse_json(text), EARLIEST)
    except (ValueError, TypeError):
        raise OptionError(
            'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, '
            f"got {shortened(text)}"
        ) from None


def parse_timestamps(text: str) -> dict[TopicPartition, int]:
    """Timestamps in milliseconds by partition, from 0 on. Raises OptionError.

    ListOffsets takes a negative timestamp as a name: -1 is the latest offset, -2 the earliest.
    """
    try:
        return _by_partition(parse_json(text), 0)
    except (ValueError, TypeError):
        raise OptionError(
            'Expected e.g. {"topicA": {"0": 123456789, "1": 123456789}, '
            f'"topicB": {{"0": 123456789, "1": 123456789}}}}, got {shortened(text)}'
        ) from None


def parse_json(text: str) -> Any:
    """JSON whose objects name each key once. Raises ValueError."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def by_topic(offsets: Offsets) -> dict[str, dict[str, int]]:
    """The shape of Spark's JSON; topics and partitions in order."""
    topics: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        topics.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return topics


def show(offsets: Offsets) -> str:
    """Offsets for a message, as in Spark's JSON."""
    return json.dumps(by_topic(offsets), separators=(",", ":"))


def show_partitions(partitions: Iterable[TopicPartition]) -> str:
    """Partitions for a message: `topic-0, topic-1`."""
    rows = sorted(partitions)
    shown = ", ".join(str(tp) for tp in rows[:_SHOWN_PARTITIONS_MAX])
    more = len(rows) - _SHOWN_PARTITIONS_MAX
    return (f"{shown} and {more} more" if more > 0 else shown) or "none"


# -- offsets of a stream


@dataclass(frozen=True, slots=True)
class TopicState:
    """What a topic is beside its name. Empty fields are unknown."""

    topic_id: str = ""
    epochs: Mapping[int, int] = field(default_factory=dict)
    """partition -> leader epoch of the end offset."""
    begins: Mapping[int, int] = field(default_factory=dict)
    """partition -> first offset of the batch that ends here, where the offset before lacks it."""


@dataclass(frozen=True, slots=True)
class CommitTarget:
    """Where the listener commits the offsets of this source."""

    group_id: str
    bootstrap: str


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The offset of a stream: for each partition the next record to read (exclusive end)."""

    ends: Offsets
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    commit: CommitTarget | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        """An offset of this source or of Spark's Kafka source. Raises OptionError."""
        try:
            plain = {key: each for key, each in _object(value).items() if key != EXTRA_KEY}
            ends = _by_partition(plain, EARLIEST)
            topics, commit = _parse_extra(value.get(EXTRA_KEY))
        except (ValueError, TypeError, KeyError):
            raise OptionError(
                "The checkpoint holds an offset that is not of this source: "
                f"{shortened(json.dumps(value))}. Use the checkpoint of a query with source format "
                "'mqd' or 'kafka', or a new checkpoint location."
            ) from None
        return cls(ends, topics, commit)

    def to_json(self) -> dict[str, Any]:
        """What Spark writes into the checkpoint."""
        value: dict[str, Any] = dict(by_topic(self.ends))
        extra = self._extra()
        if extra:
            value[EXTRA_KEY] = {"version": EXTRA_VERSION, **extra}
        return value

    def _extra(self) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        topics = {}
        for name, state in sorted(self.topics.items()):
            row: dict[str, Any] = {"id": state.topic_id} if state.topic_id else {}
            for key, numbers in (("epochs", state.epochs), ("begins", state.begins)):
                if numbers:
                    row[key] = {str(index): numbers[index] for index in sorted(numbers)}
            if row:
                topics[name] = row
        if topics:
            extra["topics"] = topics
        if self.commit is not None:
            extra["commit"] = {"group": self.commit.group_id, "bootstrap": self.commit.bootstrap}
        return extra

    def topic_id(self, topic: str) -> str:
        """The id of a topic; empty where it is unknown."""
        state = self.topics.get(topic)
        return "" if state is None else state.topic_id

    def epoch(self, tp: TopicPartition) -> int | None:
        """The leader epoch at the end offset, if it is known."""
        state = self.topics.get(tp.topic)
        return None if state is None else state.epochs.get(tp.partition)

    def begins(self) -> dict[TopicPartition, int]:
        """The first offsets of the batch that ends here, of partitions where they are recorded."""
        return {
            tp: self.topics[tp.topic].begins[tp.partition]
            for tp in self.ends
            if tp.topic in self.topics and tp.partition in self.topics[tp.topic].begins
        }

    def with_begins(self, begins: Offsets) -> StreamOffset:
        """The same end, with first offsets recorded for these partitions where it has none."""
        topics = dict(self.topics)
        for name in {tp.topic for tp in self.ends}:
            rows = {tp.partition: each for tp, each in begins.items() if tp.topic == name}
            state = topics.get(name, TopicState())
            topics[name] = TopicState(state.topic_id, state.epochs, {**rows, **state.begins})
        return StreamOffset(self.ends, topics, self.commit)

    def is_replaced(self, topic: str, later: StreamOffset) -> bool:
        """Whether `topic` was deleted and created again between this offset and a later one."""
        before, after = self.topic_id(topic), later.topic_id(topic)
        return bool(before and after and before != after)


def _parse_extra(value: Any) -> tuple[dict[str, TopicState], CommitTarget | None]:
    """The key `__mqd`; one of a later version of this connector is left aside."""
    if value is None or _object(value).get("version") != EXTRA_VERSION:
        return {}, None
    topics = {
        name: TopicState(
            str(row.get("id", "")), _numbers(row.get("epochs")), _numbers(row.get("begins"))
        )
        for name, each in _object(value.get("topics", {})).items()
        for row in (_object(each),)
    }
    commit = value.get("commit")
    target = None
    if commit is not None:
        target = CommitTarget(_text(_object(commit)["group"]), _text(commit["bootstrap"]))
    return topics, target


def _numbers(value: Any) -> dict[int, int]:
    return {_index(index): _whole(each, -1) for index, each in _object(value or {}).items()}


def _by_partition(value: Any, least: int) -> dict[TopicPartition, int]:
    return _unique(
        (TopicPartition(topic, _index(index)), _whole(number, least))
        for topic, rows in _object(value).items()
        for index, number in _object(rows).items()
    )


def _unique(pairs: Iterable[tuple[KeyT, Any]]) -> dict[KeyT, Any]:
    found: dict[KeyT, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"'{key}' is there twice")
        found[key] = value
    return found


def _index(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _INDEX_DIGITS_MAX):
        raise ValueError(text)
    return _whole(int(text), 0, _PARTITION_MAX)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(value)
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(value)
    return value


def _whole(value: Any, least: int, most: int = _OFFSET_MAX) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(value)
    return value
