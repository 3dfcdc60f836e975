"""The exceptions of a client: `ClientError`, an MqError with a remedy, and its subclasses.

Catch `ClientError` and compare `code`, or catch one of the subclasses for a kind of failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.delay_names import RESERVED_PREFIX
from mqd.errors import ErrorCode, MqError
from mqd.types import PRODUCER_ACCESS, PRODUCER_OWNER


def _needs_acl(resource: str) -> str:
    """The remedy of a denied request. `resource`: the option of `mqctl acl check`."""
    return (
        "needs an ACL: see `authorization result=denied` in the broker's log, or `mqctl acl check "
        f"User:NAME OPERATION {resource}`"
    )


REMEDIES: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (
        "list the topics with `mqctl topic list`, or create it with `mqctl topic create`"
    ),
    ErrorCode.TOPIC_ALREADY_EXISTS: (
        "choose another name, or change the existing topic with `mqctl topic config set`"
    ),
    ErrorCode.INVALID_TOPIC_EXCEPTION: (
        "use 1 to 249 characters of a-z A-Z 0-9 . _ -, and no two names that differ only in . and _"
    ),
    ErrorCode.MESSAGE_TOO_LARGE: "raise the topic's max.message.bytes, or send smaller records",
    ErrorCode.RECORD_LIST_TOO_LARGE: "raise the topic's max.message.bytes, or send smaller records",
    ErrorCode.INVALID_REPLICATION_FACTOR: (
        "request fewer replicas, or start more brokers; list the brokers with `mqctl broker list`"
    ),
    ErrorCode.INVALID_PARTITIONS: (
        "request at least one partition; to add partitions, request more than the topic has"
    ),
    ErrorCode.INVALID_CONFIG: "list all keys with `mqd config list`",
    ErrorCode.NOT_ENOUGH_REPLICAS: (
        "restart failed brokers (`mqctl cluster info`), or lower min.insync.replicas"
    ),
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: (
        "restart failed brokers (`mqctl cluster info`); the record may have been written"
    ),
    ErrorCode.KAFKA_STORAGE_ERROR: (
        "check the free disk space and the log of the broker that leads the partition"
    ),
    ErrorCode.OFFSET_OUT_OF_RANGE: (
        "choose an offset between the log start and the log end of the partition"
    ),
    ErrorCode.UNSUPPORTED_VERSION: (
        "the broker does not support this request: upgrade the broker or the client"
    ),
    ErrorCode.LEADER_NOT_AVAILABLE: (
        "wait for a leader election, or restart the broker that has the data (`mqctl topic "
        "describe`)"
    ),
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "choose another codec",
    ErrorCode.INVALID_RECORD: "set a key in every record: a compacted topic requires it",
    ErrorCode.POLICY_VIOLATION: "split the request into smaller ones",
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: "wait, or raise the quota",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: _needs_acl("--topic NAME"),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: _needs_acl("--cluster"),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: _needs_acl("--group NAME"),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        f"if the topic has {PRODUCER_ACCESS}, another id may own it: see {PRODUCER_OWNER} in "
        f"`mqctl topic config get TOPIC`; otherwise the id {_needs_acl('--transactional-id ID')}"
    ),
    ErrorCode.SECURITY_DISABLED: "set authorizer.class.name on every node, see docs/SECURITY.md",
    ErrorCode.GROUP_ID_NOT_FOUND: "list the groups with `mqctl group list`",
    ErrorCode.NON_EMPTY_GROUP: "stop its members first; list them with `mqctl group describe`",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (
        "stop the members that subscribe to it first; list them with `mqctl group describe`"
    ),
    ErrorCode.GROUP_MAX_SIZE_REACHED: (
        "stop other members, or raise group.max.size (group.consumer.max.size)"
    ),
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        "configure an assignor that all members of the group support"
    ),
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "use a value between the broker's group.min.session.timeout.ms and "
        "group.max.session.timeout.ms"
    ),
    ErrorCode.FENCED_INSTANCE_ID: "another member uses this group.instance.id: use a different one "
    "for each member",
    ErrorCode.UNRELEASED_INSTANCE_ID: (
        "another member uses this group.instance.id: wait until its session expires, or use a "
        "different one for each member"
    ),
    ErrorCode.UNSUPPORTED_ASSIGNOR: "choose one of the broker's group.consumer.assignors",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "list the transactional ids with `mqctl txn list`",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: ("use at most the broker's transaction.max.timeout.ms"),
    ErrorCode.INVALID_PRODUCER_EPOCH: (
        "another producer uses this transactional id, or the transaction timed out: close this "
        "producer"
    ),
    ErrorCode.PRODUCER_FENCED: "another producer uses this transactional id: close this producer",
}

_DENIED: Mapping[ErrorCode, str] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "Delegation Token authorization failed.",
}
"""Kafka's sentences for denied requests. Some APIs of Kafka have other texts, or none."""

