"""Signals: the first one stops the node cleanly, a second one of the same kind immediately."""

from __future__ import annotations

import logging
import os
import signal

import trio

logger = logging.getLogger(__name__)


async def wait_for_signal(
    wanted: tuple[signal.Signals, ...],
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Set `stop` at the first signal. A second one of the same kind ends the process immediately,
    also when the event loop is busy.

    Unblocks these signals as soon as it handles them: `mqd start` blocks them first of all, so that
    none ends the process before.

    One Ctrl-C under `mqd dev` is a SIGINT from the terminal and a SIGTERM from the parent. So
    signals of two kinds do not count as a second one. SIGHUP has no effect: the log goes to
    standard error, so there is no file to reopen.
    """
    with trio.open_signal_receiver(*wanted, signal.SIGHUP) as signals:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, wanted)
        task_status.started()
        async for number in signals:
            if number == signal.SIGHUP:
                logger.info("SIGHUP is ignored: a node reads its files only when it starts")
                continue
            signal.signal(number, _stop_immediately)
            logger.info("stopping signal=%s", signal.Signals(number).name)
            stop.set()


def _stop_immediately(number: int, _frame: object) -> None:
    name = signal.Signals(number).name
    os.write(
        2,
        f"mqd: stopped immediately after a second {name}; the next start checks the ends of "
        "the logs\n".encode(),
    )
    os._exit(1)
