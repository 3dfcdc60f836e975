"""Connections share the event loop: each gets a slice in turn, and the one with the least use goes
first.
"""

from __future__ import annotations

from pathlib import Path
from struct import pack
from typing import Any

import pytest

from mqd.limits import IN_FLIGHT_REQUESTS_MAX, SLICE_SECONDS_MAX, TURN_SECONDS_MAX
from mqd.server.connection import RESUME, Connection
from tests.log.support import HandClock
from tests.server.rig import Client, Rig, rig, run_until_idle
from tests.server.scripted import ScriptedOwner, frame


def resumes_until_all_have_a_response(
    owner: ScriptedOwner, later: list[object], requests: list[bytes]
) -> None:
    while later:
        assert later.pop() is owner.connection
        owner.connection.on_ready(RESUME)
        owner.run()
    assert owner.requests == requests
    assert bytes(owner.sock.sent) == b"".join(requests)


def test_a_connection_whose_slice_is_over_resumes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = ScriptedOwner()
    later: list[object] = []
    monkeypatch.setattr(owner, "resume_later", later.append)
    owner.slice_is_over = True
    requests = [b"request%d" % number for number in range(3 * IN_FLIGHT_REQUESTS_MAX)]
    owner.sock.incoming = [b"".join(map(frame, requests))]
    owner.run()
    assert owner.requests == requests[:1]
    resumes_until_all_have_a_response(owner, later, requests)


def test_an_invalid_length_behind_the_end_of_a_slice_closes_only_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by chaos/sasl_fuzz.py: the length was read outside of the handling of errors, and the
    node ended.
    """
    for length in (0, 7, -1, 2**31 - 1):
        owner = ScriptedOwner()
        later: list[object] = []
        monkeypatch.setattr(owner, "resume_later", later.append)
        owner.slice_is_over = True
        requests = [b"request%d" % number for number in range(3)]
        owner.sock.incoming = [b"".join(map(frame, requests)) + pack(">i", length)]
        owner.run()
        while later:
            later.pop()
            owner.connection.on_ready(RESUME)
            owner.run()
        assert owner.requests == requests
        assert not owner.connection.open
        assert not owner.connection.frames.is_late(1e9, 1.0)


class BusyClock(HandClock):
    """Monotonic time that passes while requests are handled."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


class Costly:
    """Each request takes time by the clock; the waiting times are recorded."""

    def __init__(self, node: Rig, seconds: float) -> None:
        self.clock = BusyClock()
        node.node.clock = self.clock
        self.seconds = seconds
        self.count = 0
        self.arrive_at = -1
        self.light: Client | None = None
        self.arrived = 0.0
        self.waited: list[float] = []
        self.served: list[Any] = []
        self._dispatch = node.server.dispatcher.dispatch
        node.server.dispatcher.dispatch = self  # type: ignore[method-assign, assignment]  # replaced by the test

    def __call__(self, connection: Any, *arguments: Any) -> bool:
        clock = self.clock
        self.served.append(connection.sock)
        if self.light is not None and connection.sock is self.light.sock:
            self.waited.append(clock.monotonic() - self.arrived)
        else:
            clock.seconds += self.seconds
            self.count += 1
            if self.count == self.arrive_at and self.light is not None:
                self.arrived = clock.monotonic()
                self.light.post("api_versions", 3, {})
        return self._dispatch(connection, *arguments)


@pytest.mark.parametrize("seconds", [0.0001, 0.003, 0.05])
@pytest.mark.parametrize(
    ("arrive_at", "slices"), [(20, 50), (1200, 1)], ids=["beside newcomers", "beside hogs"]
)
async def test_a_light_connection_waits_for_one_slice_of_each_new_one(
    tmp_path: Path, seconds: float, arrive_at: int, slices: int
) -> None:
    async with rig(tmp_path) as node:
        hogs = [await node.connect() for _ in range(50)]
        light = await node.connect()
        costly = Costly(node, seconds)
        costly.light, costly.arrive_at = light, arrive_at
        for hog in hogs:
            for _ in range(40):
                hog.post("api_versions", 3, {})
        await run_until_idle()
        assert costly.count == 50 * 40
        (waited,) = costly.waited
        assert waited <= TURN_SECONDS_MAX + slices * (SLICE_SECONDS_MAX + 2 * seconds)
        assert all(len(hog.responses()) == 40 for hog in hogs)


async def test_a_slice_delayed_by_the_machine_counts_as_one_slice(
    tmp_path: Path,
) -> None:
    """It counts as if the machine had no other processes."""
    async with rig(tmp_path) as node:
        hogs, good = [await node.connect() for _ in range(20)], await node.connect()
        costly = Costly(node, 0.02)
        good.post("api_versions", 3, {})
        await run_until_idle()
        costly.seconds = 0.001
        for hog in hogs:
            for _ in range(40):
                hog.post("api_versions", 3, {})
        good.post("api_versions", 3, {})
        await run_until_idle()
        served_before = costly.served.index(good.sock, 1)
        assert served_before <= 20 * (SLICE_SECONDS_MAX / costly.seconds + 2), served_before
        assert len(good.responses()) == 2


async def test_heavy_connections_get_equal_shares_of_the_time(tmp_path: Path) -> None:
    async with rig(tmp_path) as node:
        hogs = [await node.connect() for _ in range(5)]
        costly = Costly(node, 0.003)
        for hog in hogs:
            for _ in range(200):
                hog.post("api_versions", 3, {})
        await run_until_idle()
        half = costly.served[: len(costly.served) // 2]
        counts = [half.count(hog.sock) for hog in hogs]
        assert max(counts) - min(counts) <= 4, counts


@pytest.mark.parametrize(
    ("requests_of_a_hog", "newcomers", "hogs"), [(200, 50, 1), (100, 5, 20)], ids=["last", "a part"]
)
async def test_handshakes_go_last_and_have_a_part_of_each_turn(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    requests_of_a_hog: int,
    newcomers: int,
    hogs: int,
) -> None:
    """A flood of handshakes does not divide the time of clients that have logged in."""
    async with rig(tmp_path) as node:
        new = [await node.connect() for _ in range(newcomers)]
        known = [await node.connect() for _ in range(hogs)]
        socks = {client.sock for client in new}
        unfinished = {one for one in node.server._connections if one.sock in socks}
        monkeypatch.setattr(
            Connection, "is_in_handshake", property(lambda self: self in unfinished)
        )
        node.server._newcomers.update(dict.fromkeys(unfinished))
        costly = Costly(node, 0.001)
        for clients, count in ((new, 20), (known, requests_of_a_hog)):
            for client in clients:
                for _ in range(count):
                    client.post("api_versions", 3, {})
        await run_until_idle()
        are_new = [sock in socks for sock in costly.served]
        assert len(are_new) == newcomers * 20 + hogs * requests_of_a_hog
        last_known = len(are_new) - 1 - are_new[::-1].index(False)
        last_new = len(are_new) - 1 - are_new[::-1].index(True)
        if hogs == 1:
            assert sum(are_new[:last_known]) < newcomers * 20 * 0.9
        else:
            assert last_new - sum(are_new) < hogs * requests_of_a_hog // 4
