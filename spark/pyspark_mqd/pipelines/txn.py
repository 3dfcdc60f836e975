"""mqd-spark txn: open transactions of queries with the sink, and ending those of a dead query.

An open transaction holds back every reader with read_committed. A query ends what its last run left
open when it resumes; these commands are for a query that never resumes.

`abort` must not touch a transaction that a decision record of atomic-batch lists: its batch counts
as written. So the driver of atomic_driver.py aborts the others. It takes the record's claim first,
so that no active run can decide a batch. It does not disturb a run that starts meanwhile. `plan` is
pure.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from mqd.client.errors import ClientError
from mqd.client.group_descriptions import TransactionDescription
from mqd.errors import ErrorCode
from pyspark_mqd.decisions import Decision, Prepared
from pyspark_mqd.pipelines import report
from pyspark_mqd.pipelines.brokers import connected
from pyspark_mqd.pipelines.checkpoint import folder_of, read_checkpoint
from pyspark_mqd.pipelines.cli import HELP_NAMES, Failure, Settings, confirm, options
from pyspark_mqd.pipelines.progress import seconds
from pyspark_mqd.pipelines.report import Column
from pyspark_mqd.transaction_ids import IdKind, driver_id, identity_of, owner_of

if TYPE_CHECKING:
    from mqd.client.sync import BlockingClient
    from pyspark_mqd.atomic_driver import Driver

ONGOING = "Ongoing"
OPEN = frozenset({ONGOING, "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
NO_TIMEOUT_MS = 2**31 - 1
"""The timeout that a transaction has when only its driver ends it."""

COLUMNS = (
    Column("query", "QUERY"),
    Column("transactional_id", "TRANSACTIONAL-ID"),
    Column("kind", "KIND"),
    Column("state", "STATE"),
    Column("open_for", "OPEN-FOR", right=True),
    Column("timeout", "TIMEOUT", right=True),
    Column("partitions", "PARTITIONS"),
    Column("fate", "OUTCOME"),
)


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id of the form that the sink uses, with its transaction."""

    query: str
    kind: IdKind
    about: TransactionDescription

    @property
    def is_open(self) -> bool:
        return self.about.state in OPEN

    @property
    def ended_by(self) -> Prepared:
        """What ends it: a prepared transaction has an owner of its own, with a later epoch."""
        about = self.about
        producer = about.owner or (about.producer_id, about.producer_epoch)
        return Prepared(about.transactional_id, *producer)


@dataclass(frozen=True, slots=True)
class CleanUpPlan:
    """What becomes of the open transactions of one query."""

    abort: tuple[Transaction, ...] = ()
    decided: tuple[Transaction, ...] = ()
    """Listed in a decision record that is not ended: to be committed, never aborted."""
    ending: tuple[Transaction, ...] = ()
    """Their outcome is fixed, and their coordinators write it."""


def transactions_of(
    described: Iterable[TransactionDescription], query: str | None
) -> list[Transaction]:
    """The transactions that the sink of `query` (of any query, if None) may have begun, by name."""
    found = []
    for about in described:
        owner = owner_of(about.transactional_id)
        if owner is not None and query in (None, owner.query):
            found.append(Transaction(owner.query, owner.kind, about))
    return sorted(found, key=lambda each: (each.query, each.about.transactional_id))


def plan(transactions: Iterable[Transaction], decision: Decision | None) -> CleanUpPlan:
    """What to do with the open transactions of one query.

    The decision lists (id, producer id, epoch): a transaction that an id has begun later, with
    another epoch, is not the decided one.
    """
    listed: set[Prepared] = set()
    if decision is not None and not decision.ended:
        listed = set(decision.transactions)
    abort, decided, ending = [], [], []
    for each in transactions:
        if each.ended_by in listed:
            decided += [each] if each.is_open else []
        elif each.about.state == ONGOING:
            abort.append(each)
        elif each.is_open:
            ending.append(each)
    return CleanUpPlan(tuple(abort), tuple(decided), tuple(ending))


def rows_of(
    transactions: Iterable[Transaction], fates: Mapping[str, str], now_ms: int
) -> list[dict[str, Any]]:
    """One row a transactional id."""
    rows = []
    for each in transactions:
        about = each.about
        age = (now_ms - about.started_ms) / 1000 if each.is_open and about.started_ms >= 0 else None
        rows.append(
            {
                "query": each.query,
                "transactional_id": about.transactional_id,
                "kind": each.kind.value,
                "state": about.state,
                "open_seconds": age,
                "timeout_ms": None if about.timeout_ms == NO_TIMEOUT_MS else about.timeout_ms,
                "producer_id": about.producer_id,
                "producer_epoch": about.producer_epoch,
                "partitions": [str(tp) for tp in about.partitions] if each.is_open else [],
                "fate": fates.get(about.transactional_id, ""),
            }
        )
    return rows


