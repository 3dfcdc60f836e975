"""The client without Trio: `with connect("127.0.0.1:9092") as client`. For scripts, notebooks and Spark workers.

One background thread runs Trio; every call hands a coroutine function to it and blocks. The thread ends with the
`with` block, whatever ended it, and everything that was opened inside is closed first, also when a second Ctrl-C does not wait
for that. Calls may come from several threads, but not from inside a Trio program (use `cluster.connect` there).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

import trio

from mqd.client import (
    admin as admin_module,
    cluster,
    consumer as consumer_module,
    group_consumer as group_consumer_module,
    producer as producer_module,
    ranges as ranges_module,
    raw_producer as raw_producer_module,
    transactional as transactional_module,
)
from mqd.client.descriptions import NewTopic
from mqd.client.errors import ClientError
from mqd.client.fetcher import ARROW_ROWS_MAX, FetchedBatch
from mqd.client.group import GroupMetadata
from mqd.client.producer import Delivery, RecordMetadata
from mqd.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from mqd.client.arrow import ArrowBatches, ArrowProducer

ResultT = TypeVar("ResultT")
ThingT = TypeVar("ThingT")
ReaderT = TypeVar("ReaderT", bound="_Reads")
P = ParamSpec("P")


class _Loop:
    """The background thread and its Trio run."""

    def __init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="mqd-client", daemon=True)
        self._started = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._failure: BaseException | None = None
        self._open: list[_OpenManager[Any]] = []
        """What was opened and is not left yet, the latest last."""
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
        try:
            if self._token is not None:
                return trio.from_thread.run(function, *args, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            pass
        raise RuntimeError("the client is closed: its block has ended. Use it inside of the block, or connect again") from self._failure

    @contextmanager
    def entered(self, manager: AbstractAsyncContextManager[ThingT], *, last: bool = False) -> Iterator[ThingT]:
        """An async context manager, entered and left in one task of the loop. With `last`, whatever is still open is left before it: a
        second Ctrl-C may have gone past it."""
        opened = _OpenManager(manager)
        reason: BaseException | None = None
        try:
            yield self.call(self._enter, opened)
        except BaseException as error:
            reason = error
            raise
        finally:
            self.call(self._leave, opened, reason, last)

    async def _enter(self, opened: _OpenManager[ThingT]) -> ThingT:
        assert self._nursery is not None
        self._open.append(opened)
        self._nursery.start_soon(self._run_manager, opened)
        await opened.entered.wait()
        if opened.failure is not None:
            raise opened.failure
        if opened.thing is None:
            raise _Leaving
        return opened.thing

    async def _run_manager(self, opened: _OpenManager[Any]) -> None:
        try:
            await opened.run()
        finally:
            self._open.remove(opened)

    async def _leave(self, opened: _OpenManager[Any], reason: BaseException | None, last: bool) -> None:
        for other in [each for each in reversed(self._open) if last and each is not opened]:
            await other.leave(reason or _Leaving())
        await opened.leave(reason)

    def close(self) -> None:
        """Cancel what runs and wait for the thread to end."""
        if self._token is not None and self._nursery is not None:
            try:
                trio.from_thread.run_sync(self._nursery.cancel_scope.cancel, trio_token=self._token)
            except trio.RunFinishedError:
                pass
        self._token = None
        self._thread.join()


class _OpenManager(Generic[ThingT]):
    """One async context manager that a task of the loop holds open."""

    def __init__(self, manager: AbstractAsyncContextManager[ThingT]) -> None:
        self._manager = manager
        self.entered = trio.Event()
        self.thing: ThingT | None = None
        self.failure: BaseException | None = None
        self._leave = trio.Event()
        self._left = trio.Event()
        self._entering = trio.CancelScope()
        self._reason: BaseException | None = None

    async def run(self) -> None:
        try:
            with self._entering:
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
        """Raises what the manager raises at its end; what it raised before that, too, for it may be why the block has failed."""
        crashed = self.thing is not None and self._left.is_set() and not self._leave.is_set()
        if not self._leave.is_set():
            self._reason = reason
        self._leave.set()
        if not self.entered.is_set():
            self._entering.cancel()
        await self._left.wait()
        if self.failure is not None and (reason is None or crashed):
            raise self.failure from reason


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
    list_epoch_ends = _blocking(admin_module.Admin.list_epoch_ends)
    describe_producers = _blocking(admin_module.Admin.describe_producers)
    describe_cluster = _blocking(admin_module.Admin.describe_cluster)
    describe_log_dirs = _blocking(admin_module.Admin.describe_log_dirs)
    describe_partitions = _blocking(admin_module.Admin.describe_partitions)
    describe_quorum = _blocking(admin_module.Admin.describe_quorum)
    elect_leaders = _blocking(admin_module.Admin.elect_leaders)
    alter_partition_reassignments = _blocking(admin_module.Admin.alter_partition_reassignments)
    list_partition_reassignments = _blocking(admin_module.Admin.list_partition_reassignments)
    unregister_broker = _blocking(admin_module.Admin.unregister_broker)
    list_groups = _blocking(admin_module.Admin.list_groups)
    describe_groups = _blocking(admin_module.Admin.describe_groups)
    delete_groups = _blocking(admin_module.Admin.delete_groups)
    remove_members = _blocking(admin_module.Admin.remove_members)
    list_group_offsets = _blocking(admin_module.Admin.list_group_offsets)
    alter_group_offsets = _blocking(admin_module.Admin.alter_group_offsets)
    delete_group_offsets = _blocking(admin_module.Admin.delete_group_offsets)
    group_lag = _blocking(admin_module.Admin.group_lag)
    group_lags = _blocking(admin_module.Admin.group_lags)
    list_transactions = _blocking(admin_module.Admin.list_transactions)
    describe_transactions = _blocking(admin_module.Admin.describe_transactions)
    fence_producers = _blocking(admin_module.Admin.fence_producers)
    abort_transaction = _blocking(admin_module.Admin.abort_transaction)
    find_hanging_transactions = _blocking(admin_module.Admin.find_hanging_transactions)


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


class _Reads(Protocol):
    async def next(self) -> FetchedBatch | None: ...

    def arrow_batches(self, columns: Sequence[str] | None, *, rows_max: int) -> ArrowBatches: ...

    def assignment(self) -> list[TopicPartition]: ...


class _BlockingReader(Generic[ReaderT]):
    """What reads batches, without await: iterate over them, or take the `next` one."""

    def __init__(self, loop: _Loop, twin: ReaderT) -> None:
        self._loop = loop
        self._twin = twin

    def next(self, timeout_s: float | None = None) -> FetchedBatch | None:
        """The next batch; None at the end, and after `timeout_s` without one. A member of a group comes back for it within
        `max_poll_interval_ms`."""

        async def there() -> FetchedBatch | None:
            with trio.move_on_after(math.inf if timeout_s is None else timeout_s):
                return await self._twin.next()
            return None

        return self._loop.call(there)

    def __iter__(self) -> Iterator[FetchedBatch]:
        while (batch := self.next()) is not None:
            yield batch

    def arrow_batches(self, columns: Sequence[str] | None = None, *, rows_max: int = ARROW_ROWS_MAX) -> BlockingArrowBatches:
        """The records as Arrow batches in place of `next`, as `Consumer.arrow_batches`. Needs `pip install 'mqd[arrow]'`."""
        return BlockingArrowBatches(self._loop, self._twin.arrow_batches(columns, rows_max=rows_max))

    def assignment(self) -> list[TopicPartition]:
        """What is read: of a group's member, what it owns."""
        return self._twin.assignment()


