"""Exceptions that leave a block of the client: the user's own or one ClientError, never a group of
the client's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from mqd.client.cluster import ClusterClient, connect
from mqd.client.consumer import open_consumer
from mqd.client.errors import ClientCrashed, ClientError
from mqd.client.group_consumer import open_group_consumer
from mqd.client.nurseries import joining_nursery, lasting_nursery, on_crash, owned_nursery
from mqd.client.producer import open_producer
from mqd.client.ranges import open_range
from mqd.client.raw_producer import open_raw_producer
from mqd.client.transactional import open_transactional_producer
from mqd.errors import ErrorCode
from mqd.types import TopicPartition
from tests.client.fake import FakeCluster

A0 = TopicPartition("a", 0)
REFUSED = ClientError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "no")


@asynccontextmanager
async def arrow_producing(client: ClusterClient) -> AsyncIterator[Any]:
    pytest.importorskip("pyarrow")
    from mqd.client.arrow import open_arrow_producer

    async with open_arrow_producer(client) as producer:
        yield producer


@asynccontextmanager
async def connecting(client: ClusterClient) -> AsyncIterator[ClusterClient]:
    async with connect([("fake", 9001)], network=client._network) as another:
        yield another


@asynccontextmanager
async def transaction(client: ClusterClient) -> AsyncIterator[Any]:
    async with open_transactional_producer(client, "t") as producer, producer.transaction():
        yield producer


@asynccontextmanager
async def nested(client: ClusterClient) -> AsyncIterator[Any]:
    async with (
        connecting(client) as another,
        open_group_consumer(another, "outer", ["a"]),
        transaction(another) as producer,
        open_consumer(another, {A0: "beginning"}),
    ):
        yield producer


Opener = Callable[[ClusterClient], AbstractAsyncContextManager[Any]]
OPENERS: dict[str, Opener] = {
    "connect": connecting,
    "producer": open_producer,
    "transactional producer": lambda client: open_transactional_producer(client, "t"),
    "transaction": transaction,
    "raw producer": open_raw_producer,
    "arrow producer": arrow_producing,
    "consumer": lambda client: open_consumer(client, {A0: "beginning"}),
    "classic group": lambda client: open_group_consumer(client, "g", ["a"]),
    "KIP-848 group": lambda client: open_group_consumer(
        client, "g", ["a"], group_protocol="consumer"
    ),
    "range": lambda client: open_range(client, A0, 0, 0),
    "nested": nested,
}
each_block = pytest.mark.parametrize("name", OPENERS)


@pytest.fixture
async def client(nursery: trio.Nursery) -> AsyncIterator[ClusterClient]:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    async with connect([("fake", 9001)], network=cluster) as connected:
        yield connected


@asynccontextmanager
async def opened_with_nursery(name: str, client: ClusterClient) -> AsyncIterator[trio.Nursery]:
    """A block, and the nursery of its background tasks."""
    around = len(trio.lowlevel.current_task().child_nurseries)
    async with OPENERS[name](client) as opened:
        found = getattr(getattr(opened, "_sender", opened), "_nursery", None)
        yield (
            found
            if isinstance(found, trio.Nursery)
            else trio.lowlevel.current_task().child_nurseries[around]
        )


async def crash(error: BaseException) -> None:
    raise error


@each_block
@pytest.mark.parametrize(
    "raised",
    [
        KeyError("mine"),
        SystemExit(3),
        KeyboardInterrupt(),
        ExceptionGroup("mine", [KeyError(), OSError()]),
    ],
)
async def test_the_user_s_exception_leaves_unchanged(
    client: ClusterClient, name: str, raised: BaseException
) -> None:
    left: BaseException | None = None
    try:
        async with OPENERS[name](client):
            raise raised
    except BaseException as error:
        left = error
    assert left is raised


@each_block
async def test_a_cancellation_leaves_as_one_cancelled(client: ClusterClient, name: str) -> None:
    left: BaseException | None = None
    with trio.CancelScope() as scope:
        try:
            async with OPENERS[name](client):
                scope.cancel()
                await trio.sleep_forever()
        except BaseException as error:
            left = error
            raise
    assert isinstance(left, trio.Cancelled) and scope.cancelled_caught


@each_block
async def test_a_cancellation_at_the_end_of_a_block_leaves_as_one_cancelled(
    client: ClusterClient, name: str
) -> None:
    left: BaseException | None = None
    with trio.CancelScope() as scope:
        try:
            async with OPENERS[name](client):
                scope.cancel()
            await trio.lowlevel.checkpoint()
        except BaseException as error:
            left = error
            raise
    assert isinstance(left, trio.Cancelled) and scope.cancelled_caught


@each_block
async def test_a_crash_of_a_task_is_one_typed_error_with_its_cause(
    client: ClusterClient, name: str
) -> None:
    bug = ZeroDivisionError("a bug")
    with pytest.raises(ClientCrashed, match="ZeroDivisionError: a bug") as caught:
        async with opened_with_nursery(name, client) as ours:
            ours.start_soon(crash, bug)
            await trio.sleep_forever()
    assert caught.value.__cause__ is bug and caught.value.remedy


@each_block
async def test_of_several_failed_tasks_one_client_error_leaves(
    client: ClusterClient, name: str
) -> None:
    with pytest.raises(ClientError) as caught:
        async with opened_with_nursery(name, client) as ours:
            for error in (ZeroDivisionError("a bug"), REFUSED, OSError()):
                ours.start_soon(crash, error)
            await trio.sleep_forever()
    assert caught.value is REFUSED


@each_block
async def test_the_users_exception_wins_over_a_crash(client: ClusterClient, name: str) -> None:
    mine = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with opened_with_nursery(name, client) as ours:
            ours.start_soon(crash, ZeroDivisionError("a bug"))
            raise mine
    assert caught.value is mine


@each_block
async def test_a_crash_in_a_block_that_is_cancelled_is_not_lost(
    client: ClusterClient, name: str
) -> None:
    with trio.CancelScope() as scope, pytest.raises(ClientCrashed):
        async with opened_with_nursery(name, client) as ours:
            ours.start_soon(crash, ZeroDivisionError("a bug"))
            scope.cancel()
            await trio.sleep_forever()


@each_block
async def test_the_users_own_nursery_in_a_block(client: ClusterClient, name: str) -> None:
    """Its group is the user's; a crash of the client cancels it and leaves alone."""
    mine = KeyError("mine"), OSError("mine")
    with pytest.raises(ExceptionGroup) as group:
        async with OPENERS[name](client), trio.open_nursery() as tasks:
            for error in mine:
                tasks.start_soon(crash, error)
    assert set(group.value.exceptions) == set(mine)
    with pytest.raises(ClientCrashed):
        async with opened_with_nursery(name, client) as ours, trio.open_nursery() as tasks:
            tasks.start_soon(trio.sleep_forever)
            tasks.start_soon(trio.sleep_forever)
            ours.start_soon(crash, ZeroDivisionError("a bug"))


