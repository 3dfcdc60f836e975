"""A client of a cluster: its connections, its view of the partition leaders, and its retries.

`connect` opens one for the length of a block; producers, consumers and Admin borrow it. A
connection opens at its first use, one for each address, and is dropped when it breaks. Every wait
is bounded: a connection attempt by `connect_timeout_s`, a request by `request_timeout_s`, a retried
call by its deadline.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio

from mqd.client.arguments import check_above_zero, check_number, check_text, shown
from mqd.client.backoff import backoff_s
from mqd.client.bootstrap import addresses_of
from mqd.client.errors import (
    ClientClosed,
    ClientError,
    ConnectionBroken,
    DeadlineExceeded,
    PeerUnreachable,
    TlsHandshakeFailed,
    does_not_exist,
    error_from_wire,
    invalid_type,
)
from mqd.client.keyword_options import checks_options
from mqd.client.login import Login
from mqd.client.metadata import BrokerInfo, ClusterView, TopicInfo
from mqd.client.nurseries import joining_nursery, lasting_nursery
from mqd.client.peer import PeerConnection
from mqd.client.peer_opening import start_peer
from mqd.client.secure_network import secured
from mqd.client.security import Security
from mqd.errors import ErrorCode, MqError, some_of
from mqd.io.clock import Clock, SystemClock
from mqd.io.entropy import Entropy, RandomEntropy
from mqd.io.net import Network, OsNetwork
from mqd.protocol.apis import by_key
from mqd.protocol.schema import Api
from mqd.types import TopicPartition

ResultT = TypeVar("ResultT")

CONNECT_TIMEOUT_S = 10.0
"""Kafka's socket.connection.setup.timeout.ms.

A frozen broker still accepts connections, and never responds.
"""
HEAD_START_S = 0.5
"""If any broker can respond, the client tries the next one after this time."""
_METADATA = 3
_SEE_LOG = "the log of the broker has the reason"
_NOT_PLAINTEXT = (
    "if this listener requires a login or TLS: give `security`, or set security.protocol"
)
_NO_SASL = (
    f"the listener may require SASL: set security.protocol=SASL_SSL and sasl.mechanism; {_SEE_LOG}"
)
_NO_TLS = f"the listener may require TLS: set security.protocol=SASL_SSL; {_SEE_LOG}"
_NAMED_MAX = 3
_NAME_BYTES_MAX = 32767


def api(key: int) -> Api:
    """The declaration of an API that this client needs."""
    found = by_key(key)
    assert found is not None, key
    return found


def check_client(client: object) -> None:
    """The client of `connect`."""
    if not isinstance(client, ClusterClient):
        remedy = "give the client of `async with connect(...) as client`"
        raise invalid_type(f"client is {shown(client)}", remedy)


class _Opening:
    """Attempts to connect to one place, one at a time. `failed` counts those that failed, `failure`
    is the last one's."""

    __slots__ = ("failed", "failure", "lock")

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.failed = 0
        self.failure: ClientError | None = None


