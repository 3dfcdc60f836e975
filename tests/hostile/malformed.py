"""Requests that are almost valid."""

from __future__ import annotations

import random
import struct

from mqd.testing.requests import api_of
from tests.hostile.attack import Attack
from tests.hostile.wire import Wire
from tests.hostile.worst_requests import APIS, smallest_request

ANSWER_SECONDS = 0.05
"""A mutated request may wait, or have no response."""
CHANGES_MAX = 4
LENGTHS = (0x7FFF_FFFF, 0x7FFF, -1, 0, 3, 200_000_000)
VARINTS = (b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x00")
CHANGING_ALL = ("unregister_broker", "update_features")
"""Resources that these change would be different for later attacks."""


class Malformed(Attack):
    """Valid requests of every API with some bytes changed, lengths too large, and frames
    too long or too short.
    """

    name = "malformed requests"

    def prepare(self) -> None:
        self._chance = random.Random(self.known)
        self._valid = [smallest_request(api_of(name)) for name in APIS if name not in CHANGING_ALL]

    def round(self, wire: Wire) -> None:
        wire.timeout(ANSWER_SECONDS)
        wire.send(self._mutated())
        wire.receive()

    def _mutated(self) -> bytes:
        chance = self._chance
        body = bytearray(chance.choice(self._valid))
        kind = chance.randrange(4)
        if kind == 0:
            return struct.pack(">i", chance.choice(LENGTHS)) + body
        for _ in range(chance.randint(1, CHANGES_MAX)):
            place = chance.randrange(8, len(body))
            if kind == 1:
                body[place] = chance.randrange(256)
            elif kind == 2:
                body[place : place + 1] = chance.choice(VARINTS)
            else:
                del body[place + 1 :]
        return struct.pack(">i", len(body)) + body
