"""Carrying out a plan: begin the moves, with a throttle if one is wanted, and watch them until they
are done.

A move goes on in the cluster when this program ends; so does its throttle, until somebody takes it
away.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mqctl import render
from mqctl.app import Failure, say
from mqctl.planning import Assignment, Move, Plan, to_json
from mqctl.quantities import format_bytes, format_duration
from mqctl.snapshot import Snapshot, moves_under_way, sizes
from mqd.errors import some_of
from mqd.types import TopicPartition

if TYPE_CHECKING:
    from mqd.client.admin import Admin
    from mqd.client.descriptions import Reassignment
    from mqd.client.throttle import Throttled

POLL_SECONDS = 1.0
REPORT_SECONDS = 5.0
RATE_SECONDS = 30.0
STALLED_SECONDS = 60.0
HEARD_SECONDS = 5.0
"""The controller says first that a move is done.

Another node, which is asked where the replicas are, may hear of it this much later.
"""
_NAMED_AT_MOST = 5

PLAN = (
    render.Column("topic", "TOPIC"),
    render.Column("partition", "PARTITION", right=True),
    render.Column("before", "BEFORE"),
    render.Column("after", "AFTER"),
    render.Column("adding", "ADDS"),
    render.Column("removing", "REMOVES"),
    render.Column("size", "TO COPY", right=True),
)


def plan_rows(
    moves: Mapping[TopicPartition, Move], held: Mapping[int, Mapping[TopicPartition, int]]
) -> list[dict[str, Any]]:
    """A plan as rows; `held`: bytes of each replica by node.

    `bytes_to_copy` is None where no size is known.
    """
    rows = []
    for tp, move in sorted(moves.items()):
        copied = bytes_left({tp: (move.before, move.adding)}, held)
        rows.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "before": list(move.before),
                "after": list(move.after),
                "adding": list(move.adding),
                "removing": list(move.removing),
                "bytes_to_copy": copied,
            }
        )
    return rows


def shown(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows for a table."""
    return [{**row, "size": format_bytes(row["bytes_to_copy"])} for row in rows]


def bytes_left(
    moves: Mapping[TopicPartition, tuple[Collection[int], Collection[int]]],
    held: Mapping[int, Mapping[TopicPartition, int]],
) -> int | None:
    """Bytes that moves (replicas that have the data, replicas that get it) have yet to
    copy; None where a size is not known. Pure.
    """
    total = 0
    for tp, (having, getting) in moves.items():
        known = [held[node][tp] for node in having if tp in held.get(node, ())]
        if getting and not known:
            return None
        total += sum(max(0, max(known) - held.get(node, {}).get(tp, 0)) for node in getting)
    return total


def save(path: str, assignments: Mapping[TopicPartition, Assignment]) -> None:
    """Write a file that `partition move --file` and kafka-reassign-partitions read.

    Never over another one.
    """
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(json.dumps(to_json(assignments), indent=1) + "\n")
    except OSError as error:
        raise Failure(
            f"cannot save the assignments to {path!r}: {error.strerror}",
            remedy="choose a file that does not exist",
        ) from None


def complain_of(plan: Plan) -> None:
    """What cannot be done, one line a reason, to standard error."""
    reasons: dict[str, list[str]] = {}
    for tp, reason in sorted(plan.impossible.items()):
        reasons.setdefault(reason, []).append(str(tp))
    for reason, partitions in reasons.items():
        say(f"cannot move {some_of(partitions, _NAMED_AT_MOST)}: {reason}")


# -- carrying out


async def begin(
    admin: Admin, moves: Mapping[TopicPartition, Move], alive: Collection[int], throttle: int | None
) -> dict[TopicPartition, Any]:
    """Set the throttle, then begin every move. Returns None or a ClientError for each.

    Without the throttle nothing is begun.
    """
    from mqd.client.errors import ClientError
    from mqd.client.throttle import Throttled, clear_throttle, set_throttle

    throttled = Throttled((), ())
    if throttle is not None:
        changed = {tp: (move.before, move.after) for tp, move in moves.items()}
        errors = await set_throttle(admin, changed, alive, throttle)
        throttled = throttled_by(moves, alive)
        if errors:
            await clear_throttle(admin, throttled)
            raise next(iter(errors.values()))
    results = dict(
        await admin.alter_partition_reassignments({tp: move.after for tp, move in moves.items()})
    )
    if throttled and all(isinstance(result, ClientError) for result in results.values()):
        await clear_throttle(admin, throttled)
    return results


def throttled_by(moves: Mapping[TopicPartition, Move], alive: Collection[int]) -> Throttled:
    """What a throttle of these moves was set on."""
    from mqd.client.throttle import Throttled

    copying = {tp: move for tp, move in moves.items() if move.adding}
    nodes = {
        node for move in copying.values() for node in (*move.before, *move.after) if node in alive
    }
    return Throttled(tuple(sorted({tp.topic for tp in copying})), tuple(sorted(nodes)))