class ClusterClient:
    """Requests to any broker, to a given broker, to the controller or to a partition's leader. Made
    by `connect`.
    """

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        nursery: trio.Nursery,
        *,
        network: Network,
        entropy: Entropy,
        clock: Clock,
        client_id: str,
        request_timeout_s: float,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        login: Login | None = None,
        security: Security | None = None,
    ) -> None:
        assert bootstrap
        self.view = ClusterView()
        self.client_id = client_id
        self.request_timeout_s = request_timeout_s
        self._connect_timeout_s = min(connect_timeout_s, request_timeout_s)
        self.entropy = entropy
        self.clock = clock
        """The clock of this client and its producers, which take timestamps from it."""
        self._bootstrap = list(bootstrap)
        self._nursery = nursery
        self._network = network
        self._login = login
        self._security = security or Security()
        self._connections: dict[tuple[str, int, str], PeerConnection] = {}
        self._opening: dict[tuple[str, int, str], _Opening] = {}
        self._refreshing = trio.Lock()
        self._closed = False

    def close(self) -> None:
        """Send nothing from now on: each later call raises ClientClosed."""
        self._closed = True

    def check_open(self) -> None:
        """Raises ClientClosed after the end of the block."""
        if self._closed:
            raise ClientClosed

    # -- connections

    async def connection_to(self, address: tuple[str, int], *, purpose: str = "") -> PeerConnection:
        """The live connection to an address; opens one if there is none. Raises PeerUnreachable.
        Responses come in order. So a caller whose requests wait at the broker, as a fetch does,
        passes a `purpose` of its own. It gets its own connection. Concurrent callers share one
        attempt.
        """
        self.check_open()
        place = (*address, purpose)
        found = self._live(place)
        if found is not None:
            return found
        opening = self._opening.setdefault(place, _Opening())
        failed_before = opening.failed
        async with opening.lock:
            found = self._live(place)
            if found is not None:
                return found
            if opening.failed > failed_before and opening.failure is not None:
                raise opening.failure.copy()
            host, port = address
            try:
                found = await start_peer(
                    self._nursery,
                    self._network,
                    host,
                    port,
                    client_id=self.client_id,
                    timeout_s=self._connect_timeout_s,
                    login=self._login,
                )
            except ClientError as error:
                opening.failed += 1
                opening.failure = self._with_remedy(error, address)
                raise opening.failure.copy() from None
            self._connections[place] = found
            return found

    def _with_remedy(self, error: ClientError, address: tuple[str, int]) -> ClientError:
        """The failure to connect to a broker of the cluster's metadata, with a remedy: the
        addresses of the user are right. One that is not known may expect another protocol.
        """
        brokers = self.view.brokers.values()
        broker = next((each for each in brokers if each.address == address), None)
        is_unreachable = isinstance(error, PeerUnreachable) and not isinstance(
            error, TlsHandshakeFailed
        )
        if broker is not None and is_unreachable:
            is_silent = error.code is ErrorCode.REQUEST_TIMED_OUT
            error.remedy = f"start broker {broker.node_id}, or see `mqctl cluster health`"
            if is_silent:
                why = f"broker {broker.node_id} is frozen, overloaded or cut off"
                error.remedy = f"{why}: see its log, and `mqctl cluster health`"
        if broker is None and isinstance(error, ConnectionBroken) and error.ended_by:
            return self._ended_early(error)
        return error

    def _ended_early(self, error: ConnectionBroken) -> ConnectionBroken:
        """The error if a broker ends the first connection before the response to its first request.
        A listener may do this if it expects another protocol.
        """
        security = self._security
        if security.has_sasl:
            remedy = _SEE_LOG if security.has_tls else _NO_TLS
        else:
            remedy = _NO_SASL if security.has_tls else _NOT_PLAINTEXT
        return ConnectionBroken(
            f"{error.ended_by} closed the connection during authentication",
            sent=False,
            opening=True,
            remedy=remedy,
        )

    def close_connections(self, purpose: str) -> None:
        """Close the connections that were opened for `purpose`."""
        for place in [place for place in self._connections if place[2] == purpose]:
            self._connections.pop(place).close()
            self._opening.pop(place, None)

    def _live(self, place: tuple[str, int, str]) -> PeerConnection | None:
        found = self._connections.get(place)
        if found is not None and found.failure is not None:
            del self._connections[place]
            return None
        return found

    async def any_connection(self) -> PeerConnection:
        """A live connection if there is one, else to the first address that responds: known
        brokers, then bootstrap addresses. A silent one does not delay the others: after a head
        start the client tries the next one, too.
        """
        self.check_open()
        for place in list(self._connections):
            if not place[2] and (found := self._live(place)) is not None:
                return found
        known = [broker.address for broker in self.view.brokers.values()]
        tried = list(dict.fromkeys(known + self._bootstrap))
        start = self.entropy.below(len(known)) if known else 0
        failures: dict[tuple[str, int], ClientError] = {}
        connected: list[PeerConnection] = []

        async def attempt(address: tuple[str, int], ended: trio.Event) -> None:
            try:
                connected.append(await self.connection_to(address))
                nursery.cancel_scope.cancel()
            except ClientError as error:
                failures[address] = error
            ended.set()

        async with joining_nursery() as nursery:
            for address in tried[start:] + tried[:start]:
                ended = trio.Event()
                nursery.start_soon(attempt, address, ended)
                with trio.move_on_after(HEAD_START_S):
                    await ended.wait()
        if connected:
            return connected[0]
        raise _failure_of_all(failures)

    async def connection_to_leader(self, node_id: int) -> PeerConnection:
        """The connection to a broker that leads a partition in the view.

        LEADER_NOT_AVAILABLE if a newer view lacks that broker.
        """
        try:
            return await self.connection_to_broker(node_id)
        except ClientError as error:
            if error.code is not ErrorCode.BROKER_NOT_AVAILABLE:
                raise
            raise ClientError(ErrorCode.LEADER_NOT_AVAILABLE, error.message) from error

    async def connection_to_broker(self, node_id: int, *, purpose: str = "") -> PeerConnection:
        """Raises ClientError(BROKER_NOT_AVAILABLE) for a broker that is not in the view."""
        broker = self.view.brokers.get(node_id)
        if broker is None:
            known = ", ".join(map(str, sorted(self.view.brokers)))
            raise ClientError(
                ErrorCode.BROKER_NOT_AVAILABLE,
                f"broker {node_id} is not among the live brokers {known}",
            )
        return await self.connection_to(broker.address, purpose=purpose)

    # -- requests: one attempt

    async def request(
        self,
        connection: PeerConnection,
        key: int,
        body: Mapping[str, Any],
        *,
        at_most: int | None = None,
    ) -> Any:
        """One attempt on one connection, bounded by `request_timeout_s`."""
        self.check_open()
        declaration = api(key)
        version = connection.version_of(declaration, at_most=at_most)
        return await connection.request(
            declaration, body, version, timeout_s=self.request_timeout_s
        )

    async def request_any(self, key: int, body: Mapping[str, Any]) -> Any:
        return await self.request(await self.any_connection(), key, body)

    async def request_broker(self, node_id: int, key: int, body: Mapping[str, Any]) -> Any:
        return await self.request(await self.connection_to_broker(node_id), key, body)

    async def request_leader(self, node_id: int, key: int, body: Mapping[str, Any]) -> Any:
        """As `connection_to_leader` says."""
        return await self.request(await self.connection_to_leader(node_id), key, body)

    async def request_controller(self, key: int, body: Mapping[str, Any]) -> Any:
        """Send a request to the controller in the view, or to any broker if it has none: brokers
        forward such requests.
        """
        controller = self.view.brokers.get(self.view.controller_id)
        if controller is None:
            return await self.request_any(key, body)
        return await self.request(await self.connection_to(controller.address), key, body)

    # -- the view

    async def refresh(
        self, topics: Iterable[str] | None = None, *, create: bool = False, seen: int | None = None
    ) -> ClusterView:
        """Refresh the metadata once. None requests every topic, an empty list only the brokers.
        `create` lets the broker create missing topics if its configuration allows it. With `seen`,
        a generation, nothing is sent if the view is newer already. Raises the errors of the
        attempt.
        """
        names = None if topics is None else list(dict.fromkeys(topics))
        for name in names or ():
            _check_topic(name)
        async with self._refreshing:
            if (
                seen is not None
                and self.view.generation > seen
                and (names is None or all(name in self.view.topics for name in names))
            ):
                return self.view
            connection = await self.any_connection()
            body = {
                "topics": None if names is None else [{"name": name} for name in names],
                "allow_auto_topic_creation": create,
            }
            response = await self.request(connection, _METADATA, body)
            if response.error_code:
                raise error_from_wire(response.error_code, "the view of the cluster")
            self.view = self.view.merge(response, all_topics=names is None)
            return self.view

    async def first_view(self) -> ClusterView:
        """As `refresh` of the brokers, with the first request of a client. A listener with SASL
        ends a connection whose first request is not one of a login.
        """
        try:
            return await self.refresh([])
        except ConnectionBroken as error:
            if not error.ended_by:
                raise
            raise self._ended_early(error) from None

    async def topic(
        self, name: str, *, deadline: float, create: bool = False, unknown_grace_s: float = 0.0
    ) -> TopicInfo:
        """A topic with at least one partition that has a leader; retried until `deadline` (Trio's
        clock). An unknown topic is a final error after `unknown_grace_s`. That is long enough for
        automatic creation, and for a new topic to reach every broker. Raises ClientError with the
        topic's code.
        """
        patience_ends = trio.current_time() + unknown_grace_s

        async def attempt() -> TopicInfo:
            view = await self.refresh([name], create=create)
            topic = view.topics.get(name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
            if topic is None or code:
                error = (
                    does_not_exist(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r}")
                    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    else error_from_wire(code, f"topic {name!r}")
                )
                if (
                    error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    and trio.current_time() >= patience_ends
                ):
                    raise _Final(error)
                raise error
            if not any(partition.leader in view.brokers for partition in topic.partitions):
                raise ClientError(
                    ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name!r}: no partition has a leader"
                )
            return topic

        known = self.view.topics.get(name)
        if (
            known is not None
            and not known.error_code
            and any(each.leader in self.view.brokers for each in known.partitions)
        ):
            return known
        return await self.retry(f"finding topic {name!r}", attempt, deadline=deadline)

    async def leader(self, tp: TopicPartition, *, deadline: float) -> BrokerInfo:
        """The broker that leads `tp`; waits for one until `deadline`. A partition that does not
        exist is an error at once.
        """

        async def attempt() -> BrokerInfo:
            seen = self.view.generation
            await self.topic(tp.topic, deadline=deadline)
            if self.view.partition(tp) is None or self.view.leader_of(tp) is None:
                await self.refresh([tp.topic], seen=seen)
            if self.view.partition(tp) is None:
                raise _Final(
                    does_not_exist(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {tp}")
                )
            found = self.view.leader_of(tp)
            if found is None:
                raise ClientError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {tp} has no leader")
            return found

        return await self.retry(f"finding the leader of {tp}", attempt, deadline=deadline)

    # -- retries

    async def retry(
        self, what: str, attempt: Callable[[], Awaitable[ResultT]], *, deadline: float
    ) -> ResultT:
        """Run `attempt` until it succeeds, fails for good, or `deadline` passes (then
        DeadlineExceeded with the last failure).

        Errors that Kafka calls retriable are retried after 20 ms, 40 ms .. 1 s, each with
        jitter. After a broken connection or NOT_CONTROLLER or NOT_LEADER the view
        is refreshed first.
        """
        for attempts in itertools.count():
            try:
                return await attempt()
            except _Final as final:
                raise final.error from None
            except MqError as error:
                if not error.code.retriable:
                    raise
                failure = error
            pause = backoff_s(attempts, self.entropy.random())
            if trio.current_time() + pause >= deadline:
                raise DeadlineExceeded(
                    f"{what} did not succeed in time; last: {failure.message}", failure
                ) from failure
            await trio.sleep(pause)
            if failure.code in _STALE:
                await self._refresh_brokers()
        raise AssertionError("unreachable")

    async def _refresh_brokers(self) -> None:
        try:
            await self.refresh([])
        except MqError as error:
            if not error.code.retriable:
                raise


def _failure_of_all(failures: Mapping[tuple[str, int], ClientError]) -> ClientError:
    """The error of an attempt to connect to any of several addresses. The same reason stands
    once.
    """
    first, *others = failures.values()
    if not others:
        return first
    reasons = {_without_address(each.message, *at) for at, each in failures.items()}
    if len(reasons) == 1:
        names = some_of([f"{host}:{port}" for host, port in failures], _NAMED_MAX)
        message = f"all {len(failures)} brokers ({names}): {reasons.pop()}"
    else:
        message = "none of the brokers can be reached: " + "; ".join(
            each.message for each in failures.values()
        )
    codes = {each.code for each in failures.values()}
    code = codes.pop() if len(codes) == 1 else ErrorCode.NETWORK_EXCEPTION
    return PeerUnreachable(code, message, remedy=first.remedy)


def _without_address(message: str, host: str, port: int) -> str:
    address = f"{host}:{port}"
    return (
        message.removeprefix(f"{address} ")
        .removesuffix(f" at {address}")
        .replace(address, "the address")
    )


def _check_topic(name: object) -> None:
    """Reject what the protocol cannot encode; the broker checks everything else."""
    try:
        if isinstance(name, str) and len(name.encode()) <= _NAME_BYTES_MAX:
            return
    except UnicodeEncodeError:
        pass
    raise ClientError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name!a:.60} is not the name of a topic")