def fates_of(planned: CleanUpPlan) -> dict[str, str]:
    """What `abort` would do with each open transaction."""
    fates = {each.about.transactional_id: "to abort" for each in planned.abort}
    fates |= {each.about.transactional_id: "decided: to commit" for each in planned.decided}
    return fates | {each.about.transactional_id: "is being ended" for each in planned.ending}


# -- the commands


@click.group(context_settings=HELP_NAMES, no_args_is_help=True)
def command() -> None:
    """List, abort and commit open transactions of streaming queries that write with format mqd.

    \b
    Example: mqd-spark txn list
    """


_query = click.option(
    "--query", metavar="NAME", help="Query: its option exactlyOnceId, or spark-<query id>."
)
_checkpoint = click.option(
    "--checkpoint", metavar="DIR", help="Checkpoint of the query, instead of --query."
)
_yes = click.option("--yes", is_flag=True, help="Skip the confirmation.")


@command.command("list")
@options()
@_query
@_checkpoint
@click.option(
    "--all", "closed", is_flag=True, help="Include transactional ids without an open transaction."
)
def list_(settings: Settings, query: str | None, closed: bool) -> None:
    """List open transactions with their age and planned outcome.

    Without --query and --checkpoint, the transactions of all queries are listed. That includes ids
    of other programs that end with a hyphen and a number.

    \b
    Example: mqd-spark txn list
             mqd-spark txn list --checkpoint state/orders --all -o json
    """
    name = query_of(settings, query)
    with connected(settings) as client:
        found = [each for each in gather(client, name) if closed or each.is_open]
        fates: dict[str, str] = {}
        for each in sorted({one.query for one in found if one.is_open}):
            own = [one for one in found if one.query == each]
            try:
                fates |= fates_of(plan(own, read_decision(client, each, own)))
            except ClientError as error:
                fates |= {one.about.transactional_id: f"unknown: {error.message}" for one in own}
    show(settings.output, found, fates)


@command.command("abort")
@options()
@_query
@_checkpoint
@_yes
def abort(settings: Settings, query: str | None, yes: bool) -> None:
    """Abort the open transactions of a query that never resumes.

    The command fences the query: a run that is still alive fails, and can be restarted.
    Transactions that a decision record lists are left open; `mqd-spark txn commit` commits them.

    \b
    Example: mqd-spark txn abort --query orders-enriched
    """
    name = required(query_of(settings, query))
    with connected(settings) as client:
        known = gather(client, name)
        if not known:
            raise Failure(
                f"The cluster has no transactional id of the query '{name}'.",
                remedy="See the names of queries with `mqd-spark txn list --all`.",
            )
        found = [each for each in known if each.is_open]
        if not found:
            show(settings.output, [], {})
            return
        confirm(_preview("abort", name, found), yes=yes)
        decision = abort_workers(client, name, found)
        planned = plan(found, decision)
        fence(client, _to_fence(planned.abort, decision))
    report_ends(settings.output, planned, [each.about.transactional_id for each in planned.abort])


@command.command("commit")
@options()
@_query
@_checkpoint
@_yes
def commit(settings: Settings, query: str | None, yes: bool) -> None:
    """Commit what an atomic-batch query has decided.

    These are the transactions in its decision record. The query does the same when it resumes. The
    command fences the query and aborts its other open transactions: they belong to no committed
    micro-batch.

    \b
    Example: mqd-spark txn commit --query orders-enriched
    """
    name = required(query_of(settings, query))
    with connected(settings) as client:
        found = gather(client, name)
        decision = read_decision(client, name, found)
        if decision is None or decision.ended:
            raise Failure(
                f"The query '{name}' has no decided batch whose transactions are open.",
                remedy="See `mqd-spark txn list`; undecided ones end with `mqd-spark txn abort`.",
            )
        listed = {each.transactional_id for each in decision.transactions}
        own = [each for each in found if each.about.transactional_id in listed]
        confirm(_preview("commit", name, own), yes=yes)
        driver_of(client, name).plan(None)
    report.show_summary(
        settings.output, {"query": name, "batch": decision.batch_id, "committed": sorted(listed)}
    )