NEVER_SENT = "nothing was sent"
MAYBE_SENT = "the request may have been carried out"


class ClientError(MqError):
    """A refusal or a failure as the user of a client sees it: what happened and why (`message`),
    what to do (`remedy`)."""

    def __init__(self, code: ErrorCode, message: str = "", *, remedy: str = "") -> None:
        super().__init__(code, message)
        self.remedy = remedy or _remedy_of(code, message)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles as it is, whatever its constructor takes."""
        return _rebuild, (type(self), self.args, dict(self.__dict__))

    def copy(self) -> ClientError:
        """A copy of the error without a traceback, to raise again: many records may share
        one failure.
        """
        return _rebuild(type(self), self.args, self.__dict__)

    @property
    def retriable(self) -> bool:
        """Whether the same call may succeed a little later."""
        return self.code.retriable


def _remedy_of(code: ErrorCode, message: str) -> str:
    if code in _DENIED:
        if RESERVED_PREFIX in message:
            return (
                "nodes own the groups and transactional ids that begin with "
                f"{RESERVED_PREFIX}: clients can only read them"
            )
        if PRODUCER_ACCESS in message:
            return (
                f"`mqctl topic config get TOPIC` shows {PRODUCER_ACCESS} and {PRODUCER_OWNER}: use "
                "a transactional producer with that id, or wait until it is idle"
            )
    return REMEDIES.get(code, "")


def _rebuild(
    kind: type[ClientError], args: tuple[Any, ...], state: Mapping[str, Any]
) -> ClientError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class PeerUnreachable(ClientError):
    """The connection to an address failed; nothing was sent."""


class AuthenticationFailed(ClientError):
    """The broker refused the login, or expects another one. A retry with the same credentials
    fails, too.
    """


class TlsHandshakeFailed(PeerUnreachable):
    """The broker answers, and the two do not agree on TLS. One of them does not trust a
    certificate, or the listener is of the other kind. A retry fails too, until somebody repairs it.
    """


class ConnectionBroken(ClientError):
    """The connection ended before the response came. With `sent`, the peer may have carried the
    request out. `opening`: the request only opens the connection, and changes nothing."""

    def __init__(
        self, message: str, *, sent: bool, opening: bool = False, remedy: str = ""
    ) -> None:
        fate = "" if opening else f"; {MAYBE_SENT if sent else NEVER_SENT}"
        super().__init__(ErrorCode.NETWORK_EXCEPTION, f"{message}{fate}", remedy=remedy)
        self.sent = sent
        self.ended_by = ""
        """The peer ("host:port"), if it closed or reset the connection."""


class DeadlineExceeded(ClientError):
    """The call did not succeed within its time. `cause` is the last failure, if there was one."""

    def __init__(self, message: str, cause: MqError | None = None) -> None:
        remedy = cause.remedy if isinstance(cause, ClientError) else ""
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message, remedy=remedy)
        self.cause = cause


class CommitFailed(ClientError):
    """The group has gone on without this member: the offsets were not committed, and others may
    read the records again."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(
            code,
            message,
            remedy="come back for records more often, or allow more time with max_poll_interval_ms",
        )


