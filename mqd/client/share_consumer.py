"""Reading as a member of a share group (KIP-932):
`async with open_share_consumer(client, "billing", ["orders"]) as consumer`, then
`async for record in consumer`.

One task runs the membership (`membership.py`), one decides what to send (`share_session.py`), and
one short task for each request waits for its response. Each broker has a connection of its own:
a fetch waits there for records. Records are delivered at least once: a record whose acknowledgement
failed, or whose lock ended, is delivered again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator

import trio

from mqd.client.backoff import backoff_s
from mqd.client.cluster import ClusterClient, api, check_client
from mqd.client.errors import (
    AcknowledgementFailed,
    ClientError,
    ConsumerClosed,
    DeadlineExceeded,
    as_client_error,
)
from mqd.client.fetched_batches import corrupt
from mqd.client.keyword_options import takes_options
from mqd.client.membership import MemberTask
from mqd.client.metadata import ClusterView
from mqd.client.nurseries import joining_nursery, lasting_nursery
from mqd.client.share_member import Place, ShareMember, member_id_of
from mqd.client.share_options import ShareOptions
from mqd.client.share_records import ShareRecord, decode
from mqd.client.share_session import (
    DUE_COUNT,
    SHARE_FETCH,
    Acknowledgement,
    AcknowledgeType,
    AcquiredRows,
    FetchOptions,
    Outcome,
    Request,
    ShareSession,
)
from mqd.errors import ErrorCode, MqError
from mqd.types import TopicPartition

_WAIT_WITH_RECORDS_MS = 50
"""While the program works on records, a fetch waits at the broker at most so long: their
acknowledgements wait behind it."""
_TAKEN_IN_A_ROW = 64
"""After this many records, other tasks run once."""
_RENEWS_FROM = 2
"""The version of both APIs that renews locks and limits records."""


class ShareConsumer:
    """Made by `open_share_consumer`. Several tasks may take records in explicit mode."""

    def __init__(self, client: ClusterClient, nursery: trio.Nursery, options: ShareOptions) -> None:
        self._client = client
        self._nursery = nursery
        self._options = options
        self._member = ShareMember(options, member_id_of(client.entropy.uuid()))
        self._membership = MemberTask(client, options.group_id, self._member, on_step=self._wake)
        self._sessions: dict[int, ShareSession] = {}
        self._ready: deque[ShareRecord] = deque()
        """Records that are acquired and not taken."""
        self._delivered: ShareRecord | None = None
        """Implicit mode: the record that the program works on."""
        self._failures: deque[ClientError] = deque()
        """Errors that `next` raises."""
        self._unreported: AcknowledgementFailed | None = None
        """The first failure since the last `flush`, of those that no call waited for."""
        self._names: dict[Place, str] = {}
        self._placed: tuple[frozenset[Place], ClusterView] | None = None
        """What the sessions want is according to these."""
        self._work = trio.Event()
        """Set when the task that sends requests has something to decide."""
        self._changed = trio.Event()
        """Set, and replaced, when a call that waits must look again."""
        self._refreshing = False
        self._takers = 0
        """Calls of `next` that wait."""
        self._taken = 0
        self._fetching = 0
        self._closed = False
        self._purpose = f"share-{id(self)}"

    # -- for users

    async def next(self) -> ShareRecord:
        """The next record; waits for one. In implicit mode, it accepts the record before.

        Cancel-safe: no record is lost. Raises ClientError. An error of the membership is final.
        """
        self._accept_delivered()
        self._taken += 1
        if self._taken % _TAKEN_IN_A_ROW == 1:
            await trio.lowlevel.checkpoint()
        while True:
            if self._closed:
                raise ConsumerClosed
            if self._member.failure is not None:
                raise self._member.failure.copy()
            if self._failures:
                raise self._failures.popleft()
            record = self._take()
            if record is not None:
                if self._options.mode == "implicit":
                    self._delivered = record
                return record
            self._takers += 1
            self._work.set()
            changed = self._changed
            try:
                await changed.wait()
            finally:
                self._takers -= 1

    def __aiter__(self) -> AsyncIterator[ShareRecord]:
        return self

    async def __anext__(self) -> ShareRecord:
        return await self.next()

    async def flush(self) -> None:
        """Wait until each acknowledgement so far has an outcome.

        Raises the first AcknowledgementFailed since the last call, of those that no call waited
        for. Raises DeadlineExceeded after `timeout_s`.
        """
        with trio.move_on_after(self._options.timeout_s) as scope:
            await self._all_acknowledged()
        if scope.cancelled_caught:
            raise DeadlineExceeded("the acknowledgements were not stored in time")
        failure, self._unreported = self._unreported, None
        if failure is not None:
            raise failure

    def assignment(self) -> list[TopicPartition]:
        """The partitions that the coordinator has assigned, as far as their topics are known."""
        found = [(self._names.get(place), place.partition) for place in self._member.assignment]
        return sorted(TopicPartition(name, index) for name, index in found if name is not None)

    @property
    def member_id(self) -> str:
        return self._member.member_id

    def close(self) -> None:
        """Stop delivery; a waiting `next` raises ConsumerClosed."""
        self._closed = True
        self._wake()

    # -- for records

    def acknowledge(
        self, record: ShareRecord, kind: AcknowledgeType, delay_ms: int
    ) -> Acknowledgement:
        """Queue an acknowledgement of a record."""
        one = Acknowledgement(record.place, record.offset, kind, delay_ms)
        session = record.session
        if session.acknowledge(one, record.generation, trio.current_time()):
            if session.waiting_count % DUE_COUNT <= 1:
                self._work.set()
        else:
            self._report(one)
        return one

    async def stored(self, one: Acknowledgement, session: ShareSession) -> None:
        """Wait for the outcome of an acknowledgement. Raises AcknowledgementFailed."""
        if not one.is_done:
            stored = trio.Event()
            one.on_done = stored.set
            session.is_urgent = True
            self._work.set()
            await stored.wait()
        if one.error is not None:
            raise one.error.copy()

    @staticmethod
    def lock_ends(session: ShareSession) -> float:
        """When a lock that begins now ends."""
        return trio.current_time() + session.lock_s

    def _accept_delivered(self) -> None:
        record, self._delivered = self._delivered, None
        if record is not None and not record.is_acknowledged:
            record.accept_soon()

    def _take(self) -> ShareRecord | None:
        """A record that is still acquired."""
        ready, now = self._ready, trio.current_time()
        while ready:
            record = ready.popleft()
            if len(ready) == self._options.max_records // 2:
                self._work.set()  # fetch more
            if record.is_current and now < record.lock_ends:
                return record
            if record.is_current:
                record.session.acquired_count -= 1
        return None

    def _report(self, one: Acknowledgement) -> None:
        """An acknowledgement failed. A call that waits for it raises the error."""
        if one.on_done is not None or one.kind is AcknowledgeType.GAP:
            return
        assert one.error is not None
        if self._unreported is None:
            self._unreported = one.error
        if self._options.on_acknowledgement_failed is not None:
            self._options.on_acknowledgement_failed(one.error)

    # -- requests

    def _wake(self) -> None:
        self._work.set()
        self._changed.set()
        self._changed = trio.Event()

    async def _run(self) -> None:
        """Decide what to send, until cancelled."""
        linger_s = self._options.acknowledge_linger_ms / 1000
        while True:
            self._work = trio.Event()
            now = trio.current_time()
            self._place()
            for session in list(self._sessions.values()):
                request = session.next_request(
                    now, fetch=self._fetch_options(session, now), linger_s=linger_s
                )
                if request is not None:
                    self._fetching += request.key == SHARE_FETCH
                    self._nursery.start_soon(self._exchange, session, request)
                elif session.is_unused and not session.is_open:
                    del self._sessions[session.node_id]
            until = min(
                (one.next_deadline(now, linger_s) for one in self._sessions.values()),
                default=float("inf"),
            )
            with trio.move_on_at(until):
                await self._work.wait()

    def _place(self) -> None:
        """Have each session want the assigned partitions that its broker leads."""
        view, assignment = self._client.view, self._member.assignment
        if self._placed is not None and self._placed[0] is assignment and self._placed[1] is view:
            return
        self._placed = assignment, view
        ids = {topic.topic_id: topic.name for topic in view.topics.values()}
        self._names = {place: ids[place.topic_id] for place in assignment if place.topic_id in ids}
        by_node: dict[int, list[Place]] = {}
        for place in sorted(assignment):
            name = self._names.get(place)
            leader = view.leader_of(TopicPartition(name, place.partition)) if name else None
            if leader is None:
                self._refresh_soon()
            else:
                by_node.setdefault(leader.node_id, []).append(place)
        for node_id in by_node.keys() - self._sessions.keys():
            self._sessions[node_id] = ShareSession(
                node_id, self._options.group_id, self._member.member_id
            )
        for node_id, session in self._sessions.items():
            session.want(by_node.get(node_id, ()))

    def _fetch_options(self, session: ShareSession, now: float) -> FetchOptions | None:
        """What to fetch now; None: nothing."""
        options, waits = self._options, self._takers > 0
        if self._closed or not self._taken:
            return None
        max_wait_ms = options.max_wait_ms if waits and not self._ready else 0
        if options.is_record_limit:
            if self._ready or self._fetching or not waits:
                return None
            # One broker at a time, so that no more than max_records are acquired.
            max_wait_ms //= max(1, len(self._sessions))
        elif len(self._ready) > options.max_records // 2 or (session.found_nothing and not waits):
            return None
        if any(one.holds_records(now) for one in self._sessions.values()):
            max_wait_ms = min(max_wait_ms, _WAIT_WITH_RECORDS_MS)
        return FetchOptions(
            max_wait_ms,
            options.min_bytes,
            options.max_bytes,
            options.max_records,
            options.is_record_limit,
        )

    async def _exchange(self, session: ShareSession, request: Request) -> None:
        """Send a request and process its response."""
        draw = self._client.entropy.random()
        try:
            response = await self._response(session, request)
        except MqError as error:
            outcome = session.lost(error, trio.current_time(), draw)
            self._refresh_soon()
        else:
            outcome = session.on_response(request, response, trio.current_time(), draw)
        if request.key == SHARE_FETCH:
            self._fetching -= 1
            # The next one asks another broker first.
            if self._sessions.pop(session.node_id, None) is not None:
                self._sessions[session.node_id] = session
        self._carry_out(session, outcome)
        self._wake()

    async def _response(self, session: ShareSession, request: Request) -> object:
        connection = await self._client.connection_to_broker(session.node_id, purpose=self._purpose)
        needs_new = request.body.get("share_acquire_mode") or request.body.get("is_renew_ack")
        if needs_new and connection.version_of(api(request.key)) < _RENEWS_FROM:
            raise ClientError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"broker {session.node_id} neither limits records nor renews locks",
                remedy="upgrade the broker, or use acquire_mode='batch_optimized' without renew",
            )
        found: object = await self._client.request(connection, request.key, request.body)
        return found

    def _carry_out(self, session: ShareSession, outcome: Outcome) -> None:
        now = trio.current_time()
        for rows in outcome.acquired:
            self._receive(session, rows, now)
        if outcome.moved:
            self._refresh_soon()
            moved = {record for record in self._ready if record.place in outcome.moved}
            self._ready = deque(record for record in self._ready if record not in moved)
            for record in moved:
                self._give_back(session, place=record.place, offset=record.offset, now=now)
        self._failures.extend(outcome.failures)
        for one in outcome.failed:
            self._report(one)

    def _receive(self, session: ShareSession, rows: AcquiredRows, now: float) -> None:
        """Make the acquired records of a partition ready."""
        topic = self._names.get(rows.place, "")
        decoded = decode(rows)
        lock_ends = now + session.lock_s
        self._ready.extend(
            ShareRecord(self, session, rows.place, topic, record, count, lock_ends)
            for record, count in decoded.records
        )
        for offset in decoded.gaps:
            gap = Acknowledgement(rows.place, offset, AcknowledgeType.GAP)
            session.acknowledge(gap, session.generation, now)
        for offset in decoded.damaged:
            self._give_back(session, place=rows.place, offset=offset, now=now)
        if decoded.error is not None:
            tp = TopicPartition(topic, rows.place.partition)
            offset = min(decoded.damaged, default=rows.acquired[0][0])
            self._failures.append(corrupt(tp, offset, decoded.error))

    def _give_back(self, session: ShareSession, *, place: Place, offset: int, now: float) -> None:
        """Release a record that the program has not seen. A failure has no consequence."""
        one = Acknowledgement(place, offset, AcknowledgeType.RELEASE)
        one.on_done = _ignored
        session.acknowledge(one, session.generation, now)

    def _refresh_soon(self) -> None:
        if not self._refreshing:
            self._refreshing = True
            self._nursery.start_soon(self._refresh, self._client.view.generation)

    async def _refresh(self, seen: int) -> None:
        try:
            await self._client.refresh(self._options.topics, seen=seen)
        except MqError as error:
            if not error.code.retriable:
                self._failures.append(as_client_error(error))
        self._wake()
        await trio.sleep(backoff_s(3, self._client.entropy.random()))
        self._refreshing, self._placed = False, None
        self._wake()

    # -- the end

    async def _all_acknowledged(self, *, idle: bool = False) -> None:
        """Wait for the outcome of each acknowledgement. `idle`: and for each request that does not
        wait at its broker."""
        while any(
            one.has_acknowledgements or (idle and one.is_busy and not one.waits)
            for one in self._sessions.values()
        ):
            for one in self._sessions.values():
                one.is_urgent = True
            self._work.set()
            await self._changed.wait()

    async def _run_member(self) -> None:
        await self._membership.run()

    async def _finish(self, *, orderly: bool) -> None:
        """Send the last acknowledgements, close the sessions and leave, within `close_timeout_s`.

        The brokers release what is acquired. Without `orderly` (an exception left the block) the
        delivered record is one of these.
        """
        options = self._options
        if orderly:
            self._accept_delivered()
        self.close()
        self._membership.stop()
        try:
            with trio.move_on_after(options.close_timeout_s, shield=True):
                async with joining_nursery() as nursery:
                    nursery.start_soon(self._membership.leave, options.close_timeout_s)
                    nursery.start_soon(self._close_sessions)
        finally:
            for session in self._sessions.values():
                self._carry_out(session, session.lost(ConsumerClosed(), trio.current_time(), 0.0))
            self._client.close_connections(self._purpose)
            self._membership.close_connections()

    async def _close_sessions(self) -> None:
        await self._all_acknowledged(idle=True)
        async with joining_nursery() as nursery:
            for session in self._sessions.values():
                # A fetch may wait for long. The end of its connection ends the session, too.
                if session.is_open and not session.is_busy:
                    nursery.start_soon(self._exchange, session, session.final_request())


def _ignored() -> None:
    pass


@takes_options(ShareOptions)
async def open_share_consumer(
    client: ClusterClient, options: ShareOptions
) -> AsyncIterator[ShareConsumer]:
    """A member of a share group for the length of a block: `open_share_consumer(client, "billing",
    ["orders"])`. Its arguments are the fields of ShareOptions.

    At the end of the block it acknowledges what waits, releases all other records, and leaves.
    Raises ValueError or TypeError for a wrong argument.
    """
    check_client(client)
    async with lasting_nursery() as nursery:
        consumer = ShareConsumer(client, nursery, options)
        nursery.start_soon(consumer._run)
        nursery.start_soon(consumer._run_member)
        orderly = False
        try:
            yield consumer
            orderly = True
        finally:
            await consumer._finish(orderly=orderly)
