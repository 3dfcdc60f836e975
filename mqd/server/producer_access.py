"""Who may produce to a topic with `mqd.producer.access=exclusive` or `wait`: one transactional id,
its owner (I60).

The coordinator of a transactional id admits it when its transaction adds a partition of the topic:

1. The topic has no owner, or the owner is idle: it is unknown to its coordinator, or has had no
   transaction for `mqd.producer.lease.ms`. Then the coordinator claims the topic
   (controller/topic_claims.py).
2. It fences each former owner with InitProducerId, as Kafka's fenceProducers does. That aborts an
   open transaction, and waits until it has all its markers. The coordinator of the former owner
   must have applied the claim before. It and its successors then refuse that id.
3. It settles the claim.

The shard checks the owner again, in the step that appends the partition to the transaction. So no
transaction of a former owner begins after the fencing, and none of the new owner before it.

Another id is refused (`exclusive`), or retries until the owner is idle (`wait`). The request that
begins an admission does not wait for it (admissions.py): the client repeats it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

import trio

from mqd.controller.image import MetadataImage
from mqd.controller.topic_claims import ClaimTopic, ownership
from mqd.coordinator.shard import Producer
from mqd.coordinator.txn.operations import InitializeProducer, VerifyPartitions
from mqd.errors import ErrorCode, MqError
from mqd.option_table import TOPIC_OPTIONS
from mqd.relay.names import is_reserved
from mqd.server.admissions import Admission
from mqd.server.context import Node
from mqd.server.handlers import describe_idle_producer
from mqd.server.handlers.transactions import call_with_spare_id
from mqd.types import (
    NO_EPOCH,
    NO_NODE,
    NO_PRODUCER_ID,
    PRODUCER_ACCESS,
    PRODUCER_LEASE,
    SHARED,
    TRANSACTIONS_TOPIC,
    WAIT,
)

logger = logging.getLogger(__name__)

ADMISSION_SECONDS: Final = 5.0
"""The longest admission. Then a retry of the client begins another one."""
POLL_SECONDS: Final = 0.02
"""Between two attempts, and until the metadata has arrived."""
_FENCING_TIMEOUT_MS: Final = 60_000
"""The transaction timeout of a fenced id, until its next producer sets another one."""
_INIT_VERSION: Final = 5
_PASSING: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)

_FINAL: Final = frozenset(
    {ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST, ErrorCode.POLICY_VIOLATION}
)
"""A retry gets the same error: the id or the metadata takes no claim."""


def refusal(image: MetadataImage, topic: str, transactional_id: str) -> MqError | None:
    """Why a transactional id may not write to a topic, by this image. None: it may."""
    access = image.producer_access(topic)
    if access == SHARED:
        return None
    if is_reserved(transactional_id):
        return MqError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            f"The topic '{topic}' takes no records of relays and no dead letters "
            f"({PRODUCER_ACCESS}={access}).",
        )
    owner, unfenced = ownership(image, topic)
    if owner == transactional_id and not unfenced:
        return None
    if access == WAIT or owner in ("", transactional_id):
        return MqError(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"The topic '{topic}' is still owned by the transactional id {owner!r}. Retry.",
        )
    return MqError(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        f"The transactional id {owner!r} owns the topic '{topic}' (mqd.producer.access=exclusive). "
        f"Another id may produce after the owner was idle for {PRODUCER_LEASE}.",
    )


async def admit(
    node: Node, transactional_id: str, producer: Producer, topics: Iterable[str]
) -> None:
    """Check that a transactional id owns those of the topics that are not shared. If it does not,
    begin its admission. Its coordinator calls it.

    Raises MqError: TRANSACTIONAL_ID_AUTHORIZATION_FAILED, or CONCURRENT_TRANSACTIONS to retry; and
    the error of a producer that is fenced, which must not claim a topic.
    """
    for topic in sorted(set(topics)):
        found = refusal(node.image, topic, transactional_id)
        if found is None:
            continue
        if is_reserved(transactional_id):
            raise found
        op = VerifyPartitions(transactional_id, producer, ())
        await node.transactions.call(transactional_id, op)
        now = node.clock.monotonic()
        refused = node.admissions.refusal(Admission(transactional_id, topic), now)
        raise refused or MqError(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"The transactional id {transactional_id!r} does not own the topic '{topic}' yet. "
            "Retry.",
        )


async def run(node: Node) -> None:
    """Carry out the admissions that requests begin, until cancelled."""
    async with trio.open_nursery() as nursery:
        while True:
            for admission in await node.admissions.begun():
                nursery.start_soon(_carry_out, node, admission)


async def _carry_out(node: Node, admission: Admission) -> None:
    """Raises nothing: the client retries."""
    refused: MqError | None = None
    with trio.move_on_after(ADMISSION_SECONDS):
        try:
            await _Admission(node, *admission).run()
        except MqError as error:
            if error.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                refused = error
            elif error.code in _FINAL:
                refused = MqError(
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    f"The transactional id {admission.transactional_id!r} cannot own the topic "
                    f"'{admission.topic}': {error}",
                )
            elif error.code not in _PASSING:
                logger.warning(
                    "cannot make a producer the owner of a topic transactional_id=%s topic=%s "
                    "reason=%s",
                    *admission,
                    error,
                )
        except OSError:
            pass
    node.admissions.ended(admission, refused, node.clock.monotonic())


class _Admission:
    """The admission of one transactional id to one topic."""

    def __init__(self, node: Node, transactional_id: str, topic: str) -> None:
        self._node = node
        self._id = transactional_id
        self._topic = topic

    async def run(self) -> None:
        """Raises MqError if another id owns the topic and is not idle."""
        node = self._node
        while (refused := refusal(node.image, self._topic, self._id)) is not None:
            owner, unfenced = ownership(node.image, self._topic)
            if owner == self._id:
                for former in unfenced:
                    await self._fence(former)
                await self._claim(owner, unfenced)
            elif not owner or await self._is_idle(owner):
                await self._claim(owner)
            else:
                raise refused
            await trio.sleep(POLL_SECONDS)

    async def _claim(self, owner: str, fenced: tuple[str, ...] = ()) -> None:
        """Replace the owner; for the owner itself, settle its claim. Returns after this node has
        applied the change. A claim that another one overtook changes nothing.
        """
        node = self._node
        op = ClaimTopic(self._topic, self._id, owner, fenced)

        async def here() -> Mapping[str, Any]:
            await node.controller.submit(op)
            return {"error_code": ErrorCode.NONE, "metadata_index": node.image.index}

        request = {
            "topic": op.topic,
            "transactional_id": op.transactional_id,
            "expected_owner": op.expected,
            "fenced": list(op.fenced),
        }
        response = await node.controller.at_controller(
            here, "claim_topic", 0, request, timeout=ADMISSION_SECONDS
        )
        if response["error_code"]:
            raise MqError(ErrorCode(response["error_code"]))
        while True:
            if node.image.index >= response["metadata_index"]:
                return
            await trio.sleep(POLL_SECONDS)

    async def _is_idle(self, owner: str) -> bool:
        """Whether an owner has given up the topic: it has no transaction, and had none for the
        lease. False if its coordinator cannot be reached.
        """
        try:
            found = await self._describe(owner)
        except (MqError, OSError):
            return False
        if found["error_code"]:
            return _is_unknown(found)
        text = self._node.image.topic_configs(self._topic).get(PRODUCER_LEASE)
        option = TOPIC_OPTIONS[PRODUCER_LEASE]
        lease_ms = option.default if text is None else option.parse(text)
        assert isinstance(lease_ms, int)
        return int(found["idle_ms"]) >= lease_ms

    async def _fence(self, former: str) -> None:
        """Fence a former owner. Returns when it has no transaction, and its coordinator refuses
        later ones.
        """
        claimed_at = self._node.image.index
        while True:
            try:
                found = await self._describe(former)
                if found["metadata_index"] >= claimed_at:
                    if not _is_unknown(found):
                        await self._initialize(former)
                    return
            except MqError as error:
                if error.code not in _PASSING:
                    raise
            except OSError:
                pass
            await trio.sleep(POLL_SECONDS)

    async def _describe(self, transactional_id: str) -> Mapping[str, Any]:
        """The response of its coordinator. Raises MqError, or OSError if that cannot be reached."""
        node, coordinator = self._node, self._coordinator(transactional_id)
        if coordinator == node.node_id:
            return await describe_idle_producer.describe(node, transactional_id)
        request = {"transactional_id": transactional_id}
        return await node.forward(coordinator, "DescribeIdleProducer", 0, request)

    async def _initialize(self, transactional_id: str) -> None:
        """Raises MqError, or OSError if the coordinator cannot be reached."""
        node, coordinator = self._node, self._coordinator(transactional_id)
        if coordinator == node.node_id:
            op = InitializeProducer(transactional_id, _FENCING_TIMEOUT_MS)
            await call_with_spare_id(node, op)
            return
        request = {
            "transactional_id": transactional_id,
            "transaction_timeout_ms": _FENCING_TIMEOUT_MS,
            "producer_id": NO_PRODUCER_ID,
            "producer_epoch": NO_EPOCH,
        }
        _checked(await node.forward(coordinator, "InitProducerId", _INIT_VERSION, request))

    def _coordinator(self, transactional_id: str) -> Any:
        """The node id. Raises MqError COORDINATOR_NOT_AVAILABLE."""
        node = self._node
        index = node.transactions.partition_of(transactional_id)
        found = node.image.partition(TRANSACTIONS_TOPIC, index)
        if found is None or found.leader == NO_NODE:
            raise MqError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return found.leader


def _is_unknown(found: Mapping[str, Any]) -> bool:
    """Whether the coordinator does not know the transactional id: it expired, or never existed."""
    return bool(found["error_code"] == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)


def _checked(response: Mapping[str, Any]) -> Mapping[str, Any]:
    if response["error_code"]:
        raise MqError(ErrorCode(response["error_code"]))
    return response
