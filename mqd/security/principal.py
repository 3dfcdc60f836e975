"""The identity of a client or node, as Kafka names it: `User:alice`. A core."""

from __future__ import annotations

from typing import Final, NamedTuple

USER: Final = "User"


class Principal(NamedTuple):
    """A tuple, so that it hashes and compares in C."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""The principal of a client that does not authenticate, as in Apache Kafka."""


def parse_principal(text: str) -> Principal:
    """The principal that `User:alice` names. Raises ValueError."""
    type_, colon, name = text.partition(":")
    if not colon or not type_:
        raise ValueError(f"'{text}' is not a principal: write it as User:NAME")
    return Principal(type_, name)
