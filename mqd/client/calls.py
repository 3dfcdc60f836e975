"""Administrative requests about many resources: those with a retriable error are retried
until the timeout.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import trio

from mqd.client.access import Acl, AclFilter, text_of_acl, text_of_entity
from mqd.client.arguments import check_above_zero, check_flag, milliseconds
from mqd.client.cluster import ClusterClient, check_client
from mqd.client.coordinator import KeyType, find_coordinators
from mqd.client.descriptions import Resource
from mqd.client.errors import (
    REMEDIES,
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
BrokerT = TypeVar("BrokerT")


class Outcomes(NamedTuple):
    """One attempt: results by key, and the keys worth another attempt with their errors."""

    done: dict[Any, Any]
    to_retry: dict[Any, ClientError]


class Calls:
    """Calls over a ClusterClient. `timeout_s` bounds each, retries included.

    Without `patient`, a call does not wait for a failover or an election. Items of an unreachable
    broker, or of a partition without a leader, fail at once. The others have their results.
    """

    def __init__(
        self, client: ClusterClient, *, timeout_s: float = 30.0, patient: bool = True
    ) -> None:
        check_client(client)
        check_above_zero("timeout_s", timeout_s)
        check_flag("patient", patient)
        self._client = client
        self._timeout_s = timeout_s
        self._patient = patient

    @property
    def _timeout_ms(self) -> int:
        return milliseconds(self._timeout_s)

    async def _retry(self, what: str, attempt: Callable[[], Awaitable[ItemT]]) -> ItemT:
        return await self._client.retry(
            what, attempt, deadline=trio.current_time() + self._timeout_s
        )

    def _is_worth_retrying(self, error: ClientError) -> bool:
        """Whether a retry may succeed in time."""
        gone = (
            isinstance(error, PeerUnreachable | ConnectionBroken | DeadlineExceeded)
            or error.code is ErrorCode.LEADER_NOT_AVAILABLE
        )
        return error.retriable and (self._patient or not gone)

    def _note(self, keys: Iterable[Any], error: ClientError, into: Outcomes) -> None:
        """Add the same error for all `keys`."""
        (into.to_retry if self._is_worth_retrying(error) else into.done).update(
            dict.fromkeys(keys, error)
        )

    async def _request(self, node_id: int | None, key: int, body: Mapping[str, Any]) -> Any:
        if node_id is None:
            return await self._client.request_controller(key, body)
        return await self._client.request_broker(node_id, key, body)

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
        self._client.check_open()
        results: dict[KeyT, Any] = {}
        wanted = left = list(dict.fromkeys(keys))
        outcome_uncertain = False

        async def once() -> None:
            nonlocal left, outcome_uncertain
            requested = left
            try:
                outcomes = await attempt(requested)
            except MqError as error:
                outcome_uncertain |= error.code in (
                    ErrorCode.NETWORK_EXCEPTION,
                    ErrorCode.REQUEST_TIMED_OUT,
                )
                raise
            for key in requested:
                outcome = outcomes.done.get(key)
                if (
                    isinstance(outcome, ClientError)
                    and outcome_uncertain
                    and outcome.code is repeated
                ):
                    note = "an earlier attempt of this call got no response and may have done it"
                    message = f"{outcome.message} ({note})"
                    outcome = ClientError(outcome.code, message, remedy=outcome.remedy)
                if key in outcomes.done:
                    results[key] = outcome
                elif key in outcomes.to_retry:
                    results[key] = outcomes.to_retry[key]
                else:
                    results[key] = ClientError(
                        ErrorCode.UNKNOWN_SERVER_ERROR,
                        f"{what}: the broker's response does not contain {key}",
                    )
            left = [key for key in requested if key in outcomes.to_retry]
            if left:
                raise outcomes.to_retry[left[0]]

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
        request: Callable[[int, list[TopicPartition]], Awaitable[Outcomes]],
    ) -> dict[TopicPartition, Any]:
        """Results for all partitions, each from its leader.

        Requests to all brokers run concurrently.
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
            await self._request_all(groups, request, outcomes)
            return outcomes

        return await self._each(what, partitions, attempt)

    async def _each_coordinated(
        self,
        what: str,
        keys: Iterable[str],
        key_type: KeyType,
        request: Callable[[PeerConnection, list[str]], Awaitable[Outcomes]],
    ) -> dict[str, Any]:
        """Results for all groups or transactional ids, each from its coordinator.

        Requests to all brokers run concurrently.
        """

        async def attempt(left: list[str]) -> Outcomes:
            outcomes = Outcomes({}, {})
            brokers: dict[tuple[str, int], list[str]] = {}
            for key, place in (await find_coordinators(self._client, left, key_type)).items():
                if isinstance(place, ClientError):
                    self._note([key], place, outcomes)
                else:
                    brokers.setdefault(place, []).append(key)

            async def at(address: tuple[str, int], group: list[str]) -> Outcomes:
                return await request(await self._client.connection_to(address), group)

            await self._request_all(brokers, at, outcomes)
            return outcomes

        return await self._each(what, keys, attempt)

    async def _of_one_group(
        self, what: str, group_id: str, keys: list[KeyT], request: Any
    ) -> dict[KeyT, Any]:
        """Results for partitions or topics, all from the coordinator of one group."""

        async def attempt(left: list[KeyT]) -> Outcomes:
            found = Outcomes({}, {})

            async def once(connection: PeerConnection, _: list[str]) -> Outcomes:
                outcomes = await request(connection, left)
                found.done.update(outcomes.done)
                found.to_retry.update(outcomes.to_retry)
                return Outcomes({group_id: None}, {})

            raised((await self._each_coordinated(what, [group_id], KeyType.GROUP, once))[group_id])
            return found

        return await self._each(what, keys, attempt)

    async def _request_all(
        self,
        groups: Mapping[BrokerT, list[KeyT]],
        request: Callable[[BrokerT, list[KeyT]], Awaitable[Outcomes]],
        into: Outcomes,
    ) -> None:
        """Send each broker the request for its keys, all concurrently.

        A failure of one broker does not affect the others.
        """

        async def one(broker: BrokerT, group: list[KeyT]) -> None:
            try:
                found = await request(broker, group)
            except ClientError as error:
                self._note(group, error, into)
            else:
                into.done.update(found.done)
                into.to_retry.update(found.to_retry)

        async with joining_nursery() as nursery:
            for broker, group in groups.items():
                nursery.start_soon(one, broker, group)

    async def _each_broker(
        self, what: str, request: Callable[[int], Awaitable[list[ItemT]]]
    ) -> dict[int, list[ItemT] | ClientError]:
        """The items of each live broker, or its error. All requests run concurrently.

        All are repeated while one has a retriable error: its items may have moved to another
        broker.
        """
        by_node: dict[int, list[ItemT] | ClientError] = {}

        async def attempt() -> None:
            view = await self._client.refresh([])
            now: dict[int, list[ItemT] | ClientError] = {}

            async def one(node_id: int) -> None:
                try:
                    now[node_id] = await request(node_id)
                except ClientError as error:
                    now[node_id] = error

            async with joining_nursery() as nursery:
                for node_id in sorted(view.brokers):
                    nursery.start_soon(one, node_id)
            by_node.clear()
            by_node.update(sorted(now.items()))
            failures = [outcome for outcome in now.values() if isinstance(outcome, ClientError)]
            if failures and all(
                self._is_worth_retrying(each) or each.code is ErrorCode.BROKER_NOT_AVAILABLE
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


def items_of_all(by_node: Mapping[int, list[ItemT] | ClientError]) -> list[ItemT]:
    """The items of all brokers, in the order of their ids.

    Raises the error of a broker that failed; final errors come first.
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


def outcomes_of(
    rows: Iterable[tuple[Any, Any, str | None, Any]], *, kind: str = "topic"
) -> Outcomes:
    """Sort rows of (key, row with an error code, message, result) into results and keys to
    retry. `kind`: what keys of type str name.
    """
    outcomes = Outcomes({}, {})
    for key, row, message, result in rows:
        if not row.error_code:
            outcomes.done[key] = result
            continue
        subject = f"{kind} {key!r}" if isinstance(key, str) else _subject(key)
        error = (
            does_not_exist(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, subject)
            if row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else error_from_wire(row.error_code, subject, message)
        )
        is_general = error.remedy == REMEDIES.get(ErrorCode.INVALID_CONFIG)
        if error.code is ErrorCode.INVALID_CONFIG and is_general and isinstance(key, Resource):
            error.remedy = _config_remedy(key)
        is_retriable = error.retriable and error.code not in _FINAL
        (outcomes.to_retry if is_retriable else outcomes.done)[key] = error
    return outcomes


def _config_remedy(resource: Resource) -> str:
    """The command that lists the keys of a resource."""
    kind = resource.type.name.lower()
    if kind in ("topic", "group"):
        return f"list its keys with `mqctl {kind} config get {resource.name} --explain`"
    return REMEDIES[ErrorCode.INVALID_CONFIG]


def _subject(key: Any) -> str:
    """The object of a request in an error message."""
    if isinstance(key, Resource):
        return f"{key.type.name.lower()} {key.name!r}"
    if isinstance(key, TopicPartition):
        return f"partition {key}"
    if isinstance(key, Acl):
        return text_of_acl(key)
    if isinstance(key, AclFilter):
        return "deleting ACLs"
    return text_of_entity(key) if isinstance(key, tuple) else str(key)


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
