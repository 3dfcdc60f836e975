"""The interface between a part and the shard of groups.

A part (classic groups, consumer groups, offsets) handles its own APIs, replays its own kinds of
records, and has its own kinds of timers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mqd.coordinator.group.record_codec import encode, tombstone
from mqd.coordinator.group.records import Key, Value
from mqd.coordinator.group.share_records import ShareKey, ShareValue
from mqd.coordinator.group.state import State
from mqd.coordinator.group.timers import TimerKey
from mqd.coordinator.shard import (
    NOTHING,
    Call,
    CoordinatorRecord,
    CoordinatorResult,
    Moment,
    Producer,
    Response,
    Ticket,
)

Handler: TypeAlias = Callable[[Ticket, Call, Moment], CoordinatorResult]
Replay: TypeAlias = Callable[[Any, Any, Producer], None]
"""(key, value or None for a tombstone, producer of the transaction)"""
Expire: TypeAlias = Callable[[TimerKey, Moment], CoordinatorResult]
"""Called when a timer expires."""


@dataclass(slots=True)
class Draft:
    """A result while it is made."""

    records: list[CoordinatorRecord] = field(default_factory=list)
    responses: list[tuple[Ticket, Response]] = field(default_factory=list)

    def write(self, key: Key | ShareKey, value: Value | ShareValue) -> None:
        self.records.append(encode(key, value))

    def delete(self, key: Key | ShareKey) -> None:
        self.records.append(tombstone(key))

    def respond(self, ticket: Ticket, response: Response) -> None:
        self.responses.append((ticket, response))

    def result(self) -> CoordinatorResult:
        if not self.records and not self.responses:
            return NOTHING
        return CoordinatorResult(self.records, self.responses)


class Part:
    """One part of the shard. The defaults do nothing."""

    def __init__(self, state: State) -> None:
        self.state = state

    def handlers(self) -> Mapping[str, Handler]:
        """By the API's name."""
        return {}

    def replays(self) -> Mapping[type, Replay]:
        """By the class of a record's key (records.py)."""
        return {}

    def timers(self) -> Mapping[str, Expire]:
        """By kind of timer. Several may expire in one call, until one writes records."""
        return {}

    def replay_end(self, producer: Producer, committed: bool) -> None:
        """As Shard.replay_end."""

    def on_loaded(self, now: Moment) -> CoordinatorResult:
        """As Shard.on_loaded; joined with the results of the other parts."""
        return NOTHING

    def on_metadata(self, now: Moment) -> CoordinatorResult:
        """As Shard.on_metadata; joined with the results of the other parts."""
        return NOTHING

    def abandoned(self, tickets: Collection[Ticket]) -> None:
        """As Shard.abandoned."""
