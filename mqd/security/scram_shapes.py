"""How the SCRAM credentials of a cluster look from outside: their iterations and salts. A core.

The first message of a login names both. So a user that does not exist must get iterations and a
salt as existing users have them, or clients could tell the two apart. A hash of the unknown name
selects one existing credential to imitate. So a name keeps its shape, unless a change of the
credentials moves the boundary between two shapes over its place.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final, NamedTuple

from mqd.security.scram_credentials import ScramCredential, ScramMechanism

KAFKA_SALT_BITS: Final = 130
"""Kafka's tools and mqctl write a salt of so many random bits in base 36: 26 characters."""
_KAFKA_SALT_CHARACTERS = range(20, 27)
_SALT_RADIX = 1 << 20
"""No salt is longer."""


class ScramShape(NamedTuple):
    """What a client sees of a credential."""

    iterations: int
    salt_bytes: int
    """0: text, as Kafka's tools write it."""


class ScramShapes:
    """The shapes of all credentials of a cluster."""

    __slots__ = ("_is_sorted", "_shapes")

    def __init__(self) -> None:
        self._shapes: dict[ScramMechanism, list[int]] = {each: [] for each in ScramMechanism}
        """A shape as one number: 100,000 users need less than 1 MB."""
        self._is_sorted = True

    def add(self, mechanism: ScramMechanism, credential: ScramCredential) -> None:
        """A new credential."""
        self._sort()
        insort(self._shapes[mechanism], _number_of(credential))

    def append(self, mechanism: ScramMechanism, credential: ScramCredential) -> None:
        """One of many new credentials: faster than `add`, and the next use is slower."""
        self._shapes[mechanism].append(_number_of(credential))
        self._is_sorted = False

    def remove(self, mechanism: ScramMechanism, credential: ScramCredential) -> None:
        """A credential that was added."""
        self._sort()
        shapes, number = self._shapes[mechanism], _number_of(credential)
        place = bisect_left(shapes, number)
        assert shapes[place] == number, credential
        del shapes[place]

    def at(self, mechanism: ScramMechanism, numerator: int, bits: int) -> ScramShape | None:
        """The shape at this part of the credentials in order: `numerator` / 2**`bits`. None: there
        are no credentials.
        """
        assert 0 <= numerator < 1 << bits
        self._sort()
        shapes = self._shapes[mechanism]
        if not shapes:
            return None
        return ScramShape(*divmod(shapes[numerator * len(shapes) >> bits], _SALT_RADIX))

    def _sort(self) -> None:
        if not self._is_sorted:
            for shapes in self._shapes.values():
                shapes.sort()
            self._is_sorted = True


def _number_of(credential: ScramCredential) -> int:
    salt = credential.salt
    size = 0 if _is_of_kafka(salt) else len(salt)
    return credential.iterations * _SALT_RADIX + min(size, _SALT_RADIX - 1)


def _is_of_kafka(salt: bytes) -> bool:
    """Whether the salt is a number of KAFKA_SALT_BITS in base 36."""
    if len(salt) not in _KAFKA_SALT_CHARACTERS or not salt.isalnum() or salt != salt.lower():
        return False
    return int(salt, 36) < 1 << KAFKA_SALT_BITS
