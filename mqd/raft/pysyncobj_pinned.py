"""The only PySyncObj version that mqd supports: checks its source byte for byte, and replaces some
of its modules' names.

Importing this file refuses any other version or source (ImportError), and then replaces, inside
PySyncObj:
- its clock: each call into a node reads the `now` of the call, through a context variable. So any
  number of nodes run in one process, each in its own time, and other users of PySyncObj keep its
  clock;
- its journal: the one that the caller passes instead of a file name;
- pickle: raises. Nothing from a socket, a file or a peer can reach it.

Only this file and pysyncobj_node.py know private names of PySyncObj.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn

import pysyncobj.config
import pysyncobj.fast_queue
import pysyncobj.journal
import pysyncobj.node
import pysyncobj.pickle
import pysyncobj.syncobj as core
import pysyncobj.transport
import pysyncobj.version
from pysyncobj.config import FAIL_REASON
from pysyncobj.syncobj import SyncObj
from pysyncobj.transport import Transport

from mqd.raft.codec import Entry, Message, RequestVote, TimeoutNow, Vote
from mqd.raft.journal import Journal
from mqd.raft.proposal_results import OnResult, ProposalResult, report_result

_VERSION = "0.3.17"
_SOURCES = {
    pysyncobj.syncobj: "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4",
    pysyncobj.transport: "0c9d89f9c4781ec9772df8011d7975a1a4a1a5f541357e12eae85a813e92b50b",
    pysyncobj.config: "fbbc7ff9f18e4d15a7fd563376e42f5bd192956879d4b810b056d5248b955698",
    pysyncobj.node: "e4a3f027cd8291f558334bb9c977e952f6b6989e7e1fa1588d3005ef0b990e2c",
    pysyncobj.fast_queue: "8477fe5fdf36d9766df933310d3d66ee953d1afc195b1e6482b3a1498fc517bd",
}
"""SHA-256 of every PySyncObj file that mqd uses."""

_NAMES = (
    "_SyncObj__applyLogEntries",
    "_SyncObj__doApplyCommand",
    "_SyncObj__generateRaftTimeout",
    "_SyncObj__loadDumpFile",
    "_SyncObj__onLeaderChanged",
    "_SyncObj__onMessageReceived",
    "_SyncObj__parseChangeClusterRequest",
    "_SyncObj__sendAppendEntries",
    "_SyncObj__setCurrentTerm",
    "_SyncObj__setState",
    "_SyncObj__tryLogCompaction",
    "_checkCommandsToApply",
    "_onTick",
    "doTick",
    "transferLeadership",
)


def check_pysyncobj() -> None:
    """Raise ImportError unless the installed PySyncObj equals, byte for byte, the version that this
    file supports.
    """
    if pysyncobj.version.VERSION != _VERSION:
        raise ImportError(
            f"mqd needs pysyncobj {_VERSION}, found {pysyncobj.version.VERSION}: run pip "
            f"install pysyncobj=={_VERSION}"
        )
    for module, expected in _SOURCES.items():
        path = Path(module.__file__ or "")
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise ImportError(
                f"cannot read {path} to check it: {error}. Install pysyncobj {_VERSION} with "
                "its sources"
            ) from error
        if found != expected:
            raise ImportError(
                f"{path} is not that of pysyncobj {_VERSION}, on whose inner workings mqd "
                "depends: reinstall pysyncobj"
            )
    if missing := [name for name in _NAMES if not hasattr(SyncObj, name)]:
        raise ImportError(f"pysyncobj lacks {', '.join(missing)}: reinstall pysyncobj {_VERSION}")


# -- replacements of names in PySyncObj's modules

_NOW: ContextVar[float] = ContextVar("now")
_stock_monotonic = core.monotonicTime
_stock_create_journal = core.createJournal


def monotonic() -> float:
    """The `now` of the current call into a node; PySyncObj's own clock for any other SyncObj in
    this process.
    """
    now = _NOW.get(None)
    return now if now is not None else float(_stock_monotonic())


def _create_journal(journal_file: object) -> object:
    return (
        journal_file
        if isinstance(journal_file, JournalAdapter)
        else _stock_create_journal(journal_file)
    )


def _no_pickle(*_arguments: object, **_options: object) -> NoReturn:
    raise AssertionError("pysyncobj reached for pickle: nothing in mqd is ever pickled")


def _install() -> None:
    check_pysyncobj()
    core.monotonicTime = monotonic
    core.createJournal = _create_journal
    core.PIPE_NOTIFIER_ENABLED = False
    for module in (pysyncobj.pickle, pysyncobj.journal):
        for name in ("load", "loads", "dump", "dumps"):
            if hasattr(module, name):
                setattr(module, name, _no_pickle)


@contextmanager
def at(now: float) -> Iterator[None]:
    token = _NOW.set(now)
    try:
        yield
    finally:
        _NOW.reset(token)


class NoPoller:
    """Replaces PySyncObj's socket poller, which it calls at the end of a tick. There are no
    sockets.
    """

    def poll(self, timeout: float) -> None:
        pass


class Outbox(Transport):  # type: ignore[misc]
    """Receives PySyncObj's own messages, votes and transfers, and converts its dicts."""

    def __init__(self) -> None:
        super().__init__(None, None, [])
        self.messages: list[tuple[int, Message]] = []

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        match message["type"]:
            case "request_vote":
                converted: Message = RequestVote(
                    message["term"], message["last_log_index"], message["last_log_term"]
                )
            case "response_vote":
                converted = Vote(message["term"])
            case "timeout_now":
                converted = TimeoutNow(message["term"])
            case other:
                raise AssertionError(f"pysyncobj sends {other!r} by itself")
        self.messages.append((node.id, converted))
        return True


def pysyncobj_callback(on_result: OnResult) -> Callable[[Any, int], None]:
    def callback(result: Any, reason: int) -> None:
        if reason == FAIL_REASON.SUCCESS:
            report_result(on_result, result, ProposalResult.APPLIED)
        else:
            report_result(
                on_result,
                0,
                ProposalResult.REFUSED
                if reason == FAIL_REASON.DISCARDED
                else ProposalResult.UNKNOWN,
            )

    return callback


class JournalAdapter:
    """The journal with PySyncObj's interface, without the operations that mqd replaces."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def add(self, command: bytes, index: int, term: int) -> None:
        self._journal.append(command, index, term)

    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self._journal.entries[item]

    def __len__(self) -> int:
        return len(self._journal.entries)

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._journal.term

    def getVotedForNodeId(self) -> int | None:  # noqa: N802
        return self._journal.vote

    def setCurrentTerm(self, term: int, vote: int | None) -> None:  # noqa: N802
        self._journal.set_term(term, vote)

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return self._journal.snapshot_index

    def setRaftCommitIndex(self, _index: int) -> None:  # noqa: N802
        """Not stored: after a restart a node gets it from its leader, or by becoming the leader."""

    def onOneSecondTimer(self) -> None:  # noqa: N802
        self._journal.on_timer()


_install()
