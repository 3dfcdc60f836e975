"""Signals: the first one stops the node cleanly, a second one of the same kind immediately.

`mqd start` installs the handlers first of all, about half a second before the event loop runs. So
this module imports nothing that takes time.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import trio

logger = logging.getLogger(__name__)


class StopSignals:
    """The signal handlers of this process inside of a `with` block.

    One Ctrl-C under `mqd dev` is a SIGINT from the terminal and a SIGTERM from the parent. So
    signals of two kinds do not count as a second one. SIGHUP reads certificates and users
    again. The log goes to standard error, so there is no file to reopen.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self._numbers = numbers
        self._handlers_before: dict[signal.Signals, Any] = {}
        self._arrived: list[int] = []
        """Signals that are not reported yet."""
        self._wake: Callable[[], None] = _do_nothing
        self.on_hang_up: Callable[[], bool] = _nothing_to_read
        """Reads watched_files.py again after a SIGHUP. Returns False if there are none."""

    def __enter__(self) -> Self:
        for number in (signal.SIGHUP, *self._numbers):
            self._handlers_before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGHUP:
            signal.signal(number, _stop_immediately)
        if number not in self._arrived:
            self._arrived.append(number)
        self._wake()

    @contextmanager
    def reported(self, token: trio.lowlevel.TrioToken, stop: trio.Event) -> Iterator[None]:
        """Inside of this block, on the event loop: the first signal sets `stop`. This includes
        signals that have arrived before.
        """

        def report() -> None:
            while self._arrived:
                number = self._arrived.pop(0)
                if number == signal.SIGHUP and self.on_hang_up():
                    name = signal.Signals(number).name
                    logger.info("reading certificates and users signal=%s", name)
                elif number == signal.SIGHUP:
                    logger.info(
                        "signal ignored signal=%s reason='a node reads its files only at its "
                        "start, except certificates and users'",
                        signal.Signals(number).name,
                    )
                else:
                    logger.info("stopping signal=%s", signal.Signals(number).name)
                    stop.set()

        self._wake = lambda: token.run_sync_soon(report, idempotent=True)
        report()
        try:
            yield
        finally:
            self._wake = _do_nothing


def _do_nothing() -> None:
    """Before and after the event loop runs."""


def _nothing_to_read() -> bool:
    return False


def _stop_immediately(number: int, _frame: object) -> None:
    name = signal.Signals(number).name
    os.write(
        2,
        f"mqd: stopped immediately after a second {name}; the next start checks the ends of "
        "the logs\n".encode(),
    )
    os._exit(1)
