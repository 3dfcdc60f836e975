"""The metadata image as bytes: one JSON object, deflated. Made and read in pieces, so that a worker
thread can do it beside the event loop: one call of json.loads would hold Python's lock for seconds.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from mqd.limits import KIB
from mqd.types import NodeId

if TYPE_CHECKING:
    from mqd.controller.image import BrokerImage, PartitionImage

ItemT = TypeVar("ItemT")

_ROWS_PER_PIECE = 250
_SORTED_AT_ONCE = 2_000
_TEXT_BYTES_PER_PIECE = 64 * KIB


def snapshot_text(
    *,
    version: int,
    index: int,
    cluster_id: str,
    features: dict[str, int],
    next_producer_id: int,
    brokers: list[BrokerImage],
    topics: list[tuple[str, UUID, tuple[PartitionImage, ...]]],
    configs: list[tuple[tuple[str, str], dict[str, str]]],
    lost: list[tuple[UUID, int, NodeId]],
) -> Iterator[str]:
    """One JSON object with its keys in order, in parts. Nobody may change what is passed here."""
    broker_rows = [
        [
            b.node_id,
            b.host,
            b.port,
            b.rack,
            b.epoch,
            b.incarnation.hex,
            b.fenced,
            b.in_controlled_shutdown,
            b.vouched_epoch,
        ]
        + ([b.disk_serial] if b.disk_serial else [])  # which version 1 of the metadata has not
        for b in sorted(brokers, key=lambda broker: broker.node_id)
    ]
    yield f'{{"brokers":{_json(broker_rows)},"cluster_id":{_json(cluster_id)},"configs":['
    for number, (key, values) in enumerate(_in_order(configs)):
        yield f"{',' if number else ''}{_json([*key, values])}"
    yield f'],"features":{_json(features)},"format":{version},"index":{index},"lost":['
    yield from _rows(
        [topic_id.hex, partition, node_id] for topic_id, partition, node_id in _in_order(lost)
    )
    yield f'],"next_producer_id":{next_producer_id},"topics":['
    for number, (name, topic_id, partitions) in enumerate(_in_order(topics)):
        yield f'{"," if number else ""}[{_json(name)},"{topic_id.hex}",['
        yield from _rows(
            [
                p.leader,
                p.leader_epoch,
                p.partition_epoch,
                p.replicas,
                p.isr,
                p.elr,
                p.last_known_elr,
                p.adding,
                p.removing,
            ]
            for p in partitions
        )
        yield "]]"
    yield "]}"


def _in_order(items: Sequence[ItemT]) -> Iterator[ItemT]:
    """Sorted, without one long call that would hold Python's lock."""
    runs = (
        sorted(items[start : start + _SORTED_AT_ONCE])  # type: ignore[type-var]
        for start in range(0, len(items), _SORTED_AT_ONCE)
    )
    return merge(*runs)  # type: ignore[type-var]


def _rows(rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """The elements of a JSON array, without its brackets."""
    left = iter(rows)
    comma = ""
    while several := list(islice(left, _ROWS_PER_PIECE)):
        yield comma + _json(several)[1:-1]
        comma = ","


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def deflated(text: Iterator[str]) -> Iterator[bytes]:
    """The text as one zlib stream, in pieces of some milliseconds of work."""
    deflater = zlib.compressobj(6)
    waiting: list[str] = []
    size = 0
    for part in text:
        waiting.append(part)
        size += len(part)
        if size >= _TEXT_BYTES_PER_PIECE:
            yield deflater.compress("".join(waiting).encode())
            waiting, size = [], 0
    yield deflater.compress("".join(waiting).encode()) + deflater.flush()


def inflate(data: bytes) -> str:
    """The text that `deflated` compressed. Raises ValueError.

    No bound on its size: what was decided once must be loaded, on every node and after every
    restart. Decisions are bounded (size.py).
    """
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(data)
    except zlib.error as error:
        raise ValueError(f"metadata snapshot does not inflate: {error}") from error
    if not inflater.eof:
        raise ValueError("metadata snapshot is cut off")
    return text.decode()


TOPICS = "topics"
PARTITIONS = "partitions"
_LISTS = ("configs", "lost")
_SPACE = re.compile(r"[ \t\n\r]*").match
_VALUE = json.JSONDecoder().raw_decode


def parsed(text: str) -> Iterator[tuple[str, list[Any]]]:
    """The object that `snapshot_text` wrote, in parts: (key, values). Raises ValueError.

    `configs` and `lost` come without values first, then some elements at a time. So does `topics`,
    with name and id of one topic at a time, and some rows at a time of its `partitions` behind it.
    Any other key has one value.
    """
    reader = _Reader(text)
    more = reader.opens("{", "}")
    while more:
        key = reader.value()
        reader.expect(":")
        if key == TOPICS:
            yield key, []
            yield from _parsed_topics(reader)
        elif key in _LISTS:
            yield key, []
            for values in _elements(reader):
                yield key, values
        else:
            yield key, [reader.value()]
        more = reader.continues("}")
    reader.end()


def _parsed_topics(reader: _Reader) -> Iterator[tuple[str, list[Any]]]:
    if not reader.opens("[", "]"):
        return
    while True:
        reader.expect("[")
        name = reader.value()
        reader.expect(",")
        topic_id = reader.value()
        reader.expect(",")
        yield TOPICS, [name, topic_id]
        for rows in _elements(reader):
            yield PARTITIONS, rows
        reader.expect("]")
        if not reader.continues("]"):
            return


def _elements(reader: _Reader) -> Iterator[list[Any]]:
    """Those of an array, some at a time."""
    if not reader.opens("[", "]"):
        return
    more = True
    while more:
        values = [reader.value()]
        while (more := reader.continues("]")) and len(values) < _ROWS_PER_PIECE:
            values.append(reader.value())
        yield values


class _Reader:
    """A place in a JSON text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def value(self) -> Any:
        found, self._position = _VALUE(self._text, self._place())
        return found

    def expect(self, mark: str) -> None:
        if not self._passes(mark):
            raise self._unexpected(mark)

    def opens(self, mark: str, end: str) -> bool:
        """Whether the array or object that begins here has an element."""
        self.expect(mark)
        return not self._passes(end)

    def continues(self, end: str) -> bool:
        """Whether another element follows."""
        if self._passes(","):
            return True
        self.expect(end)
        return False

    def end(self) -> None:
        if self._place() < len(self._text):
            raise self._unexpected("the end")

    def _passes(self, mark: str) -> bool:
        place = self._place()
        if not self._text.startswith(mark, place):
            return False
        self._position = place + 1
        return True

    def _place(self) -> int:
        place = _SPACE(self._text, self._position)
        assert place is not None
        return place.end()

    def _unexpected(self, wanted: str) -> ValueError:
        found = self._text[self._position : self._position + 20]
        return ValueError(f"metadata snapshot: {found!r} at {self._position}, {wanted!r} expected")
