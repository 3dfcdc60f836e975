"""Drives one shard of a coordinator as the runtime does, without Trio: decisions are carried out
and committed at once.

`fail_over` replaces it with a new shard that has read the same log, like the next leader's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from itertools import count
from typing import Any, Generic, TypeVar

from mqd.coordinator.shard import (
    Call,
    CoordinatorRecord,
    CoordinatorResult,
    Moment,
    Producer,
    Shard,
    Ticket,
)
from mqd.errors import ErrorCode, MqError
from mqd.protocol import apis

ShardT = TypeVar("ShardT", bound=Shard)
Outcome = Mapping[str, Any] | MqError


class Harness(Generic[ShardT]):
    """`answers` holds the response of each ticket, `effects` the requested effects, `log` the
    records.
    """

    def __init__(
        self,
        make_shard: Callable[[], ShardT],
        *,
        seconds: float = 1000.0,
        wall_ms: int = 1_700_000_000_000,
    ) -> None:
        self._make_shard = make_shard
        self._tickets = count(1)
        self.now = Moment(seconds, wall_ms)
        self.shard = make_shard()
        self.log: list[tuple[CoordinatorRecord | bool, Producer]] = []
        """Records, and for each marker whether it commits."""
        self.answers: dict[Ticket, Outcome] = {}
        self.waiting: set[Ticket] = set()
        self.askers: tuple[Ticket, ...] = ()
        """The ticket of the current call."""
        self.effects: list[Hashable] = []
        self.carry_out(self.shard.on_loaded(self.now))

    # -- requests

    def ask(
        self,
        api: str,
        version: int,
        request: Mapping[str, Any],
        *,
        client_id: str = "client",
        client_host: str = "/10.0.0.1",
        **more: Any,
    ) -> Ticket:
        """Give the shard a request, as if from the network. Returns its ticket."""
        declared = apis.by_name(api)
        body = declared.encode_request(version, request)
        decoded = declared.decode_request(version, memoryview(body), 0)
        return self.operate(Call(declared.name, version, decoded, client_id, client_host, **more))

    def operate(self, op: Any) -> Ticket:
        """Give the shard any operation."""
        ticket = next(self._tickets)
        self.waiting.add(ticket)
        try:
            decision = self.shard.handle(ticket, op, self.now)
        except MqError as error:
            self._answer(ticket, error)
        else:
            self.askers = (ticket,)
            self.carry_out(decision)
            self.askers = ()
        return ticket

    def call(self, api: str, version: int, request: Mapping[str, Any], **more: Any) -> Any:
        """Like `ask`, for requests that get a response at once. Raises the MqError of a refusal."""
        return self.answer(self.ask(api, version, request, **more))

    def answer(self, ticket: Ticket) -> Any:
        assert ticket in self.answers, "no response yet"
        outcome = self.answers[ticket]
        if isinstance(outcome, MqError):
            raise outcome
        return outcome

    # -- what the runtime does

    def carry_out(self, decision: CoordinatorResult) -> None:
        for record in decision.records:
            self.log.append((record, decision.producer))
            self.shard.replay(record, decision.producer)
        for ticket, outcome in decision.responses:
            self._answer(ticket, outcome)
        self.effects.extend(decision.effects)

    def _answer(self, ticket: Ticket, outcome: Outcome) -> None:
        assert ticket not in self.answers, f"ticket {ticket} has two responses"
        if ticket in self.waiting:
            self.waiting.remove(ticket)
            self.answers[ticket] = outcome

    def mark(self, producer: Producer, committed: bool) -> None:
        """Append a marker to the log."""
        self.log.append((committed, producer))
        self.shard.replay_end(producer, committed)

    def advance(self, seconds: float) -> None:
        """Advance time; the shard is called at each of its deadlines on the way."""
        until = self.now.seconds + seconds
        while (deadline := self.shard.next_deadline()) is not None and deadline <= until:
            self._move_to(max(deadline, self.now.seconds))
            self.carry_out(self.shard.on_deadline(self.now))
        self._move_to(until)

    def _move_to(self, seconds: float) -> None:
        passed = seconds - self.now.seconds
        self.now = Moment(seconds, self.now.wall_ms + round(passed * 1000))

    def metadata_changed(self) -> None:
        self.carry_out(self.shard.on_metadata(self.now))

    def fail_over(self) -> None:
        """The next leader: it has only the log. All waiting requests get an error."""
        for ticket in sorted(self.waiting):
            self._answer(ticket, MqError(ErrorCode.NOT_COORDINATOR))
        self.shard = self.read_again()
        self.effects.clear()
        self.carry_out(self.shard.on_loaded(self.now))

    def read_again(self) -> ShardT:
        """A shard that has read the log, and has not decided anything yet."""
        shard = self._make_shard()
        for entry, producer in self.log:
            if isinstance(entry, bool):
                shard.replay_end(producer, entry)
            else:
                shard.replay(entry, producer)
        return shard
