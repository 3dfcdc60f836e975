"""Measures the time of the event loop that a task uses (KIP-124: request_percentage)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def charged(
    function: Callable[[], Coroutine[Any, Any, Result]],
    charge: Callable[[float], None],
    clock: Callable[[], float],
) -> Result:
    """Run `function` to its end. After each step between two waits, `charge` gets its seconds."""
    return await _in_steps(function(), charge, clock)


@coroutine
def _in_steps(
    work: Coroutine[Any, Any, Result], charge: Callable[[float], None], clock: Callable[[], float]
) -> Generator[Any, Any, Result]:
    value: Any = None
    raised: BaseException | None = None
    while True:
        began = clock()
        try:
            waits_for = work.send(value) if raised is None else work.throw(raised)
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            charge(clock() - began)
        value, raised = None, None
        try:
            value = yield waits_for
        except BaseException as error:
            raised = error
