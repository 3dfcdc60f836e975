"""Whether a principal may do something to a resource (Apache Kafka's StandardAuthorizer). A core.

A super user may do everything. Otherwise the ACLs of the resource decide: those with its name, with
a prefix of it, and with the name `*`. A matching DENY wins. Then a matching ALLOW wins. If neither
matches, the request is denied. Exception: `allow.everyone.if.no.acl.found` is set, and no ACL
matches the resource.

An ALLOW of READ, WRITE, DELETE or ALTER includes DESCRIBE; one of ALTER_CONFIGS includes
DESCRIBE_CONFIGS. A DENY includes no other operation.

ACLs are indexed by resource, principal and host, so a decision does not depend on the number of
other ACLs. It grows with the number of different lengths of prefixes, and with the patterns that
match. Decisions are cached for each principal and host. A change of an ACL drops all of them.

Invariant: a cached decision equals the result of `Authorizer.rule` with the same arguments.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple
from uuid import UUID

from mqd.limits import AUTHORIZER_DECISIONS_MAX, AUTHORIZER_NAME_CHARS_CACHED_MAX
from mqd.security.acls import (
    ANY_PRINCIPAL,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from mqd.security.principal import Principal

_SUPPORTED: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}
"""Operations that `authorizedOperations` fields report (KIP-430)."""


def all_operations(resource_type: ResourceType) -> int:
    """The bits of `authorizedOperations` of a client that may do everything."""
    return sum(1 << operation for operation in _SUPPORTED[resource_type])


_ALLOWED_BY: Final[Mapping[Operation, frozenset[Operation]]] = {
    operation: frozenset({Operation.ALL, operation}) for operation in Operation
} | {
    Operation.DESCRIBE: frozenset(
        {
            Operation.ALL,
            Operation.DESCRIBE,
            Operation.READ,
            Operation.WRITE,
            Operation.DELETE,
            Operation.ALTER,
        }
    ),
    Operation.DESCRIBE_CONFIGS: frozenset(
        {Operation.ALL, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}
    ),
}
"""Operation -> the operations of an ALLOW ACL that permit it."""

_LOADED_AT_ONCE: Final = 250
"""ACLs of one step of `Authorizer.loading`: two milliseconds."""
_TYPICAL_NAME: Final = "hardcode"
"""The name that Kafka's authorizeByResourceType uses."""


class Rule(NamedTuple):
    """What decided, and how."""

    allowed: bool
    kind: str
    """As Apache Kafka's audit log: SuperUser, MatchingAcl, DefaultAllow or DefaultDeny."""
    acl: Acl | None = None

    def __str__(self) -> str:
        return self.kind if self.acl is None else f"{self.kind}({describe(self.acl)})"


SUPER_USER: Final = Rule(True, "SuperUser")
DEFAULT_ALLOW: Final = Rule(True, "DefaultAllow")
DEFAULT_DENY: Final = Rule(False, "DefaultDeny")

_AclsOfPrincipals = dict[tuple[str, str], dict[UUID, Acl]]
"""Principal and host -> the ACLs of one resource pattern: one for each operation and permission."""


class Relevant(NamedTuple):
    """The ACLs that may decide about one resource."""

    acls: tuple[Acl, ...]
    """The ACLs of the requesting principal and host, the most specific pattern first."""
    has_acls: bool
    """Whether any ACL matches the resource, also of others."""


_NOTHING: Final = Relevant((), False)


class TopicDecisions:
    """Whether topics may be read, or written, for the hot path. `Permissions.keep` enters the
    decisions.
    """

    __slots__ = ("by_id", "by_name")

    def __init__(self) -> None:
        self.by_name: dict[bytes, bool] = {}
        self.by_id: dict[bytes, bool] = {}
        """Only of topics that exist: an id is of one topic for ever."""


