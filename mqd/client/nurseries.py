"""Nurseries for the blocks of a client: one exception leaves them, never a group of ours.

The exception that leaves is that of the user's block. Else it is the ClientError of a task of the
client, else ClientCrashed, for any other exception of such a task. A cancellation leaves as one
`trio.Cancelled`, unless a task has failed. An exception group leaves only if the block itself
raised it, for example because the user's own nursery is in the block.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

import trio

from mqd.client.errors import ClientCrashed, ClientError

on_crash: ContextVar[Callable[[BaseException], None] | None] = ContextVar("on_crash", default=None)
"""Called with each defect, whatever leaves the block: a program that catches ClientError would hide
it from a simulation."""


@asynccontextmanager
async def owned_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery for helper tasks of the block: they are cancelled when the block ends."""
    leaving: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except BaseException as error:
                leaving = error
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        _report_crashes(group)
        failed = _first_failure(group)
        if leaving is None or (failed is not None and _is_cancelled(leaving)):
            # A block that a failed task cancelled has no exception of its own.
            leaving = _one_of(group)
        elif failed is not None:
            leaving = _without_cancelled(leaving)
            leaving.add_note(f"a task of the client failed, too: {failed!r}")
    if leaving is not None:
        raise leaving


@asynccontextmanager
async def lasting_nursery() -> AsyncIterator[trio.Nursery]:
    """An owned nursery whose tasks survive a cancellation from outside until the block has ended.

    A block that is cancelled can still leave its group or abort its transaction.
    """
    async with owned_nursery() as around:
        opened = trio.Event()
        nursery: trio.Nursery

        async def hold() -> None:
            nonlocal nursery
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    opened.set()
                    await trio.sleep_forever()

        # Not `around.start`: after a cancellation it would wait forever for the shielded task.
        around.start_soon(hold)
        with trio.CancelScope(shield=True):
            await opened.wait()
        try:
            yield nursery
        finally:
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def joining_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery that waits for its tasks, within one call of the client."""
    raised: BaseException | None = None
    leaving: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except BaseException as error:
                raised = error
                raise
    except BaseExceptionGroup as group:
        _report_crashes(group)
        leaving = raised
        if leaving is None or _is_cancelled(leaving):
            leaving = _one_of(group)
    if leaving is not None:
        raise leaving


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _is_cancelled(error: BaseException) -> bool:
    """Nothing but cancellation."""
    return all(isinstance(each, trio.Cancelled) for each in _leaves(error))


def _first_failure(error: BaseException) -> BaseException | None:
    """What is not a cancellation: KeyboardInterrupt and its like first, then ClientError."""
    failures = [each for each in _leaves(error) if not isinstance(each, trio.Cancelled)]
    failures.sort(key=lambda each: (isinstance(each, Exception), not isinstance(each, ClientError)))
    return failures[0] if failures else None


def _report_crashes(group: BaseException) -> None:
    report = on_crash.get()
    for each in _leaves(group):
        if report is not None and isinstance(each, Exception) and not isinstance(each, ClientError):
            report(each)


def _one_of(group: BaseException) -> BaseException:
    """The one exception that leaves in place of a group."""
    failed = _first_failure(group)
    if failed is None:
        return next(_leaves(group))
    if isinstance(failed, ClientError) or not isinstance(failed, Exception):
        return failed
    return ClientCrashed(failed)


def _without_cancelled(raised: BaseException) -> BaseException:
    """The user's own group without the cancellation that our failed task caused."""
    if isinstance(raised, BaseExceptionGroup):
        rest = raised.split(trio.Cancelled)[1]
        return raised if rest is None else rest
    return raised
