"""Values of the calls about access: ACLs, SCRAM credentials and client quotas. Pure.

Operations, permissions and resource types have other names here than in `mqd.security`:
`ResourceType` is the type of a configured resource (descriptions.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from mqd.security.acl_filters import AclFilter
from mqd.security.acls import (
    Acl,
    Operation as AclOperation,
    PatternType,
    Permission as AclPermission,
    ResourceType as AclResourceType,
)
from mqd.security.quotas import QuotaEntity
from mqd.security.scram import ITERATIONS_MIN
from mqd.security.scram_credentials import ScramMechanism

__all__ = [
    "AccessDecision",
    "Acl",
    "AclFilter",
    "AclOperation",
    "AclPermission",
    "AclResourceType",
    "PatternType",
    "QuotaEntity",
    "ScramCredentialInfo",
    "ScramDeletion",
    "ScramMechanism",
    "ScramUpsertion",
]


class AccessDecision(NamedTuple):
    """Whether a principal may do something, and why."""

    allowed: bool
    rule: str
    """NoAuthorizer, SuperUser, MatchingAcl, DefaultAllow or DefaultDeny."""
    acl: Acl | None = None
    """The ACL that decides, for MatchingAcl."""


class ScramCredentialInfo(NamedTuple):
    """What the cluster reveals of a credential."""

    mechanism: ScramMechanism
    iterations: int


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    """Create or replace the credential of a user for one mechanism. `repr` shows no password.

    The client salts the password: the cluster never receives it.
    """

    user: str
    mechanism: ScramMechanism
    password: str = field(repr=False)
    iterations: int = ITERATIONS_MIN


class ScramDeletion(NamedTuple):
    """Delete the credential of a user for one mechanism."""

    user: str
    mechanism: ScramMechanism
