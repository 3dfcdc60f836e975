"""The decision record of mode atomic-batch: which transactions a batch consists of. Pure.

`commit(N)` on the driver writes D = (N, transactions, not ended), commits each transaction, and
then writes D = (N, transactions, ended). From the first write on, batch N is decided: any driver
that reads an unfinished D commits the remaining transactions. D is a set of committed offsets of
the group `<query>.driver`, written in a transaction of the driver, which fences drivers that were
started before. Each plan of a batch leaves its claim in D, and `commit` decides under the claim of
its own plan only.

A batch id does not identify rows: after an older checkpoint was restored, Spark plans the same id
again, with other offsets. So D identifies its batch by the time at which Spark planned it, and by
the sum of its rows. A second batch with the id of D is the same one if either is equal.

Brokers accept 4,096 characters of metadata an offset, for partitions that exist. So D is cut into
entries: the first has a head line with the number of entries and a checksum of the whole. Entries
go to the partitions of the marker topic, and then to further groups (`<query>.driver.<n>`), all in
one transaction. The offset of each entry is the id of the next batch.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from .markers import ExactlyOnceError, RowSum

VERSION = 2
ENTRY_CHARACTERS_MAX = 4096
HEAD_CHARACTERS_MAX = 512
NO_BATCH = -1
"""The batch id of D before the first decision."""


class Prepared(NamedTuple):
    """One transaction that is ready to be committed; a later producer epoch fences it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


NO_ROWS = RowSum()


@dataclass(frozen=True, slots=True)
class Contents:
    """What identifies a batch, beside its id."""

    rows: RowSum = NO_ROWS
    """The rows of all tasks, in any order."""
    planned_ms: int | None = None
    """`checkpoint_files.planned_ms_of`; None where the driver cannot read the checkpoint."""

    def is_same(self, other: Contents) -> bool:
        """Whether both are of the same batch. A plan that is not deterministic has other rows."""
        if self.planned_ms is not None and self.planned_ms == other.planned_ms:
            return True
        return self.rows == other.rows


NO_CONTENTS = Contents()


@dataclass(frozen=True, slots=True)
class Decision:
    """D: the last decided batch of a query."""

    batch_id: int
    query_id: str
    transactions: tuple[Prepared, ...]
    ended: bool
    claim: str = ""
    """The claim of the newest plan; empty once its batch is complete. A commit or a task under
    another claim is superseded."""
    contents: Contents = NO_CONTENTS

    def as_ended(self) -> Decision:
        """The same decision, with every transaction committed. The list is no longer needed."""
        return replace(self, transactions=(), ended=True)

    @property
    def offset(self) -> int:
        """The offset of its entries."""
        return self.batch_id + 1


class Place(NamedTuple):
    """The position of an entry: the number of the group, and the partition of the marker topic."""

    group: int
    partition: int


