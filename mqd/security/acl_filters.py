"""Filters of ACLs, as DescribeAcls and DeleteAcls send them (KIP-140, KIP-290). A core.

Apache Kafka's AclBindingFilter. It matches the same ACLs.
"""

from __future__ import annotations

from typing import NamedTuple

from mqd.security.acls import WILDCARD, Acl, Operation, PatternType, Permission, ResourceType


class AclFilter(NamedTuple):
    """None and ANY match everything. UNKNOWN, which stands for numbers that this version does not
    know, matches nothing.
    """

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    """MATCH selects every pattern that applies to the resource `resource_name`: the literal one,
    the wildcard and the prefixes. LITERAL, PREFIXED and ANY compare the names of patterns.
    """
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        """Whether the filter selects an ACL."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return self.resource_name == acl.resource_name
        if acl.pattern_type is PatternType.PREFIXED:
            return self.resource_name.startswith(acl.resource_name)
        return acl.resource_name in (self.resource_name, WILDCARD)
