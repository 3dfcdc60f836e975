"""Members in log lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from mqd.errors import some_of

_MEMBERS_MAX: Final = 5


class _Member(Protocol):
    """A member of a group of either type."""

    @property
    def member_id(self) -> str: ...

    @property
    def client_host(self) -> str: ...


def named(members: Iterable[_Member]) -> str:
    """Ids and hosts of the first members."""
    return some_of([f"{one.member_id} at {one.client_host}" for one in members], _MEMBERS_MAX)
