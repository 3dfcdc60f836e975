"""Requests of many rows to a coordinator: each decision is one step of the event loop, so it gets a
portion of the rows.

A portion is a separate request, with the same response for each row. A request is not atomic across
its portions: if one fails, the earlier ones stay applied. Kafka's responses have an error code for
each row, so clients see which rows to repeat.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from mqd.errors import MqError
from mqd.server.slices import finished_in_slices, others_first

PORTION_ROWS = 150
"""About 5 ms of a coordinator's work: a committed offset takes 33 us, most of it for its record."""

Call = Callable[[Any], Awaitable[Mapping[str, Any]]]
"""Carries out a request and returns the response. Raises MqError if all of it is refused."""
Refusal = Callable[[Any, MqError], Generator[int, None, Mapping[str, Any]]]
"""Builds the response to a refused request, in slices."""


def in_portions(topics: Sequence[Any], field: str = "partitions") -> Iterator[list[Any]]:
    """The rows of a request by topics, in lists of at most `PORTION_ROWS` topics and partitions.

    `field`: the partitions of a topic.
    """
    portion: list[Any] = []
    room = PORTION_ROWS
    for topic in topics:
        partitions = topic[field]
        first = 0
        while True:
            taken = partitions[first : first + max(1, room - 1)]
            portion.append(
                topic if len(taken) == len(partitions) else with_fields(topic, **{field: taken})
            )
            first += len(taken)
            room -= 1 + len(taken)
            if room <= 1:
                yield portion
                portion, room = [], PORTION_ROWS
            if first >= len(partitions):
                break
    if portion:
        yield portion


def with_fields(row: Any, **fields: Any) -> Any:
    """A copy of a decoded structure with other fields."""
    copy = type(row)(row)
    copy.update(fields)
    return copy


async def list_in_portions(
    request: Any, field: str, call: Call, *, portion_rows: int = PORTION_ROWS
) -> Mapping[str, Any]:
    """The same for a request whose rows are the list `field`, in the request and in the response.
    Raises the exception of `call` for any portion.
    """
    rows = request[field]
    response = dict(await call(with_fields(request, **{field: rows[:portion_rows]})))
    found = list(response[field])
    for start in range(portion_rows, len(rows), portion_rows):
        await others_first()
        portion = with_fields(request, **{field: rows[start : start + portion_rows]})
        found += (await call(portion))[field]
    return {**response, field: found}


async def respond_in_portions(
    request: Any, call: Call, failed: Refusal, *, key: str = "name"
) -> Mapping[str, Any]:
    """The response by topics to a request by topics; `key` identifies a topic. Raises the exception
    of `call` for the first portion; `failed` builds the rows of later ones, in slices.
    """
    portions = in_portions(request.topics)
    first = next(portions, None)
    if first is None or (len(first) == len(request.topics) and first[-1] is request.topics[-1]):
        return await call(request)
    response = dict(await call(with_fields(request, topics=first)))
    found: dict[Any, dict[str, Any]] = {}
    merge(found, response["topics"], key)
    for portion in portions:
        await others_first()
        of_portion = with_fields(request, topics=portion)
        try:
            rows = (await call(of_portion))["topics"]
        except MqError as error:
            rows = (await finished_in_slices(failed(of_portion, error)))["topics"]
        merge(found, rows, key)
    return {**response, "topics": list(found.values())}


def merge(found: dict[Any, dict[str, Any]], topics: Sequence[Mapping[str, Any]], key: str) -> None:
    """Add the topics of one response to those of others; a topic of two portions gets one row."""
    for topic in topics:
        known = found.get(topic[key])
        if known is None:
            found[topic[key]] = {**topic, "partitions": list(topic["partitions"])}
        else:
            known["partitions"] += topic["partitions"]
