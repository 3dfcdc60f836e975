"""Parked requests: each is freed exactly once, by its event or by its deadline."""

from __future__ import annotations

from hypothesis import given, strategies as st

from mqd.errors import ErrorCode
from mqd.replica.waiters import Append, Deadlines, FetchWaiter, ProduceTicket


class Holder:
    def __init__(self) -> None:
        self.fetches: dict[FetchWaiter, None] = {}


class Ticket(ProduceTicket[None]):
    def __init__(self, waiting: int, freed_tickets: list[ProduceTicket[None]]) -> None:
        super().__init__()
        self.waiting = waiting
        self.freed_tickets = freed_tickets

    def refuse(self, append: Append[None], code: ErrorCode) -> None:
        raise AssertionError("nothing is refused here")

    def release(self) -> None:
        self.freed_tickets.append(self)


def test_a_ticket_is_freed_when_its_last_partition_is_done() -> None:
    freed: list[ProduceTicket[None]] = []
    ticket = Ticket(2, freed)
    ticket.append_done()
    assert not freed
    ticket.append_done()
    assert freed == [ticket]


def test_a_waiter_leaves_every_partition_and_is_released_once() -> None:
    released: list[int] = []
    waiter = FetchWaiter(lambda: released.append(1), 1, 0.0)
    holders = (Holder(), Holder())
    waiter.park(holders)
    assert all(waiter in holder.fetches for holder in holders)
    waiter.free()
    waiter.free()
    assert released == [1]
    assert not any(holder.fetches for holder in holders)


@given(
    st.lists(st.tuples(st.floats(min_value=0, max_value=100), st.booleans()), max_size=1000),
    st.floats(min_value=0, max_value=100),
)
def test_expired_requests_are_returned_and_still_parked(
    entries: list[tuple[float, bool]], now: float
) -> None:
    deadlines: Deadlines[FetchWaiter] = Deadlines()
    expected = []
    for deadline, freed in entries:
        waiter = FetchWaiter(lambda: None, 1, deadline)
        deadlines.add(waiter)
        if freed:
            waiter.free()
        elif deadline <= now:
            expected.append(waiter)
    assert sorted(deadlines.expired(now), key=id) == sorted(expected, key=id)
    following = deadlines.next_deadline()
    assert following is None or following > now


def test_freed_waiters_do_not_accumulate() -> None:
    deadlines: Deadlines[FetchWaiter] = Deadlines()
    for number in range(100_000):
        waiter = FetchWaiter(lambda: None, 1, float(number))
        deadlines.add(waiter)
        waiter.free()
    assert len(deadlines) < 1000
