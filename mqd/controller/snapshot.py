"""The metadata image as bytes: one JSON object, deflated. Made in pieces, so that a worker thread
can make it beside the event loop.
"""

from __future__ import annotations

import json
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
        [b.node_id, b.host, b.port, b.rack, b.epoch, b.incarnation.hex, b.fenced, b.in_controlled_shutdown, b.vouched_epoch]
        for b in sorted(brokers, key=lambda broker: broker.node_id)
    ]
    yield f'{{"brokers":{_json(broker_rows)},"cluster_id":{_json(cluster_id)},"configs":['
    for number, (key, values) in enumerate(_in_order(configs)):
        yield f"{',' if number else ''}{_json([*key, values])}"
    yield f'],"features":{_json(features)},"format":{version},"index":{index},"lost":['
    yield from _rows([topic_id.hex, partition, node_id] for topic_id, partition, node_id in _in_order(lost))
    yield f'],"next_producer_id":{next_producer_id},"topics":['
    for number, (name, topic_id, partitions) in enumerate(_in_order(topics)):
        yield f'{"," if number else ""}[{_json(name)},"{topic_id.hex}",['
        yield from _rows(
            [p.leader, p.leader_epoch, p.partition_epoch, p.replicas, p.isr, p.elr, p.last_known_elr, p.adding, p.removing]
            for p in partitions
        )
        yield "]]"
    yield "]}"


def _in_order(items: Sequence[ItemT]) -> Iterator[ItemT]:
    """Sorted, without one long call that would hold Python's lock."""
    runs = (sorted(items[start : start + _SORTED_AT_ONCE]) for start in range(0, len(items), _SORTED_AT_ONCE))  # type: ignore[type-var]
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


def inflate(data: bytes) -> dict[str, Any]:
    """The object that `deflated` wrote. Raises ValueError.

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
    state = json.loads(text)
    if not isinstance(state, dict):
        raise ValueError("metadata snapshot is not an object")
    return state