class BlockingArrowBatches:
    """`ArrowBatches` without await: iterate over it, or take the `next` one."""

    def __init__(self, loop: _Loop, twin: ArrowBatches) -> None:
        self._loop = loop
        self._twin = twin
        self.schema = twin.schema
        """Of every batch."""

    def next(self, timeout_s: float | None = None) -> pa.RecordBatch | None:
        """The next Arrow batch; None at the end, and after `timeout_s` without one."""

        async def there() -> pa.RecordBatch | None:
            with trio.move_on_after(math.inf if timeout_s is None else timeout_s):
                return await self._twin.next()
            return None

        return self._loop.call(there)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (batch := self.next()) is not None:
            yield batch


class BlockingConsumer(_BlockingReader[consumer_module.Consumer]):
    """`Consumer` without await."""

    def position(self, tp: TopicPartition) -> int:
        """The offset that is read next."""
        return self._twin.position(tp)

    def high_watermark(self, tp: TopicPartition) -> int:
        """Where the readable log ended at the last answer; -1 before the first."""
        return self._twin.high_watermark(tp)

    seek = _blocking(consumer_module.Consumer.seek)


class BlockingGroupConsumer(_BlockingReader[group_consumer_module.GroupConsumer]):
    """`GroupConsumer` without await. Callbacks are called in the client's thread while `next` runs: they must not call the client."""


    def positions(self) -> dict[TopicPartition, int]:
        """Offsets to commit when everything that was handed out has been worked on."""
        return self._twin.positions()

    def group_metadata(self) -> GroupMetadata:
        """Who we are in the group, for `send_offsets`."""
        return self._twin.group_metadata()

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these partitions until `resume`."""
        self._loop.call(_as_coroutine(self._twin.pause), *partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._loop.call(_as_coroutine(self._twin.resume), *partitions)

    commit = _blocking(group_consumer_module.GroupConsumer.commit)
    committed = _blocking(group_consumer_module.GroupConsumer.committed)
    rewind = _blocking(group_consumer_module.GroupConsumer.rewind)
    seek = _blocking(group_consumer_module.GroupConsumer.seek)


class BlockingTransactionalProducer(BlockingProducer):
    """`TransactionalProducer` without await."""

    begin = _blocking(transactional_module.TransactionalProducer.begin)
    commit = _blocking(transactional_module.TransactionalProducer.commit)
    abort = _blocking(transactional_module.TransactionalProducer.abort)
    send_offsets = _blocking(transactional_module.TransactionalProducer.send_offsets)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction for the length of a block: committed at its end, aborted when an exception leaves it."""
        twin = self._twin
        assert isinstance(twin, transactional_module.TransactionalProducer)
        with self._loop.entered(twin.transaction()):
            yield


