"""Members of share groups by franz-go and by Apache Kafka's KafkaShareConsumer: every
acknowledgement, two members, and members that leave or are killed.

Apache Kafka 4.3.1 passes, too (`--kind kafka`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from .conftest import Broker
from .share_exchanges import ShareWire
from .share_processes import Client, Received, ShareMember, franz_go, java
from .wire import create_topic, until

CLIENTS = {"franz-go": franz_go, "java": java}
COUNT = 10
LOCK_MS = 2000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Client:
    return CLIENTS[request.param](tmp_path_factory.mktemp(request.param))


class Shared:
    """A topic, and a group that reads it from the beginning."""

    def __init__(self, wire: ShareWire, client: Client, address: str, name: str) -> None:
        self.wire, self.name = wire, name
        self._client, self._address = client, address
        self.partitions = 0

    def create(self, partitions: int = 1, **configs: str) -> None:
        create_topic(self.wire, self.name, partitions=partitions)
        self.partitions = partitions
        self.wire.configure(self.name, share_auto_offset_reset="earliest", **configs)

    def write(self, count: int = COUNT, *, partition: int = 0) -> None:
        """One batch of so many records."""
        self.wire.write(self.name, *(b"%d" % n for n in range(count)), partition=partition)

    def member(self, max_records: int = 500, *, explicit: bool = True) -> ShareMember:
        return self._client(
            self._address, self.name, self.name, max_records=max_records, explicit=explicit
        )


@pytest.fixture
def shared(broker: Broker, client: Client, new_name: Callable[[], str]) -> Iterator[Shared]:
    with ShareWire(broker.host, broker.port) as wire:
        yield Shared(wire, client, broker.address, new_name())


def rows(records: Sequence[Received]) -> list[tuple[int, int]]:
    """Offset and delivery count of each record."""
    return [(one.offset, one.delivery_count) for one in records]


def gathered(member: ShareMember, count: int) -> list[Received]:
    """So many records, of several polls, all accepted."""
    found: list[Received] = []
    while len(found) < count:
        some = member.polled()
        member.acknowledge("accept", *some)
        found += some
    assert all(error is None for _, error in member.flush())
    return found


def test_each_acknowledgement(shared: Shared) -> None:
    shared.create()
    shared.write()
    with shared.member() as member:
        first = member.polled()
        assert rows(first) == [(offset, 1) for offset in range(COUNT)]
        assert [one.value for one in first] == [str(n) for n in range(COUNT)]
        member.acknowledge("release", first[2])
        member.acknowledge("reject", first[3])
        member.acknowledge("accept", *first[:2], *first[4:])
        assert {error for _, error in member.flush()} == {None}
        again = member.polled()
        assert rows(again) == [(2, 2)]
        member.acknowledge("accept", *again)
        assert {error for _, error in member.flush()} == {None}
        assert member.poll() == []


def test_implicit_acknowledgement(shared: Shared) -> None:
    """The next poll accepts the records of the one before it."""
    shared.create()
    shared.write()
    with shared.member(max_records=4, explicit=False) as member:
        found: list[Received] = []
        while some := member.poll() if found else member.polled():
            found += some
        assert rows(found) == [(offset, 1) for offset in range(COUNT)]
        member.flush()
    with shared.member() as other:
        assert other.poll() == other.poll() == []


def test_a_renewed_lock_does_not_end(shared: Shared) -> None:
    shared.create(share_record_lock_duration_ms=str(LOCK_MS))
    shared.write(1)
    with shared.member() as member, shared.member() as other:
        (record,) = member.polled()
        ends = time.monotonic() + 2.5 * LOCK_MS / 1000
        while time.monotonic() < ends:
            member.renew(record)
            assert other.poll(LOCK_MS // 4) == []
        member.acknowledge("accept", record)
        assert {error for _, error in member.flush()} == {None}
        assert other.poll() == []


def test_a_lock_that_ends(shared: Shared) -> None:
    """The record is delivered again, and its late acknowledgement fails."""
    shared.create(share_record_lock_duration_ms=str(LOCK_MS))
    shared.write(1)
    with shared.member() as member, shared.member() as other:
        (record,) = member.polled()
        again = other.polled()
        assert rows(again) == [(0, 2)]
        member.acknowledge("accept", record)
        ((_, error),) = member.flush()
        assert error is not None
        assert "invalidrecordstate" in error.lower().replace("_", ""), error
        other.acknowledge("accept", *again)
        assert {error for _, error in other.flush()} == {None}


def test_the_delivery_count_limit(shared: Shared) -> None:
    shared.create(share_delivery_count_limit="2")
    shared.write(1)
    with shared.member() as member:
        for count in (1, 2):
            found = member.polled()
            assert rows(found) == [(0, count)]
            member.acknowledge("release", *found)
            assert {error for _, error in member.flush()} == {None}
        assert member.poll() == []
        shared.write(1)
        assert rows(gathered(member, 1)) == [(1, 1)]


def test_two_members_share_a_partition(shared: Shared) -> None:
    shared.create()
    with shared.member(max_records=3) as one, shared.member(max_records=3) as two:
        for member in (one, two):
            member.poll()  # joins
        for _ in range(5):
            shared.write()
        found: dict[str, list[Received]] = {"one": [], "two": []}
        deadline = time.monotonic() + 60
        while sum(map(len, found.values())) < 5 * COUNT and time.monotonic() < deadline:
            for name, member in (("one", one), ("two", two)):
                some = member.poll()
                member.acknowledge("accept", *some)
                member.flush()
                found[name] += some
        assert sorted(rows([*found["one"], *found["two"]])) == [
            (offset, 1) for offset in range(5 * COUNT)
        ]
        assert found["one"] and found["two"]


@pytest.mark.parametrize("end", ["leave", "kill"])
def test_records_of_a_member_that_ends(shared: Shared, end: str) -> None:
    """Another member gets them."""
    shared.create()
    shared.write()
    member = shared.member()
    with shared.member() as other:
        try:
            held = member.polled()
            assert len(held) == COUNT
            member.acknowledge("accept", *held[:4])
            assert {error for _, error in member.flush()} == {None}
            getattr(member, end)()
        finally:
            member.kill()
        assert [one.offset for one in gathered(other, COUNT - 4)] == list(range(4, COUNT))
        assert other.poll() == []


def test_rebalances(shared: Shared) -> None:
    """New partitions are read, and those of a member that leaves."""
    shared.create(partitions=2)
    with shared.member() as one:
        for partition in range(2):
            shared.write(partition=partition)
        assert len(gathered(one, 2 * COUNT)) == 2 * COUNT
        with shared.member() as two:
            two.poll()
            rows_of = [{"name": shared.name, "count": 4, "assignments": None}]
            created = shared.wire.ask(
                "CreatePartitions", 3, topics=rows_of, timeout_ms=10_000, validate_only=False
            )
            assert [row.error_code for row in created.results] == [0]
            until(lambda: written(shared, 3), "the leader of partition 3")
            found: list[Received] = []
            deadline = time.monotonic() + 60
            while len(found) < COUNT and time.monotonic() < deadline:
                for member in (one, two):
                    some = member.poll()
                    member.acknowledge("accept", *some)
                    member.flush()
                    found += some
            assert {(one.partition, one.offset) for one in found} == {(3, n) for n in range(COUNT)}
        for partition in range(2):
            shared.write(partition=partition)
        assert len(gathered(one, 2 * COUNT)) == 2 * COUNT


def written(shared: Shared, partition: int) -> bool:
    try:
        shared.write(partition=partition)
    except AssertionError:
        return False
    return True