class Progress(NamedTuple):
    """How far moves are.

    `bytes_left` is None where sizes are not known, `bytes_per_second` until there is a rate.
    """

    done: int
    total: int
    bytes_left: int | None
    bytes_per_second: float | None

    def __str__(self) -> str:
        text = f"{self.done} of {self.total} partitions moved"
        if self.bytes_left is not None and self.done < self.total:
            text += f", {format_bytes(self.bytes_left)} left"
            if self.bytes_per_second:
                text += (
                    f" at {format_bytes(self.bytes_per_second)}/s, about "
                    f"{format_duration(self.bytes_left / self.bytes_per_second)}"
                )
        return text


class Meter:
    """The rate at which what is left becomes less, over the last half minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, now: float, left: int) -> float | None:
        """Note how much is left; returns bytes per second, None while nothing moves."""
        self._samples.append((now, left))
        while now - self._samples[0][0] > RATE_SECONDS:
            self._samples.popleft()
        then, before = self._samples[0]
        return (before - left) / (now - then) if now > then and before > left else None


async def watch(
    admin: Admin, partitions: Collection[TopicPartition], alive: Collection[int]
) -> None:
    """Return when none of the partitions moves any more; says how far they are.

    A cluster that does not answer is asked again.
    """
    import trio

    from mqd.client.errors import ClientError

    meter = Meter()
    said, said_at, news_at = "", -REPORT_SECONDS, trio.current_time()
    while True:
        now = trio.current_time()
        try:
            left = {
                tp: move for tp, move in (await moves_under_way(admin)).items() if tp in partitions
            }
            if not left:
                break
            remaining = bytes_left(
                {tp: (move.original, move.adding) for tp, move in left.items()},
                await sizes(admin, alive),
            )
        except ClientError as error:
            if not error.retriable:
                raise
            line = f"no response, the moves may continue: {error.message}"
        else:
            rate = None if remaining is None else meter.note(now, remaining)
            line = str(Progress(len(partitions) - len(left), len(partitions), remaining, rate))
        if line != said:
            news_at = now
        if line != said and now >= said_at + REPORT_SECONDS:
            say(line)
            said, said_at = line, now
        if now >= news_at + STALLED_SECONDS:
            say(
                f"no progress for {format_duration(STALLED_SECONDS)}: check the nodes with `mqctl "
                "cluster health`"
            )
            news_at = now
        await trio.sleep(POLL_SECONDS)
    say(str(Progress(len(partitions), len(partitions), 0, None)))


async def check_done(
    admin: Admin, moves: Mapping[TopicPartition, Move]
) -> dict[TopicPartition, str]:
    """Partitions that move no more, but are not where they were to go: somebody cancelled
    or changed their moves.
    """
    import trio

    gives_up_at = trio.current_time() + HEARD_SECONDS
    while True:
        wrong = await _not_there(admin, moves)
        if not wrong or trio.current_time() >= gives_up_at:
            return wrong
        await trio.sleep(POLL_SECONDS / 4)


async def _not_there(
    admin: Admin, moves: Mapping[TopicPartition, Move]
) -> dict[TopicPartition, str]:
    states = await admin.describe_partitions({tp.topic for tp in moves})
    wrong = {}
    for tp, move in moves.items():
        state = states.get(tp)
        if state is None:
            wrong[tp] = "the partition was deleted"
        elif state.replicas != move.after:
            wrong[tp] = (
                f"its replicas are on {','.join(map(str, state.replicas))}: the move was cancelled "
                "or replaced by another one"
            )
    return wrong


async def unthrottle(admin: Admin, throttled: Throttled) -> bool:
    """Take a throttle away, unless other moves are under way; whether it was."""
    from mqd.client.throttle import clear_throttle

    if await moves_under_way(admin):
        say(
            "other partitions are still moving: the throttle was not removed; remove it later with "
            "`mqctl partition move-status --clear-throttle`"
        )
        return False
    errors = await clear_throttle(admin, throttled)
    for error in errors.values():
        say(
            f"the throttle was not removed: {error.message}; remove it with `mqctl partition "
            "move-status --clear-throttle`"
        )
    return not errors


def reassignment_rows(
    seen: Snapshot, held: Mapping[int, Mapping[TopicPartition, int]]
) -> list[dict[str, Any]]:
    """Moves under way as rows; `stands_still` says why one does not get on. Pure."""
    return [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "replicas": list(move.replicas),
            "adding": list(move.adding),
            "removing": list(move.removing),
            "bytes_left": bytes_left({tp: (move.original, move.adding)}, held),
            "stands_still": _obstacle(seen, tp, move),
        }
        for tp, move in sorted(seen.moves.items())
    ]


def _obstacle(seen: Snapshot, tp: TopicPartition, move: Reassignment) -> str | None:
    fenced = [node for node in move.adding if node not in seen.alive]
    if tp in seen.partitions and seen.partitions[tp].leader < 0:
        return "no leader to copy from"
    return f"node {', '.join(map(str, fenced))} is fenced" if fenced else None