class BlockingRangeReader:
    """`RangeReader` without await: iterate over it, or take the `next` answer."""

    def __init__(self, loop: _Loop, twin: ranges_module.RangeReader) -> None:
        self._loop = loop
        self._twin = twin

    next = _blocking(ranges_module.RangeReader.next)

    def __iter__(self) -> Iterator[ranges_module.FetchedRange]:
        while (fetched := self.next()) is not None:
            yield fetched


class BlockingArrowProducer:
    """`ArrowProducer` without await."""

    def __init__(self, loop: _Loop, twin: ArrowProducer) -> None:
        self._loop = loop
        self._twin = twin

    def send(self, topic: str, rows: pa.Table | pa.RecordBatch) -> int:
        """As `ArrowProducer.send`."""
        return self._loop.call(self._twin.send, topic, rows)

    def flush(self) -> None:
        """Wait until every row is acknowledged. Raises the first failure of the producer."""
        self._loop.call(self._twin.flush)


class BlockingRawProducer:
    """`RawProducer` without await."""

    def __init__(self, loop: _Loop, twin: raw_producer_module.RawProducer) -> None:
        self._loop = loop
        self._twin = twin

    send = _blocking(raw_producer_module.RawProducer.send)
    send_all = _blocking(raw_producer_module.RawProducer.send_all)
    flush = _blocking(raw_producer_module.RawProducer.flush)
    begin = _blocking(raw_producer_module.RawProducer.begin)
    commit = _blocking(raw_producer_module.RawProducer.commit)
    abort = _blocking(raw_producer_module.RawProducer.abort)
    send_offsets = _blocking(raw_producer_module.RawProducer.send_offsets)
    prepare = _blocking(raw_producer_module.RawProducer.prepare)

    @property
    def producer(self) -> tuple[int, int]:
        """Producer id and epoch."""
        return self._twin.producer