class Permissions:
    """The decisions for one principal and host. Only `Authorizer` makes it."""

    __slots__ = (
        "_authorizer",
        "_last",
        "_relevant",
        "decisions",
        "host",
        "name",
        "reads",
        "writes",
    )

    def __init__(self, authorizer: Authorizer, principal: Principal, host: str) -> None:
        self._authorizer = authorizer
        self.name = str(principal)
        self.host = canonical_host(host)
        self.decisions: dict[tuple[Operation, ResourceType, str], Rule] = {}
        self._last: tuple[ResourceType, str] | None = None
        self._relevant = _NOTHING
        """The ACLs of the resource `_last`: several questions about a resource follow each other.
        """
        self.reads = TopicDecisions()
        self.writes = TopicDecisions()

    def rule(self, operation: Operation, resource_type: ResourceType, name: str) -> Rule:
        """The rule that decides."""
        key = operation, resource_type, name
        found = self.decisions.get(key)
        if found is None:
            found = self._rule(operation, resource_type, name)
            if len(name) <= AUTHORIZER_NAME_CHARS_CACHED_MAX and self._authorizer.may_cache():
                self.decisions[key] = found
        return found

    def _rule(self, operation: Operation, resource_type: ResourceType, name: str) -> Rule:
        """The rule that decides, without the cache of decisions."""
        found = self._authorizer.rule_without_acls(self.name)
        if found is not None:
            return found
        resource = resource_type, name
        if self._last != resource:
            self._relevant = self._authorizer.relevant(self.name, self.host, resource_type, name)
            self._last = resource
        return self._authorizer.decide(operation, self._relevant)

    def keep(self, decisions: dict[bytes, bool], topic: bytes, allowed: bool) -> None:
        """Cache a decision in `reads` or `writes`."""
        if len(topic) <= AUTHORIZER_NAME_CHARS_CACHED_MAX and self._authorizer.may_cache():
            decisions[topic] = allowed

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """The bits of `authorizedOperations`: those operations that are allowed."""
        return sum(
            1 << operation
            for operation in _SUPPORTED[resource_type]
            if self.rule(operation, resource_type, name).allowed
        )

    def any_of_type(
        self, operation: Operation, resource_type: ResourceType
    ) -> Generator[int, None, bool]:
        """Whether at least one resource of the type is allowed (KIP-679). In slices: it may look at
        each ACL of the principal.
        """
        key = operation, resource_type, ""
        found = self.decisions.get(key)
        if found is None:
            allowed = yield from self._authorizer.any_of_type(
                self.name, self.host, operation, resource_type
            )
            found = DEFAULT_ALLOW if allowed else DEFAULT_DENY
            if self._authorizer.may_cache():
                self.decisions[key] = found
        return found.allowed


class _Lengths:
    """How many patterns there are of each length."""

    __slots__ = ("_counts", "_sorted")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._sorted: list[int] = []
        """The longest last."""

    def add(self, length: int) -> None:
        if length not in self._counts:
            insort(self._sorted, length)
        self._counts[length] = self._counts.get(length, 0) + 1

    def remove(self, length: int) -> None:
        self._counts[length] -= 1
        if not self._counts[length]:
            del self._counts[length]
            del self._sorted[bisect_left(self._sorted, length)]

    def at_most(self, length: int) -> Iterator[int]:
        """The lengths up to this one, the longest first."""
        for place in range(bisect_right(self._sorted, length) - 1, -1, -1):
            yield self._sorted[place]


