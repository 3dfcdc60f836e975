"""ACLs as values: resource types, operations and patterns with Kafka's numbers. A core.

`authorizer.py` decides with them; the metadata stores them; DescribeAcls, CreateAcls and DeleteAcls
send them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

WILDCARD: Final = "*"
"""A literal pattern with this name matches every resource; a host of `*`, every address."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""
ANY_PRINCIPAL: Final = "User:*"


class ResourceType(IntEnum):
    """Kafka's numbers (KIP-140)."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Kafka's numbers (KIP-290). ANY and MATCH exist only in filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Kafka's numbers."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Kafka's numbers."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """One rule: who may, or must not, do what to which resources from where."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    """For example `User:alice`, or `User:*`."""
    host: str
    """An address, or `*`."""
    operation: Operation
    permission: Permission
