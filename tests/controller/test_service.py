"""The service: one operation at a time, a new decision after a competing command, forwarded
requests, sessions, background topics.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from mqd.controller.brokers import Heartbeat, Register
from mqd.controller.commands import Command, encode_command
from mqd.controller.create_partitions import CreatePartitions
from mqd.controller.create_topics import CreateTopics
from mqd.controller.decision_options import NOT_KNOWN
from mqd.controller.delete_topics import DeleteTopics, TopicName
from mqd.controller.machine import MetadataMachine
from mqd.controller.records import (
    PartitionUpdate,
    SetBrokerFencing,
    SetNextProducerId,
    UpdatePartitions,
)
from mqd.controller.service import ControllerService
from mqd.errors import ErrorCode, MqError
from mqd.limits import TRANSACTIONAL_PRODUCER_IDS_FROM
from mqd.raft.machine import NotLeader, OutcomeUnknown
from mqd.types import NO_NODE, IsrChange, IsrOutcome, NodeId, TopicPartition
from tests.controller.cluster import CLUSTER, FakeQuorum, make_controller, new_topic

ONE, TWO = NodeId(1), NodeId(2)


def create(*names: str) -> CreateTopics:
    return CreateTopics(tuple(new_topic(name) for name in names), 1, 1)


async def registered(**rest: Any) -> tuple[ControllerService, FakeQuorum]:
    controller, quorum = make_controller(**rest)
    epoch = await controller.register(
        Register(ONE, CLUSTER, controller.lifecycle.incarnation, "localhost", 9091, None)
    )
    await controller.heartbeat(Heartbeat(ONE, epoch, controller.image.index))
    return controller, quorum


async def refused(awaitable: Any) -> ErrorCode:
    with pytest.raises(MqError) as refusal:
        await awaitable
    return refusal.value.code


async def test_an_operation_returns_after_it_is_applied_and_published() -> None:
    controller, quorum = await registered()
    seen: list[int] = []
    controller.subscribe(lambda delta, image: seen.append(len(image.topics)))
    quorum.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(controller.submit, create("t"))
        await trio.testing.wait_all_tasks_blocked()
        assert "t" not in controller.image.topics and seen == []
        quorum.gate.set()
    assert "t" in controller.image.topics and seen == [1]


async def test_a_partly_completed_operation_is_not_retried() -> None:
    controller, quorum = await registered()
    topics = [new_topic(random.Random(number).randbytes(120).hex()) for number in range(1000)]
    propose = quorum.propose

    async def once(command: bytes) -> int:
        index = await propose(command)
        quorum.leader_id = 2
        return index

    quorum.propose = once  # type: ignore[method-assign]  # replaced by the test
    assert (
        await refused(controller.submit(CreateTopics(tuple(topics), 1, 1)))
        is ErrorCode.REQUEST_TIMED_OUT
    )
    assert 0 < len(controller.image.topics) < 1000
    assert await refused(controller.submit(create("t"))) is ErrorCode.NOT_CONTROLLER


async def test_operations_run_in_order_and_see_earlier_results() -> None:
    controller, _quorum = await registered()
    results: list[ErrorCode] = []

    async def ask() -> None:
        (result,) = await controller.submit(create("t"))
        results.append(result.error_code)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    assert sorted(results) == [0, 36, 36, 36, 36]


async def test_a_competing_command_causes_a_new_decision() -> None:
    controller, quorum = await registered()
    before = len(quorum.commands)
    quorum.gate = trio.Event()
    replies: list[Any] = []

    async def ask() -> None:
        replies.append(await controller.submit(create("t")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        quorum.commit(encode_command(Command(controller.image.index, (SetNextProducerId(1000),))))
        quorum.gate.set()
    assert replies[0][0].error_code == 0 and "t" in controller.image.topics
    assert len(quorum.commands) - before == 3, "the skipped command, and a new decision"


async def test_a_cancelled_operation_that_completes_later_has_no_side_effect() -> None:
    controller, quorum = await registered()
    late: list[bytes] = []
    commit = quorum.commit

    async def lost(command: bytes) -> int:
        late.append(command)
        raise OutcomeUnknown

    quorum.propose, propose = lost, quorum.propose  # type: ignore[method-assign]  # replaced by the test
    assert await refused(controller.submit(create("t"))) is ErrorCode.REQUEST_TIMED_OUT
    quorum.propose = propose  # type: ignore[method-assign]  # replaced by the test
    await controller.submit(create("t"))
    topic_id = controller.image.topics["t"].topic_id
    commit(late[0])  # the lost command arrives after all
    assert controller.image.topics["t"].topic_id == topic_id


async def test_a_node_that_does_not_lead_returns_that_error() -> None:
    controller, quorum = await registered()
    quorum.leader_id = 2
    for operation in (controller.submit(create("t")), controller.heartbeat(Heartbeat(ONE, 1, 1))):
        assert await refused(operation) is ErrorCode.NOT_CONTROLLER
    assert controller.controller_id == TWO and not controller.is_controller


async def test_a_heartbeat_without_changes_writes_nothing() -> None:
    controller, quorum = await registered()
    commands = len(quorum.commands)
    epoch = controller.image.brokers[ONE].epoch
    for _ in range(3):
        assert not (
            await controller.heartbeat(Heartbeat(ONE, epoch, controller.image.index))
        ).fenced
    assert len(quorum.commands) == commands


async def test_heartbeats_have_the_number_of_partitions_a_broker_can_open() -> None:
    controller, _ = await registered()
    epoch = controller.image.brokers[ONE].epoch

    async def created(name: str) -> ErrorCode:
        (row,) = await controller.submit(create(name))
        return ErrorCode(row.error_code)

    async def beat(partitions_max: int) -> None:
        beat = Heartbeat(ONE, epoch, controller.image.index, partitions_max=partitions_max)
        await controller.heartbeat(beat)

    await beat(1)
    assert await created("first") is ErrorCode.NONE
    assert await created("second") is ErrorCode.POLICY_VIOLATION
    await beat(NOT_KNOWN)
    assert await created("second") is ErrorCode.NONE


async def test_at_controller_forwards_waits_and_times_out(autojump_clock: MockClock) -> None:
    calls: list[int] = []

    async def forward(
        node_id: NodeId, api: str, version: int, request: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        calls.append(node_id)
        assert (api, version, request) == ("create_topics", 7, {"a": 1})
        if len(calls) == 1:
            raise OSError("no connection")
        if len(calls) == 2:
            return {"topics": [{"error_code": 41}]}
        return {"topics": [{"error_code": 0}]}

    async def here() -> Mapping[str, Any]:
        return {"here": True}

    controller, quorum = make_controller(forward=forward)
    quorum.leader_id = 2
    answer = await controller.at_controller(here, "create_topics", 7, {"a": 1}, timeout=5)
    assert answer == {"topics": [{"error_code": 0}]} and calls == [2, 2, 2]

    quorum.leader_id = None
    start = trio.current_time()
    waiting = controller.at_controller(here, "create_topics", 7, {"a": 1}, timeout=5)
    assert await refused(waiting) is ErrorCode.REQUEST_TIMED_OUT
    assert trio.current_time() - start == pytest.approx(5)

    async with trio.open_nursery() as nursery:

        async def elect() -> None:
            await trio.sleep(1)
            quorum.leader_id = 1

        nursery.start_soon(elect)
        assert await controller.at_controller(here, "create_topics", 7, {"a": 1}, timeout=5) == {
            "here": True
        }


async def test_an_expired_request_is_not_carried_out() -> None:
    controller, _quorum = await registered()

    async def here() -> Mapping[str, Any]:
        await controller.submit(create("t"))
        return {}

    for timeout in (0.0, -0.001):
        assert (
            await refused(controller.at_controller(here, "create_topics", 7, {}, timeout=timeout))
            is ErrorCode.REQUEST_TIMED_OUT
        )
    assert "t" not in controller.image.topics


async def test_producer_ids_are_never_reused_even_after_a_restart() -> None:
    controller, quorum = await registered()
    ids = [await controller.next_producer_id() for _ in range(1001)]
    assert len(set(ids)) == 1001 and max(ids) < TRANSACTIONAL_PRODUCER_IDS_FROM
    of_transactional_id = await controller.next_transactional_producer_id()
    assert of_transactional_id - TRANSACTIONAL_PRODUCER_IDS_FROM not in ids
    assert of_transactional_id >= TRANSACTIONAL_PRODUCER_IDS_FROM
    restarted, _ = make_controller(quorum.machines[0], quorum=quorum, seed=2)
    await restarted.register(
        Register(ONE, CLUSTER, restarted.lifecycle.incarnation, "localhost", 9091, None)
    )
    assert await restarted.next_producer_id() not in ids


async def test_no_producer_ids_without_a_controller(autojump_clock: MockClock) -> None:
    controller, quorum = await registered()
    quorum.leader_id = None
    assert await refused(controller.next_producer_id()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_run_registers_and_keeps_alive(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    controller, quorum = make_controller()
    await nursery.start(controller.run)
    assert controller.image.is_alive(ONE) and controller.image.cluster_id == CLUSTER
    commands = len(quorum.commands)
    await trio.sleep(60)
    assert controller.image.is_alive(ONE)
    assert len(quorum.commands) == commands


async def test_a_silent_broker_is_fenced_and_later_unfenced(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    controller, _quorum = make_controller()
    await nursery.start(controller.run)
    await trio.sleep(0.8)  # the first sessions of a controller are longer
    epoch = await controller.register(Register(TWO, CLUSTER, UUID(int=2), "other", 9092, None))
    await controller.heartbeat(Heartbeat(TWO, epoch, controller.image.index))
    await controller.submit(CreateTopics((new_topic("t", 2),), 1, 1))
    assert {p.leader for p in controller.image.topics["t"].partitions} == {ONE, TWO}
    await trio.sleep(2.9)
    assert controller.image.is_alive(TWO)
    await trio.sleep(0.7)
    assert not controller.image.is_alive(TWO) and controller.image.is_alive(ONE)
    assert {p.leader for p in controller.image.topics["t"].partitions} == {ONE, NO_NODE}
    await controller.heartbeat(Heartbeat(TWO, epoch, controller.image.index))
    assert {p.leader for p in controller.image.topics["t"].partitions} == {ONE, TWO}


async def test_a_paused_controller_fences_no_broker(
    nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    controller, _quorum = make_controller()
    mock_clock.autojump_threshold = 0
    await nursery.start(controller.run)
    epoch = await controller.register(Register(TWO, CLUSTER, UUID(int=2), "other", 9092, None))
    await controller.heartbeat(Heartbeat(TWO, epoch, controller.image.index))
    await trio.sleep(1.1)
    mock_clock.autojump_threshold = float("inf")
    mock_clock.jump(30)
    for _ in range(3):
        await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
    assert controller.image.is_alive(TWO)
    mock_clock.autojump_threshold = 0
    await trio.sleep(4)
    assert not controller.image.is_alive(TWO)


async def test_a_new_controller_gives_each_broker_a_full_session(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    controller, quorum = make_controller()
    await nursery.start(controller.run)
    epoch = await controller.register(Register(TWO, CLUSTER, UUID(int=2), "other", 9092, None))
    await controller.heartbeat(Heartbeat(TWO, epoch, controller.image.index))
    await trio.sleep(2.6)
    quorum.term += 1
    await trio.sleep(3.7)  # and for as long as its predecessor may have responded since
    assert controller.image.is_alive(TWO)
    await trio.sleep(0.6)
    assert not controller.image.is_alive(TWO)


async def test_a_controlled_shutdown_moves_leaders_and_stays_fenced(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    controller, quorum = make_controller()
    await nursery.start(controller.run)
    await controller.submit(create("t"))
    assert await controller.lifecycle.leave(timeout=2, no_controller_timeout=1)
    assert not controller.image.is_alive(ONE)
    assert controller.image.topics["t"].partitions[0].leader == NO_NODE
    await trio.sleep(10)
    assert not controller.image.is_alive(ONE)
    quorum.leader_id = None
    await controller.lifecycle.leave(timeout=2, no_controller_timeout=1)


async def test_a_controlled_shutdown_without_a_controller_does_not_wait(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    controller, quorum = make_controller()
    await nursery.start(controller.run)
    quorum.leader_id = None
    began = trio.current_time()
    assert not await controller.lifecycle.leave(timeout=60, no_controller_timeout=0.5)
    assert 0.5 <= trio.current_time() - began < 1


async def test_a_follower_registers_through_the_controller(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """Two nodes, one quorum: a handler of node 1 would process the requests that node 2 forwards in
    the same way.
    """
    machines = (MetadataMachine(), MetadataMachine())
    quorum = FakeQuorum(*machines)
    leader, _ = make_controller(machines[0], quorum=quorum)
    apis: list[str] = []

    async def forward(
        node_id: NodeId, api: str, version: int, request: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        apis.append(api)
        if api == "broker_registration":
            op = Register(
                request["broker_id"],
                request["cluster_id"],
                request["incarnation_id"],
                "two",
                9092,
                request["rack"],
            )
            return {"error_code": 0, "broker_epoch": await leader.register(op)}
        beat = Heartbeat(
            request["broker_id"], request["broker_epoch"], request["current_metadata_offset"]
        )
        reply = await leader.heartbeat(beat)
        return {"error_code": 0, "is_fenced": reply.fenced, "metadata_index": reply.metadata_index}

    followers_view = FakeQuorum(machines[1], node_id=2)
    followers_view.leader_id = 1
    follower, _ = make_controller(
        machines[1], quorum=followers_view, node_id=2, forward=forward, seed=2
    )
    await nursery.start(leader.run)
    await nursery.start(follower.run)
    assert leader.image.is_alive(TWO) and follower.image.is_alive(TWO)
    assert set(apis) == {"broker_registration", "broker_heartbeat"}


async def test_a_node_of_another_cluster_stops(autojump_clock: MockClock) -> None:
    _, quorum = await registered()
    stranger, _ = make_controller(quorum.machines[0], quorum=quorum, seed=3)
    stranger.lifecycle._cluster_id = "another"
    with pytest.raises(ExceptionGroup) as failure:
        await stranger.run()
    assert failure.group_contains(MqError, match="INCONSISTENT_CLUSTER_ID")


async def test_requested_topics_are_created(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    controller, quorum = make_controller(options={"num.partitions": "3"})
    await nursery.start(controller.run)
    for name in ("t", "t", "__consumer_offsets", "a.b", "a_b"):
        controller.create_topic_soon(name)
    await trio.testing.wait_all_tasks_blocked()
    await trio.sleep(0.01)
    topics = controller.image.topics
    assert len(topics["t"].partitions) == 3 and len(topics["__consumer_offsets"].partitions) == 50
    assert controller.image.topic_configs("__consumer_offsets")["cleanup.policy"] == "compact"
    commands = len(quorum.commands)
    controller.create_topic_soon("t")
    await trio.sleep(1)
    assert len(quorum.commands) == commands


async def test_many_requested_topics_are_all_created(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    controller, _ = make_controller(options={"num.partitions": "30"})
    await nursery.start(controller.run)
    # 12,050 partitions; a request adds 10,000
    for name in (*(f"t{number}" for number in range(400)), "__consumer_offsets"):
        controller.create_topic_soon(name)
    await trio.sleep(1)
    assert len(controller.image.topics) == 401


async def test_a_forming_cluster_creates_no_topic_with_fewer_replicas(
    autojump_clock: MockClock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    controller, _ = make_controller(nodes=3, options={"default.replication.factor": "3"})
    await nursery.start(controller.run)
    for node_id in (2, 3):
        for name in ("t", "__consumer_offsets", "__transaction_state"):
            controller.create_topic_soon(name)
        await trio.sleep(0.1)
        assert not controller.image.topics
        assert "cannot create a requested topic topic=t reason=" in caplog.text
        await controller.register(
            Register(NodeId(node_id), CLUSTER, UUID(int=node_id), f"n{node_id}", 9092, None)
        )
    for name in ("t", "__consumer_offsets", "__transaction_state"):
        controller.create_topic_soon(name)
    await trio.sleep(0.1)
    assert {len(topic.partitions[0].replicas) for topic in controller.image.topics.values()} == {3}
    assert controller.image.topic_configs("__transaction_state")["min.insync.replicas"] == "2"


async def test_on_a_full_disk_only_creations_are_refused() -> None:
    controller, _ = await registered()
    await controller.submit(create("t"))
    controller.operations.space = lambda: "The disk is full."
    for op in (create("u"), CreatePartitions(())):
        with pytest.raises(MqError, match="disk is full") as refusal:
            await controller.submit(op)
        assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    await controller.submit(DeleteTopics((TopicName("t"),)))
    assert not controller.image.topics


async def with_a_second(controller: ControllerService) -> int:
    epoch = await controller.register(Register(TWO, CLUSTER, UUID(int=2), "other", 9092, None))
    await controller.heartbeat(Heartbeat(TWO, epoch, controller.image.index))
    return epoch


async def test_a_node_whose_process_ended_is_fenced_at_once(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    controller, _quorum = make_controller()
    await nursery.start(controller.run)
    epoch = await with_a_second(controller)
    await trio.sleep(0.1)
    controller.session_watch.on_peer_gone(TWO)
    controller.session_watch.on_peer_gone(ONE)
    controller.session_watch.on_peer_gone(7)
    await trio.sleep(0.01)
    assert not controller.image.is_alive(TWO) and controller.image.is_alive(ONE)
    # The node still runs: its next heartbeat unfences it, and nothing else changes.
    await controller.heartbeat(Heartbeat(TWO, epoch, controller.image.index))
    index = controller.image.index
    for _ in range(8):
        await trio.sleep(0.5)
        await controller.heartbeat(Heartbeat(TWO, epoch, controller.image.index))
    assert controller.image.is_alive(TWO) and controller.image.index == index


async def test_a_new_controller_uses_the_heartbeats_of_the_last_session(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    controller, quorum = make_controller()
    await nursery.start(controller.run)
    await with_a_second(controller)
    for pause, alive in ((3.5, True), (1.0, False)):
        quorum.leader_id = None
        await trio.sleep(0.6)
        controller.session_watch.on_peer_gone(TWO)
        await trio.sleep(pause)
        quorum.leader_id, quorum.term = 1, quorum.term + 1
        await trio.sleep(0.6)
        assert controller.image.is_alive(TWO) is alive


async def test_a_controller_without_its_majority_accepts_no_heartbeat(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    controller, quorum = make_controller()
    assert controller.lifecycle.contact_at < 0
    await nursery.start(controller.run)
    await trio.sleep(10)
    assert 9.0 <= controller.lifecycle.contact_at - trio.current_time() + 10 <= 10.0
    quorum.majority_replied_at = trio.current_time()
    await trio.sleep(1.4)
    contact = controller.lifecycle.contact_at
    assert contact > quorum.majority_replied_at
    await trio.sleep(5)
    assert controller.lifecycle.contact_at <= contact + 0.5
    epoch = controller.image.brokers[ONE].epoch
    assert (
        await refused(controller.heartbeat(Heartbeat(ONE, epoch, controller.image.index)))
        is ErrorCode.NOT_CONTROLLER
    )


async def test_a_possibly_deposed_controller_confirms_before_it_responds(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    controller, quorum = make_controller()
    await nursery.start(controller.run)
    await with_a_second(controller)
    epoch = controller.image.brokers[TWO].epoch
    beat = Heartbeat(TWO, epoch, controller.image.index)
    await controller.heartbeat(beat)
    assert quorum.barriers == 0
    quorum.led_at = trio.current_time() - 0.7  # a quarter of a session of 3 s
    await controller.heartbeat(beat)
    assert quorum.barriers == 0
    quorum.led_at = trio.current_time() - 0.8
    await controller.heartbeat(beat)
    assert quorum.barriers == 1
    for failure in (OutcomeUnknown("as after a cut"), NotLeader(2)):
        quorum.failure = failure
        assert await refused(controller.heartbeat(beat)) is ErrorCode.NOT_CONTROLLER


async def test_sessions_of_300_ms(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    controller, _quorum = make_controller(
        options={"broker.session.timeout.ms": "300", "broker.heartbeat.interval.ms": "50"}
    )
    await nursery.start(controller.run)
    await trio.sleep(0.08)  # the first sessions of a controller are longer
    await with_a_second(controller)
    await trio.sleep(0.29)
    assert controller.image.is_alive(TWO)
    await trio.sleep(0.03)
    assert not controller.image.is_alive(TWO) and controller.image.is_alive(ONE)


async def test_on_registered_runs_before_the_first_heartbeat(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    seen: list[tuple[int, bool]] = []

    async def on_registered(epoch: int) -> bool:
        seen.append((epoch, controller.image.is_alive(ONE)))
        await controller.replica_reports.report_offline(
            [(controller.image.topics["t"].topic_id, 0), (UUID(int=99), 1)]
        )
        return True

    first, quorum = await registered()
    await first.submit(create("t"))
    controller, _ = make_controller(quorum.machines[0], quorum=quorum, seed=5)
    controller.lifecycle.on_registered = on_registered
    await nursery.start(controller.run)
    assert seen == [(controller.image.brokers[ONE].epoch, False)]
    assert controller.image.is_alive(ONE)
    assert controller.image.topics["t"].partitions[0].leader == NO_NODE
    assert controller.image.lost_replicas == {(controller.image.topics["t"].topic_id, 0, ONE)}


async def test_a_pending_loss_does_not_apply_to_a_recreated_topic(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    controller, _ = await registered()
    await nursery.start(controller.run)
    await controller.submit(create("t"))
    old = controller.image.topics["t"].topic_id
    await controller.submit(DeleteTopics((TopicName("t"),)))
    await controller.submit(CreateTopics((new_topic("t")._replace(topic_id=UUID(int=5)),), 1, 1))
    await controller.replica_reports.report_offline([(old, 0)])
    assert controller.image.topics["t"].topic_id != old and not controller.image.lost_replicas
    assert controller.image.topics["t"].partitions[0].leader == ONE


async def test_a_leader_requests_another_isr(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    controller, _quorum = make_controller()
    await nursery.start(controller.run)
    epoch = await with_a_second(controller)
    await controller.submit(CreateTopics((new_topic("t", 2, 2),), 1, 1))
    topic = controller.image.topics["t"]
    (index,) = [
        number for number, partition in enumerate(topic.partitions) if partition.leader == ONE
    ]
    own = controller.image.brokers[ONE].epoch
    change = IsrChange(TopicPartition("t", index), topic.topic_id, 0, 0, ((ONE, own),))
    (outcome,) = await controller.replica_reports.alter_partitions([change])
    assert outcome == IsrOutcome(TopicPartition("t", index), ErrorCode.NONE, ONE, 0, (ONE,), 1)
    wider = change._replace(isr=((ONE, own), (TWO, epoch)))
    (stale,) = await controller.replica_reports.alter_partitions([wider])
    assert stale.error is ErrorCode.INVALID_UPDATE_VERSION
    (joined,) = await controller.replica_reports.alter_partitions(
        [wider._replace(partition_epoch=1)]
    )
    assert (joined.error, joined.isr, joined.partition_epoch) == (ErrorCode.NONE, (ONE, TWO), 2)


async def test_a_new_controller_completes_unfinished_operations(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    controller, quorum = make_controller()
    await nursery.start(controller.run)
    await controller.submit(CreateTopics((new_topic("t", 5000),), 1, 1))
    broker = controller.image.brokers[ONE]
    await controller.heartbeat(
        Heartbeat(ONE, broker.epoch, controller.image.index, want_fence=True)
    )
    assert {p.leader for p in controller.image.topics["t"].partitions} == {NO_NODE}
    quorum.commit(
        encode_command(
            Command(controller.image.index, (SetBrokerFencing(ONE, broker.epoch, False),))
        )
    )
    quorum.term += 1
    await trio.sleep(0.6)
    assert {p.leader for p in controller.image.topics["t"].partitions} == {ONE}


async def test_leadership_returns_to_the_preferred_replicas(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    controller, _quorum = make_controller(options={"leader.imbalance.check.interval.seconds": "5"})
    await nursery.start(controller.run)
    await with_a_second(controller)
    await controller.submit(CreateTopics((new_topic("t", 1, 2),), 1, 1))
    topic = controller.image.topics["t"]
    first = topic.partitions[0].leader
    both = topic.partitions[0].replicas
    records = (UpdatePartitions(topic.topic_id, (PartitionUpdate(0, leader=both[1]),)),)
    _quorum.commit(encode_command(Command(controller.image.index, records)))
    assert topic.partitions[0].leader != first
    epoch = controller.image.brokers[TWO].epoch
    for _ in range(6):
        await controller.heartbeat(Heartbeat(TWO, epoch, controller.image.index))
        await trio.sleep(1)
    assert topic.partitions[0].leader == first
