"""One connection's slow requests do not hold up the others: it yields, and goes on in a later turn."""

from __future__ import annotations

from mqd.limits import IN_FLIGHT_REQUESTS_MAX
from tests.server.test_connection import ScriptedOwner, frame


def goes_on_until_all_is_answered(owner: ScriptedOwner, later: list[object], requests: list[bytes]) -> None:
    while later:
        assert later.pop() is owner.connection
        owner.connection.must_yield = False
        owner.connection.resume()
        owner.run()
    assert owner.requests == requests
    assert bytes(owner.sock.sent) == b"".join(requests)


def test_who_took_long_yields_and_goes_on_later() -> None:
    owner = ScriptedOwner()
    later: list[object] = []
    owner.resume_later = later.append  # type: ignore[method-assign]
    original = owner.dispatch

    def dispatch(connection, buffer, view, start, end):  # type: ignore[no-untyped-def]
        taken = original(connection, buffer, view, start, end)
        connection.must_yield = True
        return taken

    owner.dispatch = dispatch  # type: ignore[method-assign]
    requests = [b"request%d" % number for number in range(5)]
    owner.sock.incoming = [b"".join(map(frame, requests))]
    owner.run()
    assert owner.requests == requests[:1]
    goes_on_until_all_is_answered(owner, later, requests)


def test_a_flood_of_small_requests_yields_when_the_turn_is_long() -> None:
    owner = ScriptedOwner()
    later: list[object] = []
    owner.resume_later = later.append  # type: ignore[method-assign]
    owner.turn_is_long = True
    requests = [b"request%d" % number for number in range(3 * IN_FLIGHT_REQUESTS_MAX)]
    owner.sock.incoming = [b"".join(map(frame, requests))]
    owner.run()
    assert owner.requests == requests[:IN_FLIGHT_REQUESTS_MAX], "as many as may be in flight, and not all that were received"
    goes_on_until_all_is_answered(owner, later, requests)
