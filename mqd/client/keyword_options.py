"""Context managers with options as keyword arguments. Pure.

They check the names of the options where they are called, and not later when the block is entered:
InvalidType, with the most similar name. `takes_options` also makes the value that holds them.
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from mqd.client.errors import InvalidType, invalid_type

SubjectT = TypeVar("SubjectT")
OptionsT = TypeVar("OptionsT")
OpenedT = TypeVar("OpenedT")
ManagerT = TypeVar("ManagerT")
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
        names = _options_of(options)

        @wraps(function)
        def call(
            subject: SubjectT, /, *args: P.args, **kwargs: P.kwargs
        ) -> AbstractAsyncContextManager[OpenedT]:
            _check_names(function.__name__, kwargs, names)
            return manager(subject, options(*args, **kwargs))

        first = Parameter("client", Parameter.POSITIONAL_ONLY)
        accepted = signature(options).parameters.values()
        shown = signature(function).replace(parameters=[first, *accepted])
        call.__signature__ = shown  # type: ignore[attr-defined]
        return call

    return decorate


def checks_options(
    *others: Callable[..., Any],
) -> Callable[
    [Callable[P, ManagerT]],
    Callable[P, ManagerT],
]:
    """Make a context manager check the names of its options. It passes those that it does not have
    itself on to `others`."""

    def decorate(function: Callable[P, ManagerT]) -> Callable[P, ManagerT]:
        names = _options_of(function, *others)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> ManagerT:
            _check_names(function.__name__, kwargs, names)
            return function(*args, **kwargs)

        return call

    return decorate


def _options_of(*functions: Callable[..., Any]) -> list[str]:
    by_keyword = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return [
        each.name
        for function in functions
        for each in signature(function).parameters.values()
        if each.kind in by_keyword
    ]


def _check_names(function_name: str, given: Iterable[str], names: list[str]) -> None:
    for name in given:
        if name not in names:
            raise _unknown_option(function_name, name, names)


def _unknown_option(function_name: str, name: str, names: list[str]) -> InvalidType:
    message = f"{name!r} is not an option of {function_name}"
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return invalid_type(f"{message}. Did you mean {close[0]!r}?", "")
    options = dict.fromkeys(each for each in names if each != "client")
    return invalid_type(message, f"choose from {', '.join(options)}")
