"""Administrative requests about many resources: those with a retriable error are retried
until the timeout.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import trio

from mqd.client.arguments import check_several
from mqd.client.cluster import ClusterClient
from mqd.client.coordinator import KeyType, find_coordinators
from mqd.client.descriptions import Resource
from mqd.client.errors import (
    ClientError,
    ConnectionBroken,
    DeadlineExceeded,
    PeerUnreachable,
    does_not_exist,
    error_from_wire,
)
from mqd.client.nurseries import joining_nursery
from mqd.client.peer import PeerConnection
from mqd.errors import ErrorCode, MqError
from mqd.types import TopicPartition

ItemT = TypeVar("ItemT")
KeyT = TypeVar("KeyT")
NodeT = TypeVar("NodeT")


class Outcomes(NamedTuple):
    """One attempt: results by key, and the keys worth another attempt with their errors."""

    done: dict[Any, Any]
    again: dict[Any, ClientError]


class Calls:
    """Calls over a ClusterClient. `timeout_s` bounds each, retries included.

    Who is not `patient` does not wait until others take over from a node that cannot be reached,
    nor for a leader where there is none: what only they could tell fails at once, and the rest is
    there.
    """

    def __init__(
        self, client: ClusterClient, *, timeout_s: float = 30.0, patient: bool = True
    ) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._patient = patient

    @property
    def _timeout_ms(self) -> int:
        return int(self._timeout_s * 1000)

    async def _retry(self, what: str, attempt: Callable[[], Awaitable[ItemT]]) -> ItemT:
        return await self._client.retry(
            what, attempt, deadline=trio.current_time() + self._timeout_s
        )

    def _again(self, error: ClientError) -> bool:
        """Whether another attempt is worth it."""
        gone = (
            isinstance(error, PeerUnreachable | ConnectionBroken | DeadlineExceeded)
            or error.code is ErrorCode.LEADER_NOT_AVAILABLE
        )
        return error.retriable and (self._patient or not gone)

    def _note(self, keys: Iterable[Any], error: ClientError, into: Outcomes) -> None:
        """The same error for all of them."""
        (into.again if self._again(error) else into.done).update(dict.fromkeys(keys, error))

    async def _request(self, node_id: int | None, key: int, body: Mapping[str, Any]) -> Any:
        if node_id is None:
            return await self._client.request_controller(key, body)
        return await self._client.request_node(node_id, key, body)

    async def _each(
        self,
        what: str,
        keys: Iterable[KeyT],
        attempt: Callable[[list[KeyT]], Awaitable[Outcomes]],
        *,
        repeated: ErrorCode | None = None,
    ) -> dict[KeyT, Any]:
        """Results for all keys. Attempts repeat for the keys without a result until the timeout.
        `repeated`: the error code that a retry gets if a lost attempt has made the change.
        """
        check_several("the argument", keys)
        results: dict[KeyT, Any] = {}
        wanted = left = list(dict.fromkeys(keys))
        doubtful = False

        async def once() -> None:
            nonlocal left, doubtful
            asked = left
            try:
                outcomes = await attempt(asked)
            except MqError as error:
                doubtful |= error.code in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT)
                raise
            for key in asked:
                outcome = outcomes.done.get(key)
                if isinstance(outcome, ClientError) and doubtful and outcome.code is repeated:
                    note = "an earlier attempt of this call got no response and may have done it"
                    message = f"{outcome.message} ({note})"
                    outcome = ClientError(outcome.code, message, remedy=outcome.remedy)
                if key in outcomes.done:
                    results[key] = outcome
                elif key in outcomes.again:
                    results[key] = outcomes.again[key]
                else:
                    results[key] = ClientError(
                        ErrorCode.UNKNOWN_SERVER_ERROR,
                        f"{what}: the broker's response does not contain {key}",
                    )
            left = [key for key in asked if key in outcomes.again]
            if left:
                raise outcomes.again[left[0]]

        if left:
            try:
                await self._retry(what, once)
            except DeadlineExceeded as error:
                if not any(key in results for key in wanted):
                    raise
                for key in left:
                    results[key] = DeadlineExceeded(error.message, results.get(key))
        return {key: results[key] for key in wanted}

    async def _each_partition(
        self,
        what: str,
        partitions: list[TopicPartition],
        ask: Callable[[int, list[TopicPartition]], Awaitable[Outcomes]],
    ) -> dict[TopicPartition, Any]:
        """Results for all partitions, each from its leader.

        Requests to all nodes run concurrently.
        """

        async def attempt(left: list[TopicPartition]) -> Outcomes:
            view = await self._client.refresh({tp.topic for tp in left})
            outcomes = Outcomes({}, {})
            groups: dict[int, list[TopicPartition]] = {}
            for tp in left:
                leader = view.leader_of(tp)
                if leader is not None:
                    groups.setdefault(leader.node_id, []).append(tp)
                elif view.partition(tp) is None:
                    outcomes.done[tp] = does_not_exist(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {tp}"
                    )
                else:
                    self._note(
                        [tp],
                        error_from_wire(
                            ErrorCode.LEADER_NOT_AVAILABLE, f"partition {tp}", "it has no leader"
                        ),
                        outcomes,
                    )
            await self._ask_together(groups, ask, outcomes)
            return outcomes

        return await self._each(what, partitions, attempt)

    async def _each_coordinated(
        self,
        what: str,
        keys: Iterable[str],
        key_type: KeyType,
        ask: Callable[[PeerConnection, list[str]], Awaitable[Outcomes]],
    ) -> dict[str, Any]:
        """Results for all groups or transactional ids, each from its coordinator.

        Requests to all nodes run concurrently.
        """

        async def attempt(left: list[str]) -> Outcomes:
            outcomes = Outcomes({}, {})
            nodes: dict[tuple[str, int], list[str]] = {}
            for key, place in (await find_coordinators(self._client, left, key_type)).items():
                if isinstance(place, ClientError):
                    self._note([key], place, outcomes)
                else:
                    nodes.setdefault(place, []).append(key)

            async def at(address: tuple[str, int], group: list[str]) -> Outcomes:
                return await ask(await self._client.connection_to(address), group)

            await self._ask_together(nodes, at, outcomes)
            return outcomes

        return await self._each(what, keys, attempt)

    async def _ask_together(
        self,
        groups: Mapping[NodeT, list[KeyT]],
        ask: Callable[[NodeT, list[KeyT]], Awaitable[Outcomes]],
        into: Outcomes,
    ) -> None:
        """Send each node the request for its keys, all concurrently.

        A failure of one node does not affect the others.
        """

        async def one(node: NodeT, group: list[KeyT]) -> None:
            try:
                found = await ask(node, group)
            except ClientError as error:
                self._note(group, error, into)
            else:
                into.done.update(found.done)
                into.again.update(found.again)

        async with joining_nursery() as nursery:
            for node, group in groups.items():
                nursery.start_soon(one, node, group)

    async def _each_node(
        self, what: str, ask: Callable[[int], Awaitable[list[ItemT]]]
    ) -> dict[int, list[ItemT] | ClientError]:
        """The items of each live node, or its error. All requests run concurrently.

        All are repeated while one has a retriable error: its items may have moved to another node.
        """
        by_node: dict[int, list[ItemT] | ClientError] = {}

        async def attempt() -> None:
            view = await self._client.refresh([])
            now: dict[int, list[ItemT] | ClientError] = {}

            async def one(node_id: int) -> None:
                try:
                    now[node_id] = await ask(node_id)
                except ClientError as error:
                    now[node_id] = error

            async with joining_nursery() as nursery:
                for node_id in sorted(view.brokers):
                    nursery.start_soon(one, node_id)
            by_node.clear()
            by_node.update(sorted(now.items()))
            failures = [outcome for outcome in now.values() if isinstance(outcome, ClientError)]
            if failures and all(
                self._again(each) or each.code is ErrorCode.BROKER_NOT_AVAILABLE
                for each in failures
            ):
                raise ClientError(
                    ErrorCode.LEADER_NOT_AVAILABLE, failures[0].message, remedy=failures[0].remedy
                )

        try:
            await self._retry(what, attempt)
        except DeadlineExceeded:
            if not by_node:
                raise
            for node_id, outcome in by_node.items():
                if isinstance(outcome, ClientError):
                    by_node[node_id] = DeadlineExceeded(
                        f"{what} did not succeed in time; last: {outcome.message}", outcome
                    )
        return by_node


def everything(by_node: Mapping[int, list[ItemT] | ClientError]) -> list[ItemT]:
    """The items of all nodes, in the order of nodes.

    Raises the error of a node that failed; final errors come first.
    """
    failures = [outcome for outcome in by_node.values() if isinstance(outcome, ClientError)]
    if failures:
        raise min(failures, key=lambda error: error.retriable)
    return [each for outcome in by_node.values() for each in raised(outcome)]


_FINAL = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
    }
)
"""Retriable errors that an administrative call returns at once: the thing does not exist, or the
action is not possible now.
"""


def outcomes_of(rows: Iterable[tuple[Any, Any, str | None, Any]]) -> Outcomes:
    """Sort rows of (key, row with an error code, message, result) into results and keys to
    retry.
    """
    outcomes = Outcomes({}, {})
    for key, row, message, result in rows:
        if not row.error_code:
            outcomes.done[key] = result
            continue
        subject = _subject(key)
        error = (
            does_not_exist(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, subject)
            if row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else error_from_wire(row.error_code, subject, message)
        )
        again = error.retriable and error.code not in _FINAL
        (outcomes.again if again else outcomes.done)[key] = error
    return outcomes


def _subject(key: Any) -> str:
    """The object of a request in an error message."""
    if isinstance(key, Resource):
        return f"{key.type.name.lower()} {key.name!r}"
    if isinstance(key, TopicPartition):
        return f"partition {key}"
    return f"topic {key!r}" if isinstance(key, str) else str(key)


def raised(outcome: ItemT | ClientError) -> ItemT:
    if isinstance(outcome, ClientError):
        raise outcome
    return outcome


def by_topic(
    partitions: Iterable[TopicPartition], row: Callable[[TopicPartition], dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(row(tp))
    return topics