class _Final(Exception):
    """Carries an error out of `retry` although its code is retriable in general."""

    def __init__(self, error: ClientError) -> None:
        self.error = error


_STALE = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)


@checks_options()
@asynccontextmanager
async def connect(
    bootstrap: str | Sequence[tuple[str, int]],
    *,
    client_id: str = "mqd",
    request_timeout_s: float = 30.0,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    wait_s: float = 0.0,
    security: Security | None = None,
    network: Network | None = None,
    entropy: Entropy | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[ClusterClient]:
    """A ClusterClient for the length of a block, with a first view of the brokers.

    `bootstrap` is "host:port[,host:port..]" or addresses. Raises PeerUnreachable if none of them
    responds; with `wait_s`, only after retries for that time. TlsHandshakeFailed is a
    PeerUnreachable. `security`: TLS and login; raises AuthenticationFailed if the login fails.
    """
    addresses = addresses_of(bootstrap)
    check_text("client_id", client_id, "billing")
    check_above_zero("request_timeout_s", request_timeout_s)
    check_above_zero("connect_timeout_s", connect_timeout_s)
    check_number("wait_s", wait_s, 0)
    if not isinstance(security, Security | None):
        raise invalid_type(f"security is {shown(security)}", "give a Security, or None")
    entropy = entropy if entropy is not None else RandomEntropy()
    login = Login(security, entropy) if security is not None and security.has_sasl else None
    async with lasting_nursery() as nursery:
        client = ClusterClient(
            addresses,
            nursery,
            network=secured(network if network is not None else OsNetwork(), security),
            entropy=entropy,
            clock=clock if clock is not None else SystemClock(),
            client_id=client_id,
            request_timeout_s=request_timeout_s,
            connect_timeout_s=connect_timeout_s,
            login=login,
            security=security,
        )
        if wait_s > 0:
            await client.retry(
                "connecting", client.first_view, deadline=trio.current_time() + wait_s
            )
        else:
            await client.first_view()
        try:
            yield client
        finally:
            client.close()
