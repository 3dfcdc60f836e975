"""Groups, transactions and two-phase commits of one run: start, drain, check."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable

import trio

from mqd.client.cluster import ClusterClient
from mqd.client.group_consumer import GroupConsumer
from mqd.protocol.record_reader import Record
from mqd.testing.checker import Anomaly, Outcome
from mqd.testing.clients.common import owned, read_records
from mqd.testing.clients.groups import Groups
from mqd.testing.clients.shares import Shares
from mqd.testing.clients.transaction_steps import TransactionSteps
from mqd.testing.clients.transactions import TOPIC, Transactional
from mqd.testing.clients.two_phase import TwoPhase
from mqd.testing.convergence import CONVERGE_SECONDS, LOOK_SECONDS, LivenessError
from mqd.testing.formation import COPIED, ORDERED_SHARE_GROUP, SHARE_GROUPS
from mqd.testing.group_ledger import GroupLedger
from mqd.testing.ledger import Ledger
from mqd.testing.letter_check import LetterCheck
from mqd.testing.node_options import SHARE_LOCK_SECONDS
from mqd.testing.probes.groups import GroupProbe
from mqd.testing.probes.probes import Probes
from mqd.testing.probes.shares import ShareTerms
from mqd.testing.share_features import LETTER_PARTITIONS, LETTERS, ShareFeatures
from mqd.testing.share_ledger import ShareLedger
from mqd.testing.wall_times import WallTimes
from mqd.types import TopicPartition

DRAIN_SECONDS_MAX = 10 * CONVERGE_SECONDS
"""The virtual time within which consumers and copies must reach the end, even if they advance."""

LETTERS_TOPIC = [TopicPartition(LETTERS, number) for number in range(LETTER_PARTITIONS)]


class CoordinatedLoad:
    """The clients of one run that use coordinators."""

    def __init__(
        self,
        load: str,
        probes: Probes,
        new_client: Callable[[str], Awaitable[ClusterClient]],
        source: Callable[[str], random.Random],
        request_seconds: float,
        delivery_limit: int,
        walls: WallTimes,
        features: ShareFeatures,
    ) -> None:
        """`delivery_limit`, `features`: of all share groups."""
        self.ledger = Ledger()
        self.group_ledger = GroupLedger()
        self.transactional: Transactional | None = None
        self.two_phase: TwoPhase | None = None
        self.groups: Groups | None = None
        self.share_ledger = ShareLedger(walls.latest)
        self._walls = walls
        self._features = features
        self.shares: Shares | None = None
        self.letters = 0
        """The number of dead letters of share groups."""
        self._load = load
        self._probes = probes
        self._new_client = new_client
        self._source = source
        self._request_seconds = request_seconds
        self._delivery_limit = delivery_limit

    def start(
        self,
        nursery: trio.Nursery,
        partitions: list[TopicPartition],
        checked: list[TopicPartition],
    ) -> None:
        """`partitions`: those that groups read and copiers copy. `checked`: these, and those to
        which transactions write.
        """
        choose = self._source("coordinated")
        end_of = self._probes.committed_end
        members: list[dict[GroupConsumer, None]] = []
        if self._load == "share":
            self._start_shares(nursery, partitions, choose)
        if self._load in ("copy", "all", "prepare"):
            copied = [partition for partition in partitions if partition.topic == COPIED]
            written = [partition for partition in checked if partition.topic == TOPIC]
            self._steps = TransactionSteps(
                ledger=self.ledger,
                new_client=self._new_client,
                source=self._source,
                partitions=written,
            )
            if self._load == "prepare":
                self.transactional = Transactional(self._steps, [], end_of)
                self.transactional.start(nursery, writers=1, copiers=0)
                self.two_phase = TwoPhase(
                    ledger=self.ledger, new_client=self._new_client, source=self._source
                )
                self.two_phase.start(nursery, written, workers=choose.choice([1, 2, 3]))
            else:
                self.transactional = Transactional(self._steps, copied, end_of)
                self.transactional.start(
                    nursery,
                    writers=choose.choice([0, 1, 2]),
                    copiers=choose.choice([1, 2, 3]),
                )
            members.append(self.transactional.members)
        if self._load in ("groups", "all"):
            self.groups = Groups(
                ledger=self.group_ledger,
                new_client=self._new_client,
                source=self._source,
                end_of=end_of,
                request_seconds=self._request_seconds,
            )
            self.groups.start(nursery, partitions, groups=choose.choice([1, 2]))
            members.append(self.groups.members)
        self._probes.groups = GroupProbe(
            lambda: owned(member for some in members for member in some)
        )

    def _start_shares(
        self, nursery: trio.Nursery, partitions: list[TopicPartition], choose: random.Random
    ) -> None:
        terms = self._probes.shares = ShareTerms(partitions)
        self.shares = Shares(
            ledger=self.share_ledger,
            new_client=self._new_client,
            source=self._source,
            end_of=self._probes.committed_end,
            term=terms.term,
            lock_seconds=SHARE_LOCK_SECONDS,
            wall_between=self._walls.between,
            features=self._features,
        )
        self.share_ledger.limit = self._delivery_limit
        self.share_ledger.ordered = frozenset({ORDERED_SHARE_GROUP})
        self.shares.start(
            nursery,
            partitions,
            list(choose.choice([SHARE_GROUPS[:1], SHARE_GROUPS[1:], SHARE_GROUPS])),
        )

    async def drain(self, client: ClusterClient) -> None:
        """Wait until everything is read and copied, every transaction is ended, and no transaction
        blocks readers of committed records. Raises LivenessError if it takes too long.

        A copy can take long if each batch has one record and each sync is slow. So the deadline
        moves while copies advance, but never beyond `DRAIN_SECONDS_MAX`.
        """
        missing: str | None = None
        ends_at = trio.current_time() + DRAIN_SECONDS_MAX
        with trio.move_on_after(CONVERGE_SECONDS) as scope:

            def wait_longer() -> None:
                scope.deadline = min(trio.current_time() + CONVERGE_SECONDS, ends_at)

            if self.groups is not None:
                await self.groups.drain(client)
            if self.shares is not None:
                await self.shares.drain(client)
            if self.transactional is not None:
                await self.transactional.drain(client, wait_longer)
                missing = "an end of the transactions' clients"
                await self.transactional.stop()
            if self.two_phase is not None:
                missing = "an end of prepared transactions"
                await self.two_phase.stop()
            while (missing := self._probes.unstable()) is not None:  # noqa: ASYNC110
                await trio.sleep(LOOK_SECONDS)
        if scope.cancelled_caught:
            missing = (
                (self.groups and self.groups.missing())
                or (self.shares and self.shares.missing())
                or (self.transactional and self.transactional.missing())
                or missing
            )
            raise LivenessError(
                f"after {CONVERGE_SECONDS:g} s without progress there was still missing: {missing}"
            )

    async def check(
        self, client: ClusterClient, final: dict[TopicPartition, list[tuple[int, bytes]]]
    ) -> list[Anomaly]:
        """Compare the ledgers with the final logs."""
        found: list[Anomaly] = []
        if self.transactional is not None:
            found += await self._check_transactions(client, self.transactional, final)
        if self.groups is not None:
            offsets = {partition: [offset for offset, _ in log] for partition, log in final.items()}
            found += self.group_ledger.check(self.groups.committed, offsets)
        if self.shares is not None:
            found += await self._check_shares(client, self.shares, final)
        return found

    async def _check_shares(
        self,
        client: ClusterClient,
        shares: Shares,
        final: dict[TopicPartition, list[tuple[int, bytes]]],
    ) -> list[Anomaly]:
        features, latest = self._features, self._walls.latest()
        records: dict[TopicPartition, dict[int, Record]] = {}
        letters: list[Record] = []
        if features.letters or features.ttl_ms is not None:
            with trio.fail_after(CONVERGE_SECONDS):
                records = await read_records(client, shares.partitions)
                if features.letters:
                    read = await read_records(client, LETTERS_TOPIC)
                    letters = [one for rows in read.values() for one in rows.values()]
        expired = {one: features.expired(rows, latest) for one, rows in records.items()}
        found = self.share_ledger.check(shares.groups, final, expired)
        if features.letters:
            self.letters = len(letters)
            check = LetterCheck(self.share_ledger, features, records, latest)
            found += check.check(shares.groups, letters)
        return found

    async def _check_transactions(
        self,
        client: ClusterClient,
        transactional: Transactional,
        final: dict[TopicPartition, list[tuple[int, bytes]]],
    ) -> list[Anomaly]:
        with trio.fail_after(CONVERGE_SECONDS):
            committed = await transactional.read_everything(client, committed=True)
            everything = await transactional.read_everything(client, committed=False)
        missing = transactional.unread(committed)
        with trio.move_on_after(CONVERGE_SECONDS):
            while missing is not None:
                await trio.sleep(LOOK_SECONDS)
                missing = transactional.unread(committed)
        if missing is not None:
            raise LivenessError(
                f"{CONVERGE_SECONDS:g} s after all transactions had ended there was "
                f"still missing: {missing}"
            )
        source = {partition: final[partition] for partition in transactional.copied}
        return self.ledger.check(committed, everything, source)

    def counts(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        if self.transactional is not None:
            counts.update(self._steps.counts)
        if self.two_phase is not None:
            counts.update(self.two_phase.counts)
        counts["committed_transactions"] = self.ledger.commits
        counts["aborted_transactions"] = sum(
            one.outcome is Outcome.FAIL for one in self.ledger.transactions
        )
        counts["read_committed"] = self.ledger.reads
        counts["offset_commits"] = self.group_ledger.commits
        counts["assignments"] = self.group_ledger.assignments
        counts["refused_ghosts"] = self.group_ledger.refused_ghosts
        counts["share_letters"] = self.letters
        for name in ("deliveries", "redeliveries", "confirmed", "renewed", "refused", "delayed"):
            counts[f"share_{name}"] = getattr(self.share_ledger, name)
        return counts
