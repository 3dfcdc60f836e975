"""Carries out a plan: sets a throttle, starts the moves, and watches their progress.

The cluster continues the moves after this program ends. A throttle stays until it is removed.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mqctl import render
from mqctl.app import Failure, print_error, print_message
from mqctl.planning import Assignment, Move, MovePlan, to_json
from mqctl.quantities import format_bytes, format_duration
from mqctl.snapshot import Snapshot, moves_in_progress, sizes
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
PROPAGATION_SECONDS = 5.0
"""How much later than the controller another broker may know the replicas after a move."""
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
    moves: Mapping[TopicPartition, Move],
    sizes_by_broker: Mapping[int, Mapping[TopicPartition, int]],
) -> list[dict[str, Any]]:
    """A plan as rows. `bytes_to_copy` is None if no broker returned the partition's size."""
    rows = []
    for tp, move in sorted(moves.items()):
        copied = bytes_left({tp: (move.before, move.adding)}, sizes_by_broker)
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


def with_readable_sizes(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows with sizes for people, for a table."""
    return [{**row, "size": format_bytes(row["bytes_to_copy"])} for row in rows]


def bytes_left(
    moves: Mapping[TopicPartition, tuple[Collection[int], Collection[int]]],
    sizes_by_broker: Mapping[int, Mapping[TopicPartition, int]],
) -> int | None:
    """Bytes that are still to be copied; None if a size is unknown. Pure.

    `moves`: for each partition, the brokers that have its data, and those that receive it.
    """
    total = 0
    for tp, (sources, targets) in moves.items():
        known = [
            sizes_by_broker[broker][tp]
            for broker in sources
            if tp in sizes_by_broker.get(broker, ())
        ]
        if targets and not known:
            return None
        total += sum(
            max(0, max(known) - sizes_by_broker.get(broker, {}).get(tp, 0)) for broker in targets
        )
    return total


def save(path: str, assignments: Mapping[TopicPartition, Assignment]) -> None:
    """Write a new file for `partition move --file` or kafka-reassign-partitions. Raises Failure if
    the file exists.
    """
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(json.dumps(to_json(assignments), indent=1) + "\n")
    except OSError as error:
        raise Failure(
            f"cannot save the assignments to {path!r}: {error.strerror}",
            remedy="choose a file that does not exist",
        ) from None


def print_impossible_moves(plan: MovePlan) -> None:
    """Print why moves are impossible: an error for each reason, with its partitions."""
    reasons: dict[str, list[str]] = {}
    for tp, reason in sorted(plan.impossible.items()):
        reasons.setdefault(reason, []).append(str(tp))
    for reason, partitions in reasons.items():
        print_error(Failure(f"cannot move {some_of(partitions, _NAMED_AT_MOST)}: {reason}"))


# -- carrying out


async def start_moves(
    admin: Admin, moves: Mapping[TopicPartition, Move], alive: Collection[int], throttle: int | None
) -> dict[TopicPartition, Any]:
    """Set the throttle, then start every move. Returns None or a ClientError for each.

    If the throttle cannot be set, starts no move, and raises a ClientError.
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
    """The topics and brokers on which a throttle of these moves is set."""
    from mqd.client.throttle import Throttled

    copying = {tp: move for tp, move in moves.items() if move.adding}
    brokers = {
        broker
        for move in copying.values()
        for broker in (*move.before, *move.after)
        if broker in alive
    }
    return Throttled(tuple(sorted({tp.topic for tp in copying})), tuple(sorted(brokers)))


class Progress(NamedTuple):
    """The progress of moves. `bytes_left` is None if sizes are unknown, `bytes_per_second` until a
    rate is known.
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
    """Measures the copy rate over the last RATE_SECONDS."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, now: float, left: int) -> float | None:
        """Add a sample; returns bytes per second, or None without progress."""
        self._samples.append((now, left))
        while now - self._samples[0][0] > RATE_SECONDS:
            self._samples.popleft()
        then, before = self._samples[0]
        return (before - left) / (now - then) if now > then and before > left else None


async def watch(
    admin: Admin, partitions: Collection[TopicPartition], alive: Collection[int]
) -> None:
    """Print the progress of the moves until all have ended. Retries while the cluster does not
    respond.
    """
    import trio

    from mqd.client.errors import ClientError

    meter = Meter()
    printed, printed_at, progress_at = "", -REPORT_SECONDS, trio.current_time()
    while True:
        now = trio.current_time()
        try:
            left = {
                tp: move
                for tp, move in (await moves_in_progress(admin)).items()
                if tp in partitions
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
            text = f"no response, the moves may continue: {error.message}"
        else:
            rate = None if remaining is None else meter.add(now, remaining)
            text = str(Progress(len(partitions) - len(left), len(partitions), remaining, rate))
        if text != printed:
            progress_at = now
        if text != printed and now >= printed_at + REPORT_SECONDS:
            print_message(text)
            printed, printed_at = text, now
        if now >= progress_at + STALLED_SECONDS:
            print_message(
                f"no progress for {format_duration(STALLED_SECONDS)}: check the brokers with "
                "`mqctl cluster health`"
            )
            progress_at = now
        await trio.sleep(POLL_SECONDS)
    print_message(str(Progress(len(partitions), len(partitions), 0, None)))


async def check_done(
    admin: Admin, moves: Mapping[TopicPartition, Move]
) -> dict[TopicPartition, str]:
    """Partitions whose move has ended, but not at its target, with the reason: another request has
    cancelled or replaced the move.
    """
    import trio

    deadline = trio.current_time() + PROPAGATION_SECONDS
    while True:
        wrong = await _not_at_target(admin, moves)
        if not wrong or trio.current_time() >= deadline:
            return wrong
        await trio.sleep(POLL_SECONDS / 4)


async def _not_at_target(
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
    """Remove a throttle, unless other moves are in progress. Returns whether it was removed."""
    from mqd.client.throttle import clear_throttle

    if await moves_in_progress(admin):
        print_message(
            "other partitions are still moving: the throttle was not removed; remove it later with "
            "`mqctl partition move-status --clear-throttle`"
        )
        return False
    errors = await clear_throttle(admin, throttled)
    for error in errors.values():
        print_message(
            f"the throttle was not removed: {error.message}; remove it with `mqctl partition "
            "move-status --clear-throttle`"
        )
    return not errors


def reassignment_rows(
    snapshot: Snapshot, sizes_by_broker: Mapping[int, Mapping[TopicPartition, int]]
) -> list[dict[str, Any]]:
    """Moves in progress as rows; `stalled` is why a move makes no progress. Pure."""
    return [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "replicas": list(move.replicas),
            "adding": list(move.adding),
            "removing": list(move.removing),
            "bytes_left": bytes_left({tp: (move.original, move.adding)}, sizes_by_broker),
            "stalled": _obstacle(snapshot, tp, move),
        }
        for tp, move in sorted(snapshot.moves.items())
    ]


def _obstacle(snapshot: Snapshot, tp: TopicPartition, move: Reassignment) -> str | None:
    fenced = [broker for broker in move.adding if broker not in snapshot.alive]
    if tp in snapshot.partitions and snapshot.partitions[tp].leader < 0:
        return "no leader to copy from"
    return f"broker {', '.join(map(str, fenced))} is fenced" if fenced else None
