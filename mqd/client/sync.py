"""The client without Trio: `with connect("127.0.0.1:9092") as client`. For scripts, notebooks and Spark workers.

One background thread runs Trio; every call hands a coroutine function to it and blocks. The thread ends with the
`with` block, whatever ended it, and everything that was opened inside is closed first. Calls may come from several
threads, but not from inside a Trio program (use `cluster.connect` there).
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import trio

from mqd.client import admin as admin_module, cluster, consumer as consumer_module, producer as producer_module
from mqd.client.descriptions import NewTopic
from mqd.client.errors import ClientError
from mqd.client.fetcher import FetchedBatch
from mqd.client.producer import Delivery, RecordMetadata
from mqd.types import TopicPartition

ResultT = TypeVar("ResultT")
ThingT = TypeVar("ThingT")
P = ParamSpec("P")


class _Loop:
    """The background thread and its Trio run."""

    def __init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="mqd-client", daemon=True)
        self._started = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._failure: BaseException | None = None
        self._thread.start()
        self._started.wait()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._token = trio.lowlevel.current_trio_token()
            self._started.set()
            await trio.sleep_forever()

    def call(self, function: Callable[..., Awaitable[ResultT]], *args: Any) -> ResultT:
        """Run `function` in the loop and wait for its result."""
        if self._token is None:
            raise RuntimeError("the client is closed") from self._failure
        try:
            return trio.from_thread.run(function, *args, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise RuntimeError("the client is closed") from self._failure

    @contextmanager
    def entered(self, manager: AbstractAsyncContextManager[ThingT]) -> Iterator[ThingT]:
        """An async context manager, entered and left in one task of the loop."""
        held = _Held(manager)
        thing = self.call(self._hold, held)
        try:
            yield thing
        except BaseException as error:
            self.call(held.leave, error)
            raise
        else:
            self.call(held.leave, None)

    async def _hold(self, held: _Held[ThingT]) -> ThingT:
        assert self._nursery is not None
        self._nursery.start_soon(held.run)
        await held.entered.wait()
        if held.failure is not None:
            raise held.failure
        assert held.thing is not None
        return held.thing

    def close(self) -> None:
        """Cancel what runs and wait for the thread to end."""
        if self._token is not None and self._nursery is not None:
            try:
                trio.from_thread.run_sync(self._nursery.cancel_scope.cancel, trio_token=self._token)
            except trio.RunFinishedError:
                pass
        self._token = None
        self._thread.join()


class _Held(Generic[ThingT]):
    """One async context manager that a task of the loop holds open."""

    def __init__(self, manager: AbstractAsyncContextManager[ThingT]) -> None:
        self._manager = manager
        self.entered = trio.Event()
        self.thing: ThingT | None = None
        self.failure: BaseException | None = None
        self._leave = trio.Event()
        self._left = trio.Event()
        self._reason: BaseException | None = None

    async def run(self) -> None:
        try:
            async with self._manager as thing:
                self.thing = thing
                self.entered.set()
                await self._leave.wait()
                if self._reason is not None:
                    raise _Leaving
        except _Leaving:
            pass
        except Exception as error:
            self.failure = error
        finally:
            self.entered.set()
            self._left.set()

    async def leave(self, reason: BaseException | None) -> None:
        self._reason = reason
        self._leave.set()
        await self._left.wait()
        if self.failure is not None and reason is None:
            raise self.failure


class _Leaving(Exception):
    """The block of the user ended with an exception: so does the manager's, without its finishing touches (a flush)."""


def _blocking(
    method: Callable[Concatenate[Any, P], Awaitable[ResultT]],
) -> Callable[Concatenate[Any, P], ResultT]:
    """The same method, blocking, of a face that holds its async twin in `_twin` and its loop in `_loop`."""

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        async def there() -> ResultT:
            return await method(self._twin, *args, **kwargs)

        result: ResultT = self._loop.call(there)
        return result

    call.__name__ = method.__name__
    call.__doc__ = method.__doc__
    return call


