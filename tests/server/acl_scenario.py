"""A scenario of the ACL matrix (acl_matrix.py): one request, and the resources that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from mqd.security.acls import CLUSTER_NAME, ResourceType

TOPIC_ID: Final = UUID(int=0xACE)
"""In a request: the id of the topic `orders`."""


class Needed(NamedTuple):
    """A resource of a scenario, and an operation on it that suffices."""

    type: ResourceType
    name: str
    operation: str


@dataclass(frozen=True)
class Scenario:
    """One request. `needs`: the resources of the matrix; all but one are allowed in each case."""

    title: str
    api: str
    version: int
    needs: tuple[Needed, ...]
    request: Mapping[str, Any]
    alternatives: tuple[Needed, ...] = ()
    """Resources that also suffice in place of one of `needs`. They are part of the matrix, too."""
    only: tuple[str, ...] = ()
    """Names of rows that count in a response that lists everything."""
    own_topic: bool = False
    """Whether each case has a topic `own-USER`."""
    few: bool = False
    """Whether only the cases with and without the operation count."""
    deep: bool = True
    """False: only the error codes at the top count."""
    before: tuple[str, int, Mapping[str, Any]] | None = None
    """API, version and body of a request that a super user sends before each case."""
    note: str = ""
    """What the table of docs/SECURITY.md says in place of the operations."""


def cluster(operation: str) -> Needed:
    return Needed(ResourceType.CLUSTER, CLUSTER_NAME, operation)