def query_of(settings: Settings, query: str | None) -> str | None:
    """The identity that --query or --checkpoint names; None without both."""
    if settings.checkpoint and query:
        raise click.UsageError("Specify one of --query and --checkpoint")
    if settings.checkpoint:
        return identity_of(read_checkpoint(folder_of(settings.checkpoint)).query_id)
    return query


def required(query: str | None) -> str:
    """The identity; a usage error without one."""
    if not query:
        raise click.UsageError("Specify the query: --query NAME or --checkpoint DIR")
    return query


def gather(client: BlockingClient, query: str | None) -> list[Transaction]:
    """What the coordinators know of the query's transactional ids. Raises ClientError."""
    names = [each.transactional_id for each in client.admin.list_transactions()]
    wanted = [
        name
        for name in names
        if (owner := owner_of(name)) is not None and query in (None, owner.query)
    ]
    described = client.admin.describe_transactions(wanted)
    found = []
    for outcome in described.values():
        if isinstance(outcome, TransactionDescription):
            found.append(outcome)
        elif outcome.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise outcome
    return transactions_of(found, query)


def driver_of(client: BlockingClient, query: str) -> Driver:
    """What reads and writes the decision record of a query."""
    from pyspark_mqd.atomic_driver import Driver

    group = driver_id(query)
    outcome = client.admin.list_group_offsets([group], stable=True)[group]
    if isinstance(outcome, ClientError):
        raise outcome
    topic = (
        max(outcome, key=lambda tp: (outcome[tp].offset, -tp.partition)).topic if outcome else ""
    )
    return Driver(client, query, topic)


def read_decision(
    client: BlockingClient, query: str, transactions: Collection[Transaction]
) -> Decision | None:
    """The decision record of an atomic-batch query; None for other queries.

    Waits while the driver's own transaction may still change it. Raises ClientError.
    """
    if all(each.kind is IdKind.TASK for each in transactions):
        return None
    return driver_of(client, query).read()


def abort_workers(
    client: BlockingClient, query: str, transactions: Collection[Transaction]
) -> Decision | None:
    """Abort what workers of atomic-batch have open, and return the decision record.

    A run that starts meanwhile is left alone. None without a record: then nothing is aborted.
    """
    if all(each.kind is IdKind.TASK for each in transactions):
        return None
    return driver_of(client, query).abort_undecided()


def _to_fence(transactions: Iterable[Transaction], decision: Decision | None) -> list[str]:
    """Ids that `abort_workers` has not ended."""
    return [
        each.about.transactional_id
        for each in transactions
        if decision is None or each.kind is IdKind.TASK
    ]


def fence(client: BlockingClient, transactional_ids: Sequence[str]) -> list[str]:
    """Give each id a new epoch, which aborts what it has open. Raises the first ClientError."""
    outcomes = client.admin.fence_producers(transactional_ids) if transactional_ids else {}
    for outcome in outcomes.values():
        if isinstance(outcome, ClientError):
            raise outcome
    return sorted(outcomes)


def _preview(verb: str, query: str, transactions: Sequence[Transaction]) -> str:
    rows = rows_of(transactions, {}, time.time_ns() // 1_000_000)
    shown = report.table(COLUMNS[1:-1], [_shown(row) for row in rows])
    return (
        f"These transactions of the query '{query}' are open. '{verb}' fences the query: a run that"
        f" is still alive fails.\n{shown}"
    )


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    age, timeout = row["open_seconds"], row["timeout_ms"]
    return {
        **row,
        "open_for": None if age is None else seconds(age),
        "timeout": "none" if timeout is None else seconds(timeout / 1000),
    }


def show(output: str, transactions: Sequence[Transaction], fates: Mapping[str, str]) -> None:
    """The list; a sentence where it is empty."""
    rows = rows_of(transactions, fates, time.time_ns() // 1_000_000)
    if not rows and output == "table":
        click.echo("No transaction is open.", err=True)
    else:
        report.show(output, COLUMNS, rows if output == "json" else [_shown(row) for row in rows])


def report_ends(output: str, planned: CleanUpPlan, aborted: Sequence[str]) -> None:
    """What `abort` did, and what is left."""
    decided = [each.about.transactional_id for each in planned.decided]
    report.show_summary(output, {"aborted": list(aborted), "left_decided": decided})
    if decided:
        click.echo(
            "note: a decision record lists the transactions that are left. Resume the query, or"
            " commit them with `mqd-spark txn commit`.",
            err=True,
        )