class BlockingAdmin:
    """`Admin` without await: the same methods, arguments, results and errors."""

    def __init__(self, loop: _Loop, twin: admin_module.Admin) -> None:
        self._loop = loop
        self._twin = twin

    create_topics = _blocking(admin_module.Admin.create_topics)
    create_topic = _blocking(admin_module.Admin.create_topic)
    delete_topics = _blocking(admin_module.Admin.delete_topics)
    delete_topic = _blocking(admin_module.Admin.delete_topic)
    add_partitions = _blocking(admin_module.Admin.add_partitions)
    list_topics = _blocking(admin_module.Admin.list_topics)
    describe_topics = _blocking(admin_module.Admin.describe_topics)
    describe_configs = _blocking(admin_module.Admin.describe_configs)
    alter_configs = _blocking(admin_module.Admin.alter_configs)
    list_offsets = _blocking(admin_module.Admin.list_offsets)
    delete_records = _blocking(admin_module.Admin.delete_records)
    describe_producers = _blocking(admin_module.Admin.describe_producers)
    describe_cluster = _blocking(admin_module.Admin.describe_cluster)
    describe_log_dirs = _blocking(admin_module.Admin.describe_log_dirs)
    describe_partitions = _blocking(admin_module.Admin.describe_partitions)
    describe_quorum = _blocking(admin_module.Admin.describe_quorum)
    elect_leaders = _blocking(admin_module.Admin.elect_leaders)
    alter_partition_reassignments = _blocking(admin_module.Admin.alter_partition_reassignments)
    list_partition_reassignments = _blocking(admin_module.Admin.list_partition_reassignments)
    unregister_broker = _blocking(admin_module.Admin.unregister_broker)


class BlockingDelivery:
    """A record on its way."""

    def __init__(self, loop: _Loop, twin: Delivery) -> None:
        self._loop = loop
        self._twin = twin

    def is_done(self) -> bool:
        return self._twin.is_done()

    wait = _blocking(Delivery.wait)


class BlockingProducer:
    """`Producer` without await. `send` waits for each record; `enqueue` many and then `flush` is faster by far."""

    def __init__(self, loop: _Loop, twin: producer_module.Producer) -> None:
        self._loop = loop
        self._twin = twin

    send = _blocking(producer_module.Producer.send)
    flush = _blocking(producer_module.Producer.flush)

    def enqueue(self, *args: Any, **kwargs: Any) -> BlockingDelivery:
        """As `Producer.enqueue`."""
        return BlockingDelivery(self._loop, _enqueue(self, *args, **kwargs))


_enqueue = _blocking(producer_module.Producer.enqueue)


class BlockingConsumer:
    """`Consumer` without await: iterate over batches, or take the `next` one."""

    def __init__(self, loop: _Loop, twin: consumer_module.Consumer) -> None:
        self._loop = loop
        self._twin = twin

    def next(self, timeout_s: float | None = None) -> FetchedBatch | None:
        """The next batch; None at the end, and after `timeout_s` without one."""

        async def there() -> FetchedBatch | None:
            if timeout_s is None:
                return await self._twin.next()
            with trio.move_on_after(timeout_s):
                return await self._twin.next()
            return None

        return self._loop.call(there)

    def __iter__(self) -> Iterator[FetchedBatch]:
        while (batch := self.next()) is not None:
            yield batch

    def assignment(self) -> list[TopicPartition]:
        return self._twin.assignment()

    def position(self, tp: TopicPartition) -> int:
        """The offset that is read next."""
        return self._twin.position(tp)

    def high_watermark(self, tp: TopicPartition) -> int:
        """Where the readable log ended at the last answer; -1 before the first."""
        return self._twin.high_watermark(tp)

    seek = _blocking(consumer_module.Consumer.seek)


class BlockingClient:
    """`ClusterClient` without await. Made by `connect`."""

    def __init__(self, loop: _Loop, twin: cluster.ClusterClient, *, timeout_s: float) -> None:
        self._loop = loop
        self._twin = twin
        self.admin = BlockingAdmin(loop, admin_module.Admin(twin, timeout_s=timeout_s))

    @contextmanager
    def producer(self, **options: Any) -> Iterator[BlockingProducer]:
        """A producer for the length of a block; options as of `open_producer`."""
        with self._loop.entered(producer_module.open_producer(self._twin, **options)) as twin:
            yield BlockingProducer(self._loop, twin)

    @contextmanager
    def consumer(self, start: Mapping[TopicPartition, consumer_module.Place], **options: Any) -> Iterator[BlockingConsumer]:
        """A consumer for the length of a block; options as of `open_consumer`."""
        with self._loop.entered(consumer_module.open_consumer(self._twin, start, **options)) as twin:
            yield BlockingConsumer(self._loop, twin)


@contextmanager
def connect(bootstrap: str | Sequence[tuple[str, int]], *, timeout_s: float = 30.0, **options: Any) -> Iterator[BlockingClient]:
    """A BlockingClient for the length of a block; options as of `cluster.connect`. `timeout_s` bounds each administrative call."""
    loop = _Loop()
    try:
        with loop.entered(cluster.connect(bootstrap, **options)) as twin:
            yield BlockingClient(loop, twin, timeout_s=timeout_s)
    finally:
        loop.close()


__all__ = ["BlockingAdmin", "BlockingClient", "BlockingConsumer", "BlockingDelivery", "BlockingProducer", "ClientError", "NewTopic"]
__all__ += ["RecordMetadata", "connect"]
