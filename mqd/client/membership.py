"""The membership of a consumer: a task that takes the steps of its member until it leaves.

It sends the member's requests to the coordinator, looks up topics, and wakes the tasks that wait
for a change. What a step means is in `group_member.py` and the files of the two protocols.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import trio

from mqd.client.classic_member import ClassicMember
from mqd.client.cluster import ClusterClient
from mqd.client.consumer_member import ConsumerMember
from mqd.client.coordinator import Coordinator, KeyType
from mqd.client.errors import ClientError, as_client_error
from mqd.client.group_member import (
    COORDINATOR_MOVED,
    CoordinatorRequest,
    FoundTopic,
    Step,
    TopicLookup,
    Wait,
    is_retriable,
)
from mqd.client.group_options import GroupOptions
from mqd.errors import ErrorCode, MqError


class Member(Protocol):
    """A member of a group, of any protocol."""

    failure: ClientError | None

    def next(self, now: float) -> Step: ...

    def on_response(
        self, request: CoordinatorRequest, response: Any, now: float, draw: float
    ) -> None: ...

    def on_failure(
        self, step: CoordinatorRequest | TopicLookup, now: float, draw: float
    ) -> None: ...

    def leave_request(self) -> CoordinatorRequest | None: ...


class MemberTask:
    """The task of one member. The consumer starts `run` in its nursery."""

    def __init__(
        self, client: ClusterClient, group_id: str, steps: Member, *, on_step: Callable[[], None]
    ) -> None:
        """`on_step` is called after each step of the member."""
        self.coordinator = Coordinator(client, group_id, KeyType.GROUP)
        self._client = client
        self._steps = steps
        self._on_step = on_step
        self._purpose = f"group-{id(self)}"
        self._woken = trio.Event()
        self._stepped = trio.Event()
        self._scope = trio.CancelScope()

    def wake(self) -> None:
        """Ask the member for its next step again: something changed."""
        self._woken.set()
        self._woken = trio.Event()
        self._notify()

    async def run(self) -> None:
        """Take the member's steps until `stop`."""
        with self._scope:
            await self._run()

    async def _run(self) -> None:
        member = self._steps
        while True:
            woken = self._woken
            step = member.next(trio.current_time())
            if isinstance(step, Wait):
                with trio.move_on_at(step.until):
                    await woken.wait()
                continue
            draw = self._client.entropy.random()
            try:
                if isinstance(step, TopicLookup):
                    await self._look_up(step)
                else:
                    response = await self.coordinator.ask(
                        step.key, step.body, timeout_s=step.timeout_s, purpose=self._purpose
                    )
                    if response.error_code in COORDINATOR_MOVED:
                        self.coordinator.forget()
                    member.on_response(step, response, trio.current_time(), draw)
            except MqError as error:
                if not is_retriable(error):
                    member.failure = as_client_error(error)
                member.on_failure(step, trio.current_time(), draw)
            self._notify()
            self._on_step()

    def _notify(self) -> None:
        self._stepped.set()
        self._stepped = trio.Event()

    async def _look_up(self, lookup: TopicLookup) -> None:
        """Look up topics for the member. Raises MqError."""
        raise AssertionError("this member looks up no topics")

    def stop(self) -> None:
        """Take no more steps."""
        self._scope.cancel()

    async def leave(self, timeout_s: float) -> None:
        """Send the member's last request, once. A failure is ignored: the session ends by
        itself."""
        request = self._steps.leave_request()
        if request is None:
            return
        # A heartbeat that joins may still be on its way and must not arrive after this request:
        # both use one connection. A parked JoinGroup would delay it, so there it uses another one.
        # That JoinGroup is harmless later: the coordinator does not know a member that has left.
        purpose = "" if isinstance(self._steps, ClassicMember) else self._purpose
        try:
            await self.coordinator.ask(
                request.key, request.body, timeout_s=timeout_s, purpose=purpose
            )
        except MqError:
            pass

    def close_connections(self) -> None:
        self._client.close_connections(self._purpose)


class Membership(MemberTask):
    """The task of a group consumer's member."""

    def __init__(
        self, client: ClusterClient, options: GroupOptions, *, on_step: Callable[[], None]
    ) -> None:
        """`on_step` is called after each step of the member."""
        now = trio.current_time()
        self.options = options
        self.member: ClassicMember | ConsumerMember
        if options.group_protocol == "classic":
            self.member = ClassicMember(options, now)
        else:
            self.member = ConsumerMember(options, now, str(client.entropy.uuid()))
        super().__init__(client, options.group_id, self.member, on_step=on_step)

    def heartbeat_now(self) -> None:
        """Send the next heartbeat at once, if the protocol returns a new epoch in it."""
        if isinstance(self.member, ConsumerMember):
            self.member.heartbeat_now()
            self.wake()

    async def wait_until_member(self, doing: str, deadline: float) -> None:
        """Return when the member may commit.

        Waits while the next generation may come without the user. Raises the member's final error,
        and REBALANCE_IN_PROGRESS if the user must call `next`, or when `deadline` passes.
        """
        member = self.member
        while not member.is_member or (isinstance(member, ClassicMember) and member.may_advance):
            if member.failure is not None:
                raise member.failure.copy()
            if not member.may_advance:
                message = f"{doing}: a rebalance waits for this member"
                remedy = "call next, then commit again"
                raise ClientError(ErrorCode.REBALANCE_IN_PROGRESS, message, remedy=remedy)
            with trio.move_on_at(deadline) as scope:
                await self._stepped.wait()
            if scope.cancelled_caught:
                message = f"{doing}: a rebalance is under way"
                raise ClientError(ErrorCode.REBALANCE_IN_PROGRESS, message)

    async def _look_up(self, lookup: TopicLookup) -> None:
        view = await self._client.refresh(None if lookup.all_topics else lookup.names)
        found = {
            topic.name: FoundTopic(topic.topic_id, len(topic.partitions))
            for topic in view.topics.values()
            if not topic.error_code
            and (topic.name in lookup.names or (lookup.all_topics and not topic.internal))
        }
        self.member.on_topics(found, trio.current_time())