def places(count: int, partitions: int) -> list[Place]:
    """The places of the first `count` entries."""
    assert partitions > 0
    return [Place(index // partitions, index % partitions) for index in range(count)]


def entries_of(decision: Decision, query: str) -> list[str]:
    """The decision as texts of at most ENTRY_CHARACTERS_MAX characters, the head first."""
    body = " ".join(_row(each, query) for each in decision.transactions)
    assert body.isascii(), body
    chunks = _cut(body)
    head = {
        "v": VERSION,
        "query": decision.query_id,
        "claim": decision.claim,
        "ended": decision.ended,
        "rows": decision.contents.rows.rows,
        "hash": decision.contents.rows.hashes,
        "planned": decision.contents.planned_ms,
        "entries": 1 + len(chunks),
        "crc": zlib.crc32(body.encode()),
    }
    text = json.dumps(head, separators=(",", ":"))
    assert len(text) <= HEAD_CHARACTERS_MAX, text
    return [text, *chunks]


def _row(each: Prepared, query: str) -> str:
    """`<worker>.<slot>:<producer id>:<epoch>`: the query's name is left out."""
    prefix = f"{query}."
    assert each.transactional_id.startswith(prefix), each
    rest = each.transactional_id.removeprefix(prefix)
    return f"{rest}:{each.producer_id}:{each.producer_epoch}"


def _cut(text: str) -> list[str]:
    most = ENTRY_CHARACTERS_MAX
    return [text[start : start + most] for start in range(0, len(text), most)]


def entry_count_of(head: str, group: str) -> int:
    """How many entries the decision with this head has. Raises ExactlyOnceError."""
    return int(_head_fields(head, group)["entries"])


def decision_of(offsets: Sequence[int], entries: Sequence[str], query: str) -> Decision:
    """The decision that these entries hold. Raises ExactlyOnceError for a damaged one."""
    group = f"{query}.driver"
    fields = _head_fields(entries[0], group)
    body = "".join(entries[1:])
    if (
        len(entries) != fields["entries"]
        or len(set(offsets)) != 1
        or zlib.crc32(body.encode()) != fields["crc"]
    ):
        found = sorted(set(offsets))
        raise _damaged(group, f"entries at offsets {found} do not fit together")
    transactions = []
    for row in body.split():
        name, producer_id, epoch = row.rsplit(":", 2)
        transactions.append(Prepared(f"{query}.{name}", int(producer_id), int(epoch)))
    planned_ms = fields["planned"]
    return Decision(
        offsets[0] - 1,
        str(fields["query"]),
        tuple(transactions),
        bool(fields["ended"]),
        str(fields["claim"]),
        Contents(
            RowSum(int(fields["rows"]), int(fields["hash"])),
            None if planned_ms is None else int(planned_ms),
        ),
    )


_FIELDS = {"query", "claim", "ended", "rows", "hash", "planned", "entries", "crc"}


def _head_fields(head: str, group: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(head)
        version = fields["v"]
        if version == VERSION and fields.keys() >= _FIELDS:
            return dict(fields)
        if isinstance(version, int) and version != VERSION:
            raise ExactlyOnceError(
                f"Group '{group}' has a decision record of format {version}, but this version "
                "of the "
                f"connector reads format {VERSION} only. Let the query complete its last "
                "batch with "
                "the version that wrote the record. Then set option 'exactlyOnceId' to a new name, "
                "and option 'acceptMissingMarkers' to 'true' for one start."
            )
    except (ValueError, TypeError, KeyError, AttributeError):
        fields = None
    raise _damaged(group, f"the head is '{head[:HEAD_CHARACTERS_MAX]}'")


def _damaged(group: str, why: str) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"The decision record in group '{group}' cannot be read: {why}. Another program commits "
        "offsets to this group, or another version of the connector wrote it. Stop the other "
        "program; see 'mqd-spark txn list' for transactions that are still open."
    )


class CommitAction(Enum):
    """What `commit(N)` has to do."""

    DECIDE = "write the decision"
    ROLL_FORWARD = "commit the transactions of the decision, abort those of this run"
    ALREADY_COMMITTED = "abort the transactions of this run"


def commit_action_of(
    decision: Decision | None,
    *,
    batch_id: int,
    query_id: str,
    query: str,
    claim: str,
    contents: Contents,
    accept_missing: bool,
    accept_changed: bool,
) -> CommitAction:
    """What commit(`batch_id`) has to do after it has read D. Raises ExactlyOnceError."""
    assert batch_id >= 0
    if decision is None or decision.claim != claim:
        raise ExactlyOnceError(
            f"Batch {batch_id} of '{query}' is not committed: another run of this query has "
            "started since. Stop one of the two runs; or, if this is the only one, start the query "
            "again."
        )
    if decision.batch_id > NO_BATCH:
        check_query(decision, query_id, query)
        if decision.batch_id > batch_id:
            raise ExactlyOnceError(
                f"Batch {batch_id} of '{query}' is to be committed, but batch {decision.batch_id} "
                "is decided already. The checkpoint is older than what was written, or another "
                "run of this query is active. No row of this run is visible. Stop the other run, "
                "or restore the newest checkpoint."
            )
        if decision.batch_id == batch_id:
            check_same_contents(decision, contents, query, accept_changed=accept_changed)
            return CommitAction.ALREADY_COMMITTED if decision.ended else CommitAction.ROLL_FORWARD
        if decision.batch_id == batch_id - 1:
            if not decision.ended:
                raise ExactlyOnceError(
                    f"Batch {batch_id} of '{query}' is to be committed while batch "
                    f"{decision.batch_id} is decided but not ended. Start the query again."
                )
            return CommitAction.DECIDE
    if batch_id == 0 or accept_missing:
        return CommitAction.DECIDE
    last = "no decision record"
    if decision.batch_id > NO_BATCH:
        last = f"the record of batch {decision.batch_id}"
    raise ExactlyOnceError(
        f"Batch {batch_id} cannot be written exactly once: group '{query}.driver' has {last}, and "
        f"the record of batch {batch_id - 1} is missing. Records expire when a query is stopped "
        "for longer than 'offsets.retention.minutes' of the brokers (7 days by default). A "
        "query whose delivery guarantee has changed has none. Rows of this batch may be in the "
        "topic already. Compare the topic with the batch; then set option 'acceptMissingMarkers' "
        "to 'true' for one start to write the batch, or start with a new checkpoint."
    )


def check_same_contents(
    decision: Decision, contents: Contents, query: str, *, accept_changed: bool
) -> None:
    """The batch of D is the one that runs now. Raises ExactlyOnceError.

    With `accept_changed`, decided rows stand for other rows, unless this run has more of them:
    those would be lost.
    """
    decided, found = decision.contents.rows, contents.rows
    # A batch id alone does not identify rows (I48).
    if decision.contents.is_same(contents):
        return
    if accept_changed and found.rows <= decided.rows:
        return
    remedy = (
        "Otherwise compare the topic with the batch. Then set option 'acceptChangedRows' to 'true' "
        "for one start: the rows in the topic stay, and this run writes none."
    )
    if found.rows > decided.rows:
        remedy = (
            "Otherwise start with a new checkpoint and a new topic. Option "
            "'acceptChangedRows' does "
            f"not apply, because {found.rows - decided.rows} rows would be lost."
        )
    raise ExactlyOnceError(
        f"Batch {decision.batch_id} of '{query}' is in the topic with {decided.rows} rows (hash "
        f"{decided.hashes}), but this run of the batch has {found.rows} rows (hash "
        f"{found.hashes}). Either the checkpoint is older than what was written, and the batch was "
        "planned "
        "again with other offsets. Or the checkpoint is not on the driver's file system, and the "
        "plan is not deterministic or the source has lost records. No row of this run is visible. "
        f"If an older checkpoint was restored, restore the newest one. {remedy}"
    )


def changed_batch(decision: Decision, contents: Contents) -> str:
    """The warning of a micro-batch for a user who has set `acceptChangedRows`."""
    return (
        f"Batch {decision.batch_id} keeps the {decision.contents.rows.rows} rows that are in the "
        f"topic. The {contents.rows.rows} other rows of this run are not written, because "
        "option 'acceptChangedRows' is 'true'. Remove the option before the next start."
    )


def check_query(decision: Decision, query_id: str, query: str) -> None:
    """The record is of the same checkpoint. Raises ExactlyOnceError."""
    if decision.query_id not in ("", query_id):
        raise ExactlyOnceError(
            f"Group '{query}.driver' has the decision record of the query with id "
            f"'{decision.query_id}', but this query has id '{query_id}': the checkpoint is another "
            "one. Set option 'exactlyOnceId' to a name that was not used before, or resume from "
            "the checkpoint of the first query."
        )


def orphans_of(open_ids: Iterable[str], decided: Iterable[Prepared]) -> list[str]:
    """Open transactional ids of a query that no decision lists: the sweep aborts them."""
    kept = {each.transactional_id for each in decided}
    return sorted(each for each in set(open_ids) if each not in kept)


class Slots:
    """The transactional ids of one Python process, by number: each is of one task at a time.

    A number is used again by a later batch of its query only. Then the batch of its last use is
    complete. Spark starts a batch after `commit` of the previous one has returned, so every decided
    transaction has ended. Within the same batch, a transaction of a failed or a superseded attempt
    may be decided already. A new use of its id would abort it.
    """

    def __init__(self) -> None:
        self._last_batch: dict[str, dict[int, int]] = {}
        self._busy: set[tuple[str, int]] = set()

    def take(self, query: str, batch_id: int) -> int:
        """A number for a task of this batch; `give_back` ends its use."""
        used = self._last_batch.setdefault(query, {})
        slot = next(
            (
                slot
                for slot, last in sorted(used.items())
                if last < batch_id and (query, slot) not in self._busy
            ),
            len(used),
        )
        used[slot] = batch_id
        self._busy.add((query, slot))
        return slot

    def give_back(self, query: str, slot: int) -> None:
        """The task has ended, whether it succeeded or failed."""
        self._busy.discard((query, slot))