def _as_coroutine(function: Callable[..., ResultT]) -> Callable[..., Awaitable[ResultT]]:
    async def call(*args: Any) -> ResultT:
        return function(*args)

    return call


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
    def group_consumer(self, group: str, topics: Sequence[str] = (), **options: Any) -> Iterator[BlockingGroupConsumer]:
        """A member of a group for the length of a block; options as of `open_group_consumer`."""
        with self._loop.entered(group_consumer_module.open_group_consumer(self._twin, group, topics, **options)) as twin:
            yield BlockingGroupConsumer(self._loop, twin)

    def partition_count(self, topic: str, *, timeout_s: float = 60.0, fresh: bool = False) -> int:
        """How many partitions a topic has; brokers that are so configured create a topic that is missing. `fresh` asks them again."""

        async def there() -> int:
            if fresh:
                await self._twin.refresh([topic], create=True)
            deadline = trio.current_time() + timeout_s
            info = await self._twin.topic(topic, deadline=deadline, create=True, unknown_grace_s=5.0)
            return len(info.partitions)

        return self._loop.call(there)

    @contextmanager
    def range_reader(self, tp: TopicPartition, start: int, end: int, **options: Any) -> Iterator[BlockingRangeReader]:
        """A reader of offsets `[start, end)` as raw batches for the length of a block; options as of `open_range`."""
        with self._loop.entered(ranges_module.open_range(self._twin, tp, start, end, **options)) as twin:
            yield BlockingRangeReader(self._loop, twin)

    @contextmanager
    def raw_producer(self, **options: Any) -> Iterator[BlockingRawProducer]:
        """A producer of prebuilt batches for the length of a block; options as of `open_raw_producer`."""
        with self._loop.entered(raw_producer_module.open_raw_producer(self._twin, **options)) as twin:
            yield BlockingRawProducer(self._loop, twin)

    @contextmanager
    def arrow_producer(self, **options: Any) -> Iterator[BlockingArrowProducer]:
        """A producer of Arrow tables for the length of a block; options as of `open_arrow_producer`. Needs `pip install 'mqd[arrow]'`."""
        from mqd.client.arrow import open_arrow_producer

        with self._loop.entered(open_arrow_producer(self._twin, **options)) as twin:
            yield BlockingArrowProducer(self._loop, twin)

    def end_transaction(
        self, transactional_id: str, producer_id: int, producer_epoch: int, commit: bool, *, timeout_s: float = 60.0
    ) -> raw_producer_module.EndedTransaction:
        """As `raw_producer.end_transaction`."""

        async def there() -> raw_producer_module.EndedTransaction:
            return await raw_producer_module.end_transaction(
                self._twin, transactional_id, producer_id, producer_epoch, commit, timeout_s=timeout_s
            )

        return self._loop.call(there)

    @contextmanager
    def transactional_producer(self, transactional_id: str, **options: Any) -> Iterator[BlockingTransactionalProducer]:
        """A producer with transactions for the length of a block; options as of `open_transactional_producer`."""
        with self._loop.entered(transactional_module.open_transactional_producer(self._twin, transactional_id, **options)) as twin:
            yield BlockingTransactionalProducer(self._loop, twin)


@contextmanager
def connect(bootstrap: str | Sequence[tuple[str, int]], *, timeout_s: float = 30.0, **options: Any) -> Iterator[BlockingClient]:
    """A BlockingClient for the length of a block; options as of `cluster.connect`. `timeout_s` bounds each administrative call."""
    loop = _Loop()
    try:
        with loop.entered(cluster.connect(bootstrap, **options), last=True) as twin:
            yield BlockingClient(loop, twin, timeout_s=timeout_s)
    finally:
        loop.close()


__all__ = ["BlockingAdmin", "BlockingClient", "BlockingConsumer", "BlockingDelivery", "BlockingProducer", "ClientError", "NewTopic"]
__all__ += ["BlockingGroupConsumer", "BlockingRangeReader", "BlockingRawProducer", "BlockingTransactionalProducer"]
__all__ += ["RecordMetadata", "connect"]