@pytest.mark.parametrize("opens", [owned_nursery, lasting_nursery])
async def test_simultaneous_failures_of_user_tasks_and_client_tasks(
    opens: Callable[[], AbstractAsyncContextManager[trio.Nursery]],
) -> None:
    """The user's group leaves, without the cancellation of its other tasks that the client's crash
    caused; a note names the crash.
    """
    mine = KeyError("mine")

    async def fail_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise mine

    with pytest.raises(ExceptionGroup) as caught:
        async with opens() as ours, trio.open_nursery() as tasks:
            tasks.start_soon(fail_when_cancelled)
            tasks.start_soon(trio.sleep_forever)
            await trio.testing.wait_all_tasks_blocked()
            ours.start_soon(crash, ZeroDivisionError("a bug"))
    assert caught.value.exceptions == (mine,)
    assert any("ZeroDivisionError" in note for note in caught.value.__notes__)


async def test_an_interrupt_in_a_background_task_leaves_unchanged() -> None:
    with pytest.raises(KeyboardInterrupt):
        async with owned_nursery() as ours:
            ours.start_soon(crash, ZeroDivisionError())
            ours.start_soon(crash, KeyboardInterrupt())
            await trio.sleep_forever()


async def test_a_call_to_several_brokers_raises_one_error() -> None:
    with pytest.raises(ClientCrashed):
        async with joining_nursery() as tasks:
            tasks.start_soon(crash, ZeroDivisionError())
            tasks.start_soon(trio.sleep_forever)
    with pytest.raises(KeyError):
        async with joining_nursery() as tasks:
            raise KeyError


async def test_each_bug_is_reported_whatever_leaves_the_block() -> None:
    """A simulation checks them: programs under test catch ClientError."""
    defects: list[BaseException] = []
    watching = on_crash.set(defects.append)
    try:
        with pytest.raises(KeyError):
            async with owned_nursery() as ours:
                ours.start_soon(crash, ZeroDivisionError())
                ours.start_soon(crash, REFUSED)
                raise KeyError
        with pytest.raises(ClientCrashed):
            async with joining_nursery() as ours:
                ours.start_soon(crash, OSError())
    finally:
        on_crash.reset(watching)
    assert [type(each) for each in defects] == [ZeroDivisionError, OSError]
