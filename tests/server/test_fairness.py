"""One connection's slow requests do not hold up the others: it yields, and goes on in a later turn."""

from __future__ import annotations

from tests.server.test_connection import ScriptedOwner, frame


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
    while later:
        assert later.pop() is owner.connection
        owner.connection.must_yield = False
        owner.connection.resume()
        owner.run()
    assert owner.requests == requests
    assert bytes(owner.sock.sent) == b"".join(requests)
