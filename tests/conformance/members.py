"""Members of consumer groups for tests: processes that join, leave and are killed, their partitions
and what they have consumed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import confluent_kafka

from .wire import until

ROOT = Path(__file__).resolve().parent.parent.parent
KINDS = ("eager", "cooperative", "consumer", "kafka-python", "aiokafka")
"""confluent-kafka in three ways: the classic protocol with `range`, with `cooperative-sticky`, and
KIP-848's; then the other two.
"""
SESSION_MS = 3000
SETTLE_S = 45.0


class Member:
    """One process of member_process.py."""

    def __init__(
        self,
        kind: str,
        address: str,
        group: str,
        topic: str,
        *,
        session_ms: int = SESSION_MS,
        instance: str | None = None,
    ) -> None:
        self.kind = kind
        self.owned: set[int] = set()
        self.assignments: list[set[int]] = []
        """Its partitions after each change that added some."""
        self.revoked: list[set[int]] = []
        self.done: Counter[tuple[int, int]] = Counter()
        """(partition, offset) -> how often it was consumed and committed."""
        self.maybe: set[tuple[int, int]] = set()
        self.failures: list[str] = []
        self.helped: list[str] = []
        """Corrections of bugs of its client."""
        self.held = False
        self._ends = False
        """The test has requested its end."""
        self._lock = threading.Lock()
        command = [
            sys.executable,
            "-m",
            "tests.conformance.member_process",
            "--client",
            kind,
            "--bootstrap",
            address,
        ]
        command += [
            "--group",
            group,
            "--topic",
            topic,
            "--session-ms",
            str(session_ms),
            *(["--instance", instance] if instance else []),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, *rest = json.loads(line)
            getattr(self, f"_on_{what}")(*rest)
        if not self._ends:
            self.failures.append("its process ended")

    def _on_assigned(self, partitions: list[int]) -> None:
        self.owned = set(partitions)
        self.assignments.append(set(partitions))

    def _on_revoked(self, partitions: list[int]) -> None:
        self.owned = self.owned - set(partitions)
        self.revoked.append(set(partitions))

    def _on_done(self, rows: list[tuple[int, int, int]]) -> None:
        with self._lock:
            self.done.update(_each(rows))

    def _on_maybe(self, rows: list[tuple[int, int, int]]) -> None:
        with self._lock:
            self.maybe.update(_each(rows))

    def _on_held(self) -> None:
        self.held = True

    def _on_helped(self, why: str) -> None:
        self.helped.append(why)

    def _on_failed(self, why: str) -> None:
        self.failures.append(why)

    def counts(self) -> tuple[Counter[tuple[int, int]], set[tuple[int, int]]]:
        """`done` and `maybe`, while more may follow."""
        with self._lock:
            return self.done.copy(), self.maybe.copy()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def hold(self) -> None:
        """Stop its consumption, and wait until it has committed what it had."""
        assert self._process.stdin is not None
        self._process.stdin.write("hold\n")
        self._process.stdin.flush()
        until(lambda: self.held, "the member holds")

    def kill(self) -> None:
        """SIGKILL: the group removes it at the end of its session."""
        self._ends = True
        self._process.kill()
        self._end()

    def leave(self) -> None:
        """Leave the group cleanly."""
        leave_together([self])

    def begin_to_leave(self) -> None:
        """Request it without waiting."""
        assert self._process.stdin is not None
        self._ends = True
        self._process.stdin.close()

    def wait_left(self) -> None:
        """Wait until its process has ended."""
        self._process.wait(SETTLE_S)
        self._end()

    def _end(self) -> None:
        self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                stream.close()
        self.owned = set()


def leave_together(members: Iterable[Member]) -> None:
    """All of them leave their groups cleanly and concurrently."""
    leaving = list(members)
    for member in leaving:
        member.begin_to_leave()
    for member in leaving:
        member.wait_left()


def _each(rows: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    return [
        (partition, offset) for partition, first, last in rows for offset in range(first, last + 1)
    ]


class Group:
    """The members of one group, including the ended ones."""

    def __init__(
        self, kind: str, address: str, group: str, topic: str, *, session_ms: int = SESSION_MS
    ) -> None:
        self.kind = kind
        self.group = group
        self.members: list[Member] = []
        self._start: Callable[[str | None], Member] = lambda instance: Member(
            kind, address, group, topic, session_ms=session_ms, instance=instance
        )

    def join(self, instance: str | None = None) -> Member:
        """Add a member; does not wait for its assignment."""
        self.members.append(self._start(instance))
        return self.members[-1]

    def owns(self, partitions: int, *members: Member) -> bool:
        """Whether exactly these members own all partitions, each at least one, and none twice."""
        owned = [member.owned for member in members]
        everything = sorted(partition for rows in owned for partition in rows)
        return (
            all(owned)
            and everything == list(range(partitions))
            and not any(m.owned for m in self.members if m not in members)
        )

    def wait_owned(self, partitions: int, *members: Member, seconds: float = SETTLE_S) -> None:
        """Wait for that state."""

        def settled() -> bool:
            assert not self.failures(), self.failures()
            return self.owns(partitions, *members)

        until(
            settled,
            f"{len(members)} {self.kind} members own {partitions} partitions",
            seconds,
            details=lambda: [m.owned for m in members],
        )

    def failures(self) -> list[str]:
        return [failure for member in self.members for failure in member.failures]

    def helped(self) -> list[str]:
        return [how for member in self.members for how in member.helped]

    def done(self) -> Counter[tuple[int, int]]:
        return sum((member.counts()[0] for member in self.members), Counter[tuple[int, int]]())

    def changes(self) -> list[tuple[int, int]]:
        """For each member: how often partitions were added, and how often some were revoked."""
        return [(len(member.assignments), len(member.revoked)) for member in self.members]

    def wait_consumed(self, produced: Iterable[tuple[int, int]]) -> None:
        """Wait until every record is consumed, and assert that none is consumed twice."""
        wanted = set(produced)

        def missing() -> set[tuple[int, int]]:
            return (
                wanted
                - set(self.done())
                - set().union(*(member.counts()[1] for member in self.members))
            )

        until(
            lambda: not missing(),
            f"{len(wanted)} records are consumed ({self.kind})",
            SETTLE_S,
            details=lambda: sorted(missing())[:10],
        )
        twice = {place: count for place, count in self.done().items() if count > 1}
        assert not twice, (
            f"{len(twice)} records were consumed twice ({self.kind}), for example "
            f"{sorted(twice.items())[:10]}"
        )
        assert set(self.done()) <= wanted

    def end(self) -> None:
        """Kill all running members."""
        for member in self.members:
            if member.running:
                member.kill()


class Feeder:
    """Produces to all partitions of a topic in turn until it is stopped."""

    def __init__(self, address: str, topic: str, partitions: int, *, rate: float = 200.0) -> None:
        self.produced: list[tuple[int, int]] = []
        self.partitions = partitions
        self._last: dict[int, int] = {}
        """By partition."""
        self._guessed = 0
        self._topic = topic
        self._rate = rate
        self._stop = threading.Event()
        self._errors: list[Any] = []
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                "topic.metadata.refresh.interval.ms": 1000,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        count = 0
        while not self._stop.is_set():
            try:
                self._producer.produce(
                    self._topic,
                    b"%d" % count,
                    partition=count % self.partitions,
                    on_delivery=self._delivered,
                )
            except confluent_kafka.KafkaException as error:
                if error.args[0].code() != confluent_kafka.KafkaError._UNKNOWN_PARTITION:
                    raise  # so that a new partition is known soon
            count += 1
            self._producer.poll(1 / self._rate)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._errors.append(error)
            return
        partition, offset = message.partition(), message.offset()
        if offset is None:  # it follows the previous one, because there is no other producer
            offset = self._last[partition] + 1
            self._guessed += 1
        self._last[partition] = offset
        self.produced.append((partition, offset))

    def stop(self) -> None:
        """Stop producing."""
        self._stop.set()
        self._thread.join()

    def finish(self, *, all_told: bool = True) -> list[tuple[int, int]]:
        """Stop; (partition, offset) of every produced record.

        Without `all_told`, librdkafka may miss some offsets: for a batch that it retried, the
        broker may only report that it has it (DUPLICATE_SEQUENCE_NUMBER), or that it has the next
        one.
        """
        self.stop()
        assert self._producer.flush(60) == 0
        assert not self._errors, self._errors[:3]
        assert len(set(self.produced)) == len(self.produced)
        assert not (all_told and self._guessed), self._guessed
        return self.produced


def steady(look: Callable[[], Any], seconds: float) -> Any:
    """The result of `look`, asserted to stay the same for that long."""
    first, end = look(), time.monotonic() + seconds
    while time.monotonic() < end:
        now = look()
        assert now == first, (first, now)
        time.sleep(0.05)
    return first
