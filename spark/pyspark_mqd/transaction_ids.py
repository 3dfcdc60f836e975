"""Names that a query's transactions and groups have on the brokers. Pure.

With `<query>` for the query's identity (option `exactlyOnceId`, else `spark-<query id>`):

    <query>-<task>            exactly-once: transactional id of a task, and the group of its marker
    <query>.batch-even        exactly-once: the group of the batch marker of even batch ids
    <query>.batch-odd         exactly-once: the same of odd batch ids
    <query>.driver            atomic-batch: transactional id of the driver, and the group of D
    <query>.driver.<n>        atomic-batch: further groups, where D is too long for one
    <query>.<worker>.<slot>   atomic-batch: transactional id of one Python worker process

Invariant: no name of one query is a name of another. An identity has no dot and does not end with
`-<number>`: `check_identity` refuses others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from .errors import OptionError

WORKER_DIGITS = 12
"""Hexadecimal digits of a Python worker process."""
IDENTITY_LENGTH_MAX = 200

_IDENTITY = re.compile(r"[A-Za-z0-9_-]+")
_TASK = re.compile(r"(?P<query>.+)-(?P<task>0|[1-9][0-9]*)")
_DRIVER = re.compile(r"(?P<query>.+)\.driver(\.[0-9]+)?")
_WORKER = re.compile(rf"(?P<query>.+)\.(?P<worker>[0-9a-f]{{{WORKER_DIGITS}}})\.(?P<slot>[0-9]+)")


class IdKind(Enum):
    """What a transactional id is for."""

    TASK = "task"
    DRIVER = "driver"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Owner:
    """The query that a transactional id belongs to."""

    query: str
    kind: IdKind


def identity_of(query_id: str) -> str:
    """The identity of a query without `exactlyOnceId`. A new checkpoint has a new one."""
    return f"spark-{query_id}"


def check_identity(identity: str) -> str:
    """An identity that the user chose, checked. Raises OptionError."""
    if len(identity) > IDENTITY_LENGTH_MAX or not _IDENTITY.fullmatch(identity):
        raise OptionError(
            f"Option 'exactlyOnceId' is '{identity}', but it may have 1 to {IDENTITY_LENGTH_MAX} "
            "of the characters a-z A-Z 0-9 _ - only, because transactional ids begin with it."
        )
    if _TASK.fullmatch(identity):
        raise OptionError(
            f"Option 'exactlyOnceId' is '{identity}', but it must not end with '-' and a number: "
            "names of tasks end like that. Append a letter."
        )
    return identity


def task_id(query: str, task: int) -> str:
    """Mode exactly-once: the transactional id of a task, and the group of its marker."""
    return f"{query}-{task}"


def batch_group(query: str, batch_id: int) -> str:
    """Mode exactly-once: the group of the batch marker. An identity has no dot: no task has it."""
    return f"{query}.batch-{'odd' if batch_id % 2 else 'even'}"


def task_of(group: str, query: str) -> int | None:
    """Which task of the query has this group or transactional id; None for all other names."""
    match = _TASK.fullmatch(group)
    return int(match["task"]) if match is not None and match["query"] == query else None


def driver_id(query: str, number: int = 0) -> str:
    """Mode atomic-batch: the driver's transactional id, and the groups of the decision record."""
    return f"{query}.driver" if number == 0 else f"{query}.driver.{number}"


def worker_id(query: str, worker: str, slot: int) -> str:
    """Mode atomic-batch: a transactional id that one Python process owns."""
    assert len(worker) == WORKER_DIGITS, worker
    return f"{query}.{worker}.{slot}"


def owner_of(transactional_id: str) -> Owner | None:
    """Which query uses this transactional id; None for ids that are not of the connector's form.

    Ids of other programs may end with `-<number>` too: compare `query` with a known identity.
    """
    for kind, form in ((IdKind.DRIVER, _DRIVER), (IdKind.WORKER, _WORKER), (IdKind.TASK, _TASK)):
        if match := form.fullmatch(transactional_id):
            return Owner(match["query"], kind)
    return None


def worker_pattern_of(query: str) -> str:
    """A regular expression (RE2) for the transactional ids of a query's Python workers."""
    return rf"^{re.escape(query)}\.[0-9a-f]{{{WORKER_DIGITS}}}\.[0-9]+$"
