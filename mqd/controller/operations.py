"""Operations on the metadata: decided on the controller, one at a time, and committed.

Decide on the committed image, propose, wait until the command is durable and applied here, return
the reply. A command takes effect only if no other command was applied since the controller decided
it (machine.py). So these are harmless: an operation that was cancelled, one whose outcome is
unknown, and one that a deposed controller still had in flight. The operation that comes after it is
decided again. A decision too large for one command becomes several; each record holds as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import trio

from mqd.config import NodeConfig
from mqd.controller.acls import CreateAcls, DeleteAcls, decide_create_acls, decide_delete_acls
from mqd.controller.brokers import (
    ExpireSessions,
    Heartbeat,
    Register,
    Unregister,
    decide_expire,
    decide_heartbeat,
    decide_register,
    decide_unregister,
)
from mqd.controller.client_quotas import AlterClientQuotas, decide_alter_client_quotas
from mqd.controller.commands import (
    Command,
    CommandTooLarge,
    encode_command,
    split_records,
)
from mqd.controller.configs import AlterConfigs, decide_alter_configs, effective_node_config
from mqd.controller.create_partitions import CreatePartitions, decide_create_partitions
from mqd.controller.create_topics import CreateTopics, decide_create_topics
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.delete_topics import DeleteTopics, decide_delete_topics
from mqd.controller.elections import (
    ElectLeaders,
    Rebalance,
    decide_elect_leaders,
    decide_rebalance,
)
from mqd.controller.features import UpdateFeatures, decide_update_features
from mqd.controller.image import MetadataImage
from mqd.controller.isr import (
    AlterPartitions,
    ReportOfflineReplicas,
    decide_alter_partitions,
    decide_report_offline,
)
from mqd.controller.machine import MetadataMachine
from mqd.controller.producer_ids import AllocateProducerIds, decide_allocate_producer_ids
from mqd.controller.reassignments import AlterReassignments, decide_alter_reassignments
from mqd.controller.records import MetadataRecord
from mqd.controller.result import ControllerResult
from mqd.controller.scram_credentials import (
    AlterScramCredentials,
    decide_alter_scram_credentials,
)
from mqd.controller.size import SizeWatch
from mqd.controller.sweeps import ReviewPartitions, decide_review_partitions
from mqd.controller.topic_claims import ClaimTopic, decide_claim_topic
from mqd.errors import ErrorCode, MqError
from mqd.raft import versions
from mqd.raft.machine import NotLeader, OutcomeUnknown, RaftStatus
from mqd.types import NodeId
from mqd.usage import Usage

Operation = (
    Register
    | Heartbeat
    | ExpireSessions
    | Unregister
    | CreateTopics
    | DeleteTopics
    | CreatePartitions
    | AlterConfigs
    | AllocateProducerIds
    | AlterPartitions
    | ReportOfflineReplicas
    | AlterReassignments
    | ElectLeaders
    | Rebalance
    | ReviewPartitions
    | UpdateFeatures
    | CreateAcls
    | DeleteAcls
    | AlterScramCredentials
    | AlterClientQuotas
    | ClaimTopic
)

DECIDE: dict[type, Callable[[MetadataImage, Any, DecisionOptions], ControllerResult]] = {
    Register: decide_register,
    Heartbeat: decide_heartbeat,
    ExpireSessions: decide_expire,
    Unregister: decide_unregister,
    CreateTopics: decide_create_topics,
    DeleteTopics: decide_delete_topics,
    CreatePartitions: decide_create_partitions,
    AlterConfigs: decide_alter_configs,
    AllocateProducerIds: decide_allocate_producer_ids,
    AlterPartitions: decide_alter_partitions,
    ReportOfflineReplicas: decide_report_offline,
    AlterReassignments: decide_alter_reassignments,
    ElectLeaders: decide_elect_leaders,
    Rebalance: decide_rebalance,
    ReviewPartitions: decide_review_partitions,
    UpdateFeatures: decide_update_features,
    CreateAcls: decide_create_acls,
    DeleteAcls: decide_delete_acls,
    AlterScramCredentials: decide_alter_scram_credentials,
    AlterClientQuotas: decide_alter_client_quotas,
    ClaimTopic: decide_claim_topic,
}

Space = Callable[[], str | None]
"""Why the metadata must not grow, or None."""

_GROWS = (CreateTopics, CreatePartitions)
"""Rejected on a full disk. Config changes are allowed: a shorter retention frees space."""
_DECISIONS_MAX = 5
"""How often an operation is decided again because another command came in between; usually once or
twice.
"""
_REVIEWED_AFTER = (Heartbeat, AlterConfigs)
"""After these, partitions may need an election beyond the portion that was decided with them."""


class Quorum(Protocol):
    """The methods of RaftService that the controller uses."""

    async def propose(self, command: bytes) -> int:
        """Index of the command once it is durable, committed and applied here.

        Raises NotLeader or OutcomeUnknown.
        """
        ...

    async def read_barrier(self, *, timeout: float | None = None) -> int:
        """Return when this node is known to have led after this call.

        Raises NotLeader or OutcomeUnknown.
        """
        ...

    def status(self) -> RaftStatus: ...


class Operations:
    """Decides and commits operations, on the controller's node. Others forward (channel.py)."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        quorum: Quorum,
        machine: MetadataMachine,
        config: NodeConfig,
        space: Space,
    ) -> None:
        self._node_id = node_id
        self._quorum = quorum
        self._machine = machine
        self._config = config
        self.space = space
        self.on_review_due: Callable[[], None] = lambda: None
        """Called after operations that may leave partitions without an election that is due."""
        self.partitions_max: dict[NodeId, int] = {}
        """The number of partitions that each broker can open, by its last heartbeat to this
        node."""
        self.memory_partitions_max: dict[NodeId, int] = {}
        """The same for partitions in memory."""
        self.metadata_versions_max: dict[NodeId, int] = {node_id: versions.NEWEST}
        """The newest metadata version that each broker supports, by its last heartbeat to this
        node.
        """
        self._one_at_a_time = trio.Lock()
        self._size_watch = SizeWatch()

    @property
    def image(self) -> MetadataImage:
        return self._machine.image

    @property
    def controller_id(self) -> NodeId | None:
        """The controller, as far as this node knows."""
        leader_id = self._quorum.status().leader_id
        return None if leader_id is None else NodeId(leader_id)

    @property
    def is_controller(self) -> bool:
        """Whether `submit` may succeed here: this node leads the quorum, and has applied everything
        that earlier leaders committed.
        """
        return self._quorum.status().ready

    def check_is_controller(self) -> None:
        """Raise NOT_CONTROLLER if this node's image may be older than that of the controller."""
        if not self.is_controller:
            raise self.not_controller()

    def usage(self) -> Usage:
        """The size of the metadata, and this node's bound on it."""
        return Usage(self.image.size, self.options().image_bytes_max)

    async def submit(self, op: Operation) -> Any:
        """Decide and commit here; returns the decision's reply.

        Raises MqError: KAFKA_STORAGE_ERROR (no space, no change), NOT_CONTROLLER (no change, or
        only one that a retry sees), or the decision's own error. After REQUEST_TIMED_OUT, the
        change may have happened or may still happen. If it is cancelled while it waits, the change
        may still happen.
        """
        if isinstance(op, _GROWS) and (full := self.space()) is not None:
            raise MqError(ErrorCode.KAFKA_STORAGE_ERROR, full)
        async with self._one_at_a_time:
            return await self._carry_out(op)

    async def _carry_out(self, op: Operation) -> Any:
        decide = DECIDE[type(op)]
        for _ in range(_DECISIONS_MAX):
            while True:
                self.check_is_controller()
                decision = decide(self.image, op, self.options())
                if decision.records and not await self._commit(decision.records):
                    break
                if not decision.more:
                    if decision.records and isinstance(op, _REVIEWED_AFTER):
                        self.on_review_due()
                    return decision.reply
        raise self.not_controller()

    def options(self) -> DecisionOptions:
        config = effective_node_config(self._config, self.image, self._node_id)
        return DecisionOptions.of_config(config, self.partitions_max, self.memory_partitions_max)

    async def _commit(self, records: tuple[MetadataRecord, ...]) -> bool:
        """Whether all records took effect; False if another command came first.

        NOT_CONTROLLER: no record took effect.
        """
        base_index, committed = self.image.index, False
        try:
            for run in split_records(records):
                index = await self._quorum.propose(encode_command(Command(base_index, run)))
                if not self._machine.took_effect(index):
                    return False
                # Only commands of this decision may come in between (I10).
                base_index, committed = index, True
            self._size_watch.observe(self.usage())
        except CommandTooLarge as error:
            # Decisions check what clients can make too large (check_fits), so this is the last
            # net: the request is refused, and the connection stays.
            raise MqError(
                ErrorCode.POLICY_VIOLATION,
                f"The change is too large for one metadata record: {error}. Split the request, or "
                "use shorter names and values.",
            ) from error
        except (NotLeader, OutcomeUnknown) as error:
            # otherwise a retry would find the change, and take it for that of another client
            if isinstance(error, NotLeader) and not committed:
                raise self.not_controller() from error
            raise MqError(
                ErrorCode.REQUEST_TIMED_OUT,
                "The controller changed or was too slow. The change may have been made.",
            ) from error
        return True

    def not_controller(self) -> MqError:
        controller_id = self.controller_id
        known = "unknown" if controller_id is None else f"node {controller_id}"
        return MqError(
            ErrorCode.NOT_CONTROLLER,
            f"This node is not the controller; the controller is {known}.",
        )