class Authorizer:
    """The ACLs of the cluster, and the super users of this node."""

    def __init__(
        self,
        super_users: Iterable[str] = (),
        *,
        allow_if_no_acl: bool = False,
        enforces: bool = True,
    ) -> None:
        """`super_users`: principals as text, such as `User:admin`."""
        self.enforces = enforces
        """False for a node without `authorizer.class.name`: everything is allowed."""
        self.super_users = frozenset(super_users)
        self.allow_if_no_acl = allow_if_no_acl
        self._acls: dict[UUID, Acl] = {}
        self._exact: dict[tuple[ResourceType, str], _AclsOfPrincipals] = {}
        """Literal patterns, `*` included."""
        self._prefixed: dict[tuple[ResourceType, str], _AclsOfPrincipals] = {}
        self._prefix_lengths: dict[ResourceType, _Lengths] = {}
        """Lengths of the prefixed patterns."""
        self._of_principal: dict[tuple[ResourceType, str], dict[UUID, Acl]] = {}
        self._permissions: dict[tuple[Principal, str], Permissions] = {}
        self._room = AUTHORIZER_DECISIONS_MAX
        """How many more decisions may be cached."""

    def __len__(self) -> int:
        return len(self._acls)

    # -- changes -----------------------------------------------------------------------------------

    def add(self, id: UUID, acl: Acl) -> None:
        """Add an ACL, or replace the one with this id."""
        self.remove(id)
        self._forget()
        acl = self._acls[id] = acl._replace(host=canonical_host(acl.host))
        key = acl.resource_type, acl.resource_name
        patterns = self._patterns(acl)
        if patterns is self._prefixed and key not in patterns:
            self._prefix_lengths.setdefault(acl.resource_type, _Lengths()).add(
                len(acl.resource_name)
            )
        patterns.setdefault(key, {}).setdefault((acl.principal, acl.host), {})[id] = acl
        self._of_principal.setdefault((acl.resource_type, acl.principal), {})[id] = acl

    def remove(self, id: UUID) -> None:
        """Remove an ACL, if it exists."""
        acl = self._acls.pop(id, None)
        if acl is None:
            return
        self._forget()
        key = acl.resource_type, acl.resource_name
        patterns = self._patterns(acl)
        of_principals = patterns[key]
        of_client = of_principals[acl.principal, acl.host]
        del of_client[id]
        if not of_client:
            del of_principals[acl.principal, acl.host]
        if not of_principals:
            del patterns[key]
            if patterns is self._prefixed:
                self._prefix_lengths[acl.resource_type].remove(len(acl.resource_name))
        of_type = self._of_principal[acl.resource_type, acl.principal]
        del of_type[id]
        if not of_type:
            del self._of_principal[acl.resource_type, acl.principal]

    def loading(self, acls: Mapping[UUID, Acl]) -> Generator[None, None, Callable[[], None]]:
        """Index these ACLs in steps, which any thread may run. Returns the call that replaces all
        ACLs by them.
        """
        fresh = Authorizer()
        for number, (id, acl) in enumerate(acls.items()):
            fresh.add(id, acl)
            if number % _LOADED_AT_ONCE == _LOADED_AT_ONCE - 1:
                yield
        return partial(self._take_over, fresh)

    def _take_over(self, other: Authorizer) -> None:
        self._acls = other._acls
        self._exact, self._prefixed = other._exact, other._prefixed
        self._prefix_lengths = other._prefix_lengths
        self._of_principal = other._of_principal
        self._forget()

    def _patterns(self, acl: Acl) -> dict[tuple[ResourceType, str], _AclsOfPrincipals]:
        return self._prefixed if acl.pattern_type == PatternType.PREFIXED else self._exact

    def _forget(self) -> None:
        """No decision outlives a change of an ACL (I53)."""
        if self._permissions:
            self._permissions = {}
        self._room = AUTHORIZER_DECISIONS_MAX

    # -- questions ---------------------------------------------------------------------------------

    def permissions(self, principal: Principal, host: str) -> Permissions:
        """The decisions for a client. Valid until the next change of an ACL: do not keep it."""
        found = self._permissions.get((principal, host))
        if found is None:
            found = Permissions(self, principal, host)
            if self.may_cache():
                self._permissions[principal, host] = found
        return found

    def may_cache(self) -> bool:
        """Whether one more decision may be cached. When the caches are full, they are emptied."""
        self._room -= 1
        if self._room < 0:
            self._forget()
            return False
        return True

    def rule(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> Rule:
        """The rule that decides, without the cache."""
        found = self.rule_without_acls(principal)
        if found is not None:
            return found
        return self.decide(operation, self.relevant(principal, host, resource_type, name))

    def rule_without_acls(self, principal: str) -> Rule | None:
        """The rule for a principal that needs no ACL."""
        if not self.enforces:
            return DEFAULT_ALLOW
        return SUPER_USER if principal in self.super_users else None

    def decide(self, operation: Operation, relevant: Relevant) -> Rule:
        """The rule that follows from the ACLs of a resource."""
        allowed_by: Acl | None = None
        allowing = _ALLOWED_BY[operation]
        for acl in relevant.acls:
            if acl.permission == Permission.DENY:
                if acl.operation in (Operation.ALL, operation):
                    return Rule(False, "MatchingAcl", acl)
            elif allowed_by is None and acl.operation in allowing:
                allowed_by = acl
        if allowed_by is not None:
            return Rule(True, "MatchingAcl", allowed_by)
        return DEFAULT_ALLOW if self.allow_if_no_acl and not relevant.has_acls else DEFAULT_DENY

    def relevant(
        self, principal: str, host: str, resource_type: ResourceType, name: str
    ) -> Relevant:
        """The ACLs that may decide about a resource."""
        keys = [
            (one, address)
            for one in (principal, ANY_PRINCIPAL)
            for address in dict.fromkeys((host, WILDCARD))
        ]
        acls: list[Acl] = []
        has_acls = False
        for of_principals in self._matching(resource_type, name):
            has_acls = True
            for key in keys:
                found = of_principals.get(key)
                if found is not None:
                    acls += found.values()
        return Relevant(tuple(acls), has_acls)

    def _matching(self, resource_type: ResourceType, name: str) -> Iterator[_AclsOfPrincipals]:
        """The ACLs of each pattern that matches a resource, the most specific first."""
        found = self._exact.get((resource_type, name))
        if found is not None:
            yield found
        prefixed = self._prefixed
        lengths = self._prefix_lengths.get(resource_type)
        if lengths is not None:
            for length in lengths.at_most(len(name)):
                found = prefixed.get((resource_type, name[:length]))
                if found is not None:
                    yield found
        if name != WILDCARD:
            found = self._exact.get((resource_type, WILDCARD))
            if found is not None:
                yield found

    def any_of_type(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> Generator[int, None, bool]:
        """Whether a principal may use at least one resource of a type, as Kafka's
        `Authorizer.authorizeByResourceType`: an ALLOW counts unless a DENY covers its pattern.
        In slices: ACLs that change between two slices may count or not.
        """
        if self.rule(principal, host, operation, resource_type, _TYPICAL_NAME).allowed:
            return True
        allowed: list[Acl] = []
        denied: dict[PatternType, set[str]] = {
            PatternType.LITERAL: set(),
            PatternType.PREFIXED: set(),
        }
        for one in dict.fromkeys((principal, ANY_PRINCIPAL)):
            for acl in list(self._of_principal.get((resource_type, one), {}).values()):
                yield 1
                if acl.host not in (WILDCARD, host) or acl.operation not in (
                    Operation.ALL,
                    operation,
                ):
                    continue
                if acl.permission == Permission.DENY:
                    if acl.pattern_type == PatternType.LITERAL and acl.resource_name == WILDCARD:
                        return False
                    denied[acl.pattern_type].add(acl.resource_name)
                else:
                    allowed.append(acl)
        lengths = sorted({len(prefix) for prefix in denied[PatternType.PREFIXED]})
        for acl in allowed:
            if _is_usable(acl, denied, lengths):
                return True
            yield 1
        return False


def _is_usable(
    acl: Acl, denied: Mapping[PatternType, set[str]], prefix_lengths: Sequence[int]
) -> bool:
    """Whether no DENY covers the pattern of an ALLOW. `prefix_lengths`: of the denied prefixes."""
    name = acl.resource_name
    if acl.pattern_type == PatternType.LITERAL:
        if name == WILDCARD:
            return True
        if name in denied[PatternType.LITERAL]:
            return False
    prefixes = denied[PatternType.PREFIXED]
    return not any(name[:length] in prefixes for length in prefix_lengths)


def canonical_host(host: str) -> str:
    """One spelling of an address, so that `0:0:0:0:0:0:0:1` (Java's) equals `::1`. Other texts,
    such as `*`, stay as they are.
    """
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(address if mapped is None else mapped)


def describe(acl: Acl) -> str:
    """An ACL as one line, such as `ALLOW User:alice READ Topic:PREFIXED:orders- from *`."""
    return (
        f"{acl.permission.name} {acl.principal} {acl.operation.name} "
        f"{resource_text(acl.resource_type, acl.resource_name, acl.pattern_type)} from {acl.host}"
    )


def resource_text(
    resource_type: ResourceType, name: str, pattern_type: PatternType = PatternType.LITERAL
) -> str:
    """A resource as Apache Kafka's audit log has it: `Topic:LITERAL:orders`."""
    words = resource_type.name.split("_")
    return f"{''.join(word.capitalize() for word in words)}:{pattern_type.name}:{name}"


def parse_super_users(text: str) -> list[str]:
    """The principals of `super.users`: `User:alice;User:bob`. Raises ValueError."""
    users = [part.strip() for part in text.split(";") if part.strip()]
    for user in users:
        type_, colon, name = user.partition(":")
        if not colon or not type_ or not name:
            raise ValueError(f"'{user}' is not a principal: write it as User:NAME")
    return users
