"""The broker that coordinates one group or one transactional id: found when first needed, found
again when it moved.

Requests that wait at the coordinator (a join, until all members came) take a `purpose` and with it
a connection of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeVar

import trio

from mqd.client.cluster import ClusterClient, api
from mqd.client.errors import ClientError, error_from_wire
from mqd.client.peer import PeerConnection
from mqd.errors import ErrorCode, MqError

ResultT = TypeVar("ResultT")

FIND_COORDINATOR = 10
_SEVERAL_FROM = 4
MOVED = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
"""Failures after which the coordinator is looked for again."""


class KeyType(IntEnum):
    """The type of a coordinator's keys."""

    GROUP = 0
    TRANSACTION = 1


async def find_coordinators(
    client: ClusterClient, keys: Sequence[str], key_type: KeyType
) -> dict[str, tuple[str, int] | ClientError]:
    """The coordinator of each key, without retries: one request if the broker supports several keys
    (KIP-699), else one for each.
    """
    connection = await client.any_connection()
    together = connection.version_of(api(FIND_COORDINATOR)) >= _SEVERAL_FROM
    found: dict[str, tuple[str, int] | ClientError] = {}
    for asked in [list(keys)] if together else [[key] for key in keys]:
        body = {"key": asked[0], "key_type": int(key_type), "coordinator_keys": asked}
        response = await client.request(connection, FIND_COORDINATOR, body)
        for key, row in zip(asked, response.coordinators if together else [response], strict=False):
            if row.error_code:
                subject = (
                    "the coordinator of "
                    f"{'group' if key_type is KeyType.GROUP else 'transactional id'} {key!r}"
                )
                found[key] = error_from_wire(row.error_code, subject, row.error_message)
            else:
                found[key] = row.host, row.port
    return found


class Coordinator:
    """Requests to the coordinator of `key`."""

    def __init__(self, client: ClusterClient, key: str, key_type: KeyType) -> None:
        self._client = client
        self._key = key
        self._key_type = key_type
        self._address: tuple[str, int] | None = None

    def forget(self) -> None:
        """Look for it again before the next request."""
        self._address = None

    async def connection(self, *, purpose: str = "") -> PeerConnection:
        """One attempt. Raises ClientError, COORDINATOR_NOT_AVAILABLE among them."""
        address = self._address
        if address is None:
            address = await self._find()
        connection = await self._client.connection_to(address, purpose=purpose)
        self._address = address
        return connection

    async def _find(self) -> tuple[str, int]:
        found = (await find_coordinators(self._client, [self._key], self._key_type))[self._key]
        if isinstance(found, ClientError):
            raise found
        return found

    async def ask(
        self,
        key: int,
        body: Mapping[str, Any],
        *,
        at_most: int | None = None,
        timeout_s: float | None = None,
        purpose: str = "",
    ) -> Any:
        """One attempt, bounded by `timeout_s` or the client's own bound.

        After a failure of the connection it is looked for again.
        """
        try:
            connection = await self.connection(purpose=purpose)
            declaration = api(key)
            version = connection.version_of(declaration, at_most=at_most)
            bound = (
                self._client.request_timeout_s
                if timeout_s is None
                else max(timeout_s, self._client.request_timeout_s)
            )
            return await connection.request(declaration, body, version, timeout_s=bound)
        except MqError as error:
            if error.code in MOVED:
                self.forget()
            raise

    async def call(
        self,
        what: str,
        key: int,
        body: Callable[[], Mapping[str, Any]],
        accept: Callable[[Any], ResultT],
        *,
        deadline: float,
        at_most: int | None = None,
    ) -> ResultT:
        """Send the request until `accept` returns. `accept` raises the error of a response;
        retriable errors are retried until `deadline`. `body` is called for each attempt. Raises
        DeadlineExceeded, and errors that are not retriable.
        """

        async def attempt() -> ResultT:
            try:
                return accept(await self.ask(key, body(), at_most=at_most))
            except MqError as error:
                if error.code in MOVED:
                    self.forget()
                if error.code is ErrorCode.BROKER_NOT_AVAILABLE:
                    raise ClientError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
                raise

        return await self._client.retry(what, attempt, deadline=deadline)

    async def wait_connection(self, what: str, *, timeout_s: float) -> PeerConnection:
        """A connection to the coordinator, retried until `timeout_s`: to learn which versions it
        serves.
        """
        return await self._client.retry(
            what, self.connection, deadline=trio.current_time() + timeout_s
        )
