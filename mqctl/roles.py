"""What a producer and a consumer need: the operations of `mqctl acl create --producer|--consumer`.
They are those of kafka-acls.sh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mqctl.app import USAGE, Failure

PRODUCER: Final = {
    "TOPIC": ("write", "describe", "create"),
    "TRANSACTIONAL_ID": ("write", "describe"),
}
IDEMPOTENT_PRODUCER: Final = {**PRODUCER, "CLUSTER": ("idempotent-write",)}
CONSUMER: Final = {"TOPIC": ("read", "describe"), "GROUP": ("read",)}

Role = Mapping[str, Sequence[str]]
"""Member of AclResourceType -> operations."""

_OPTIONS: Final = {"TOPIC": "--topic", "GROUP": "--group"}
"""Resource types that a role cannot do without."""


def roles_of(*, producer: bool, consumer: bool, idempotent: bool) -> dict[str, Role]:
    """The chosen roles, by their option. Raises Failure."""
    if idempotent and not producer:
        raise Failure("--idempotent needs --producer", exit_code=USAGE)
    found: dict[str, Role] = {}
    if producer:
        found["--producer"] = IDEMPOTENT_PRODUCER if idempotent else PRODUCER
    if consumer:
        found["--consumer"] = CONSUMER
    return found


def operations_of(
    roles: Mapping[str, Role], resources: Sequence[tuple[str, str]]
) -> list[tuple[str, str, str]]:
    """Resource type, name and operation of each rule that the roles need, without duplicates.

    `resources`: pairs of type and name. Raises Failure if a role needs another resource, or if no
    role uses one.
    """
    types = {kind for kind, _ in resources}
    for option, role in roles.items():
        missing = [_OPTIONS[kind] for kind in role if kind in _OPTIONS and kind not in types]
        if missing:
            raise Failure(f"{option} needs {' and '.join(missing)}", exit_code=USAGE)
    for kind in types:
        if not any(kind in role for role in roles.values()):
            name = kind.replace("_", "-").lower()
            raise Failure(f"{' and '.join(roles)}: not for --{name}", exit_code=USAGE)
    return list(
        dict.fromkeys(
            (kind, name, operation)
            for role in roles.values()
            for kind, name in resources
            for operation in role.get(kind, ())
        )
    )
