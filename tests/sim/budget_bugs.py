"""Defects to plant in the bounds of memory and time: connection pools and turns, the accounts of
coordinators and of the metadata.
"""

from __future__ import annotations

from typing import Any

from mqd.controller import replay
from mqd.controller.records import DeleteTopic
from mqd.controller.size import growth
from mqd.coordinator.group.offset_store import WAITING_BYTES, OffsetStore
from mqd.server.connection import Connection
from mqd.server.send_queue import SendQueue
from mqd.server.service import Server
from tests.sim.planting import Patches, bug


@bug("a connection that is closed keeps the memory of its unsent responses", load="hostile")
def closed_connection_keeps_its_unsent_bytes() -> Patches:
    def clear(self: SendQueue) -> None:
        self.parts.clear()

    yield SendQueue, "clear", clear


@bug("a connection's turn has no end: its pipelined requests are served first", load="hostile")
def turns_have_no_end() -> Patches:
    yield Server, "slice_is_over", False


@bug("responses are sent in the order in which they are ready", load="hostile")
def responses_are_sent_as_they_are_ready() -> Patches:
    original = Connection.flush

    def flush(self: Connection) -> None:
        slots = list(self.slots)
        self.slots.clear()
        self.slots.extend(sorted(slots, key=lambda slot: slot.parts is None))
        original(self)

    def response_ready(self: Connection) -> None:
        if not self.is_dirty and self.open:
            self.is_dirty = True
            self.owner.dirty(self)

    yield Connection, "flush", flush
    yield Connection, "response_ready", response_ready


@bug("a coordinator counts offsets of transactions that have ended", load="copy")
def ended_offsets_are_counted() -> Patches:
    original = OffsetStore._take_waiting

    def take(self: OffsetStore, *what: Any) -> Any:
        self.bytes += WAITING_BYTES
        return original(self, *what)

    yield OffsetStore, "_take_waiting", take


@bug("the metadata counts topics that are deleted")
def deleted_topics_are_counted() -> Patches:
    def counted(before: Any, record: Any) -> int:
        return 0 if isinstance(record, DeleteTopic) else growth(before, record)

    yield replay, "growth", counted