class AcknowledgementFailed(ClientError):
    """The broker has not stored the acknowledgement of a record of a share group, or the response
    was lost. INVALID_RECORD_STATE: the acquisition lock has ended. The record may be delivered
    again."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(
            code,
            message,
            remedy="expect the record again; renew the lock of a record that takes longer, or raise"
            " share.record.lock.duration.ms of the group",
        )


class TransactionBroken(ClientError):
    """Something of the transaction did not come about, so it cannot be committed: abort it."""


class ClaimRefused(ClientError):
    """Another transactional id owns a topic that one producer at a time may write to. `owner` is
    that id."""

    def __init__(self, topic: str, owner: str, transactional_id: str, *, lease_ms: str) -> None:
        super().__init__(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            f"the topic {topic!r} is owned by the transactional id {owner!r}, so "
            f"{transactional_id!r} may not write to it",
            remedy=f"stop that producer, and claim the topic after {lease_ms} ms without a "
            "transaction of it (mqd.producer.lease.ms)",
        )
        self.owner = owner


class ProducerClosed(ClientError):
    """The producer was closed before the record was acknowledged."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(ErrorCode.OPERATION_NOT_ATTEMPTED, message, remedy=remedy)


class ConsumerClosed(ClientError):
    """The block of the consumer has ended."""

    def __init__(self) -> None:
        message = "the consumer is closed: its block has ended"
        super().__init__(
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            message,
            remedy="read inside of the block that opened it, or open another",
        )


class ClientClosed(ClientError, RuntimeError):
    """The block of the client has ended."""

    def __init__(self) -> None:
        message = "the client is closed: its block has ended"
        remedy = "use the client inside of the block, or connect again"
        super().__init__(ErrorCode.OPERATION_NOT_ATTEMPTED, message, remedy=remedy)


class ClientCrashed(ClientError):
    """A task of the client raised something that is no ClientError: a defect of the client. The
    original exception is the `__cause__`."""

    def __init__(self, cause: BaseException) -> None:
        self.__cause__ = cause
        super().__init__(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"a task of the client failed: {type(cause).__name__}: {cause}",
            remedy="report it as a defect of mqd, with the traceback of the cause",
        )


class InvalidValue(ClientError, ValueError):
    """An argument with an invalid value. The message names the allowed values."""

    def __str__(self) -> str:
        return f"{self.message}: {self.remedy}"


class InvalidType(ClientError, TypeError):
    """An argument of an invalid type. The message names the allowed types."""

    def __str__(self) -> str:
        return f"{self.message}: {self.remedy}" if self.remedy else self.message


def invalid_value(message: str, remedy: str) -> InvalidValue:
    """`message` names the argument and its value, `remedy` what is allowed."""
    return InvalidValue(ErrorCode.INVALID_REQUEST, message, remedy=remedy)


def invalid_type(message: str, remedy: str) -> InvalidType:
    """`message` names the argument and its value, `remedy` what is allowed."""
    return InvalidType(ErrorCode.INVALID_REQUEST, message, remedy=remedy)


def as_client_error(error: MqError) -> ClientError:
    """The same error as a ClientError."""
    return error if isinstance(error, ClientError) else ClientError(error.code, error.message)


_WITH_REMEDY = (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)
"""Errors for which mqd's message may end with `; ` and the remedy (config.py)."""


def error_from_wire(code: int, subject: str, detail: str | None = None) -> ClientError:
    """The ClientError for a non-zero code of a response. `subject` names the object of the request,
    `detail` is the peer's message. A message that begins with the subject stands alone.
    """
    assert code != 0
    try:
        known = ErrorCode(code)
    except ValueError:
        return ClientError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"{subject}: error code {code}, which this client does not know",
        )
    name = known.name.lower().removesuffix("_exception").replace("_", " ")
    reason = detail or name
    if known in _DENIED and not reason.startswith(_DENIED[known]):
        reason = _DENIED[known]
    is_complete = reason.lower().startswith(f"{subject.lower()} ") or (
        known is ErrorCode.SECURITY_DISABLED and detail
    )
    remedy = ""
    if known in _WITH_REMEDY and "; " in reason:
        reason, _, remedy = reason.rpartition("; ")
    return ClientError(known, reason if is_complete else f"{subject}: {reason}", remedy=remedy)


def no_such_partition(partition: object, topic: str, count: int) -> ClientError:
    """The ClientError for a partition that a producer names and the topic, with `count` partitions,
    does not have."""
    return ClientError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"partition {partition} of {topic!r} does not exist: the topic has partitions 0 to "
        f"{count - 1}",
        remedy="choose one of these partitions, or add one with `mqctl topic add-partitions`",
    )


def does_not_exist(code: ErrorCode, subject: str) -> ClientError:
    """The ClientError for an object that does not exist, with the sentence of Kafka's tools."""
    return ClientError(code, f"{subject[:1].upper()}{subject[1:]} does not exist.")
