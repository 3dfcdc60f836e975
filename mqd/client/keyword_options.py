"""Functions that take the fields of one options value as their keyword arguments. Pure.

The value is made, and so checked, where the function is called: a wrong argument raises there, and
not later when the block is entered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from inspect import Parameter, signature
from typing import Concatenate, ParamSpec, TypeVar

SubjectT = TypeVar("SubjectT")
OptionsT = TypeVar("OptionsT")
OpenedT = TypeVar("OpenedT")
P = ParamSpec("P")


def takes_options(
    options: Callable[P, OptionsT],
) -> Callable[
    [Callable[[SubjectT, OptionsT], AsyncIterator[OpenedT]]],
    Callable[Concatenate[SubjectT, P], AbstractAsyncContextManager[OpenedT]],
]:
    """Make an async context manager of `open_x(subject, value)` that is called as
    `open_x(subject, ...)`, with the arguments of the class `options`."""

    def decorate(
        function: Callable[[SubjectT, OptionsT], AsyncIterator[OpenedT]],
    ) -> Callable[Concatenate[SubjectT, P], AbstractAsyncContextManager[OpenedT]]:
        manager = asynccontextmanager(function)

        @wraps(function)
        def call(
            subject: SubjectT, /, *args: P.args, **kwargs: P.kwargs
        ) -> AbstractAsyncContextManager[OpenedT]:
            return manager(subject, options(*args, **kwargs))

        first = Parameter("client", Parameter.POSITIONAL_ONLY)
        accepted = signature(options).parameters.values()
        shown = signature(function).replace(parameters=[first, *accepted])
        call.__signature__ = shown  # type: ignore[attr-defined]
        return call

    return decorate
