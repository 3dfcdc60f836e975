"""Who may do what, and how much: ACLs, SCRAM credentials and client quotas.

`Admin` has these calls too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import pbkdf2_hmac
from typing import Any
from uuid import UUID

from mqd.client.access import (
    AccessDecision,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    QuotaEntity,
    ScramCredentialInfo,
    ScramDeletion,
    ScramMechanism,
    ScramUpsertion,
)
from mqd.client.access_arguments import (
    as_entity_filter,
    as_quota_changes,
    check_acl_filter,
    check_acl_filters,
    check_acls,
    check_alterations,
    check_entity_types,
)
from mqd.client.arguments import check_flag, check_member, check_names, check_text
from mqd.client.calls import Calls, Outcomes, outcomes_of
from mqd.client.descriptions import ResourceType
from mqd.client.errors import ClientError, error_from_wire
from mqd.errors import ErrorCode
from mqd.security.authorizer import Authorizer, canonical_host, parse_super_users
from mqd.security.quotas import ADDRESS_KEYS, CLIENT_KEYS, IP_ENTITY
from mqd.security.scram import HASHES, NONCE_BITS, text_of_bits

DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS, DESCRIBE_CONFIGS = 29, 30, 31, 32
DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS = 48, 49
DESCRIBE_USER_SCRAM_CREDENTIALS, ALTER_USER_SCRAM_CREDENTIALS = 50, 51
_EXACT, _DEFAULT, _ANY_NAME = 0, 1, 2

_AUTHORIZER_KEYS = ("authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found")

EVERY_ACL = AclFilter()


class AccessAdmin(Calls):
    """Calls about access. An operator needs ALTER or DESCRIBE of the cluster for them."""

    # -- ACLs

    async def create_acls(self, acls: Iterable[Acl]) -> dict[Acl, ClientError | None]:
        """Create ACLs. None for each that exists now; one that existed before is no error."""
        wanted = check_acls("acls", acls)

        async def attempt(left: list[Acl]) -> Outcomes:
            response = await self._client.request_controller(
                CREATE_ACLS, {"creations": [_acl_row(each) for each in left]}
            )
            return outcomes_of(
                (acl, row, row.error_message, None)
                for acl, row in zip(left, response.results, strict=False)
            )

        results: dict[Acl, ClientError | None] = await self._each("creating ACLs", wanted, attempt)
        for acl, error in results.items():
            if error is not None and ":" not in acl.principal:
                error.remedy = "write the principal as User:NAME"
        return results

    async def describe_acls(self, matching: AclFilter = EVERY_ACL) -> list[Acl]:
        """The ACLs that match a filter, sorted; all by default.

        Raises ClientError, with SECURITY_DISABLED if the cluster has no authorizer.
        """
        check_acl_filter("matching", matching)

        async def attempt() -> list[Acl]:
            response = await self._client.request_controller(DESCRIBE_ACLS, _filter_row(matching))
            if response.error_code:
                raise error_from_wire(
                    response.error_code, "describing ACLs", response.error_message
                )
            return sorted(_acl(row, entry) for row in response.resources for entry in row.acls)

        return await self._retry("describing ACLs", attempt)

    async def delete_acls(
        self, filters: Iterable[AclFilter]
    ) -> dict[AclFilter, list[Acl] | ClientError]:
        """Delete the ACLs that match any filter. Returns those that each filter matched."""
        wanted = check_acl_filters("filters", filters)

        async def attempt(left: list[AclFilter]) -> Outcomes:
            response = await self._client.request_controller(
                DELETE_ACLS, {"filters": [_filter_row(each) for each in left]}
            )
            return outcomes_of(
                (
                    each,
                    row,
                    row.error_message,
                    sorted(_acl(found, found) for found in row.matching_acls),
                )
                for each, row in zip(left, response.filter_results, strict=False)
            )

        return await self._each("deleting ACLs", wanted, attempt)

    async def explain_access(
        self,
        principal: str,
        operation: AclOperation,
        resource_type: AclResourceType,
        resource_name: str,
        *,
        host: str = "*",
    ) -> AccessDecision:
        """Whether a principal may do something to a resource from an address, and which rule
        decides. For the host `*`, ACLs of single addresses do not count.
        """
        check_text("principal", principal, "User:alice")
        check_member("operation", operation, AclOperation)
        check_member("resource_type", resource_type, AclResourceType)
        check_text("resource_name", resource_name, "orders")
        check_text("host", host, "10.0.0.1")
        configs = await self._authorizer_configs()
        if not configs.get("authorizer.class.name"):
            return AccessDecision(True, "NoAuthorizer")
        super_users = parse_super_users(configs.get("super.users") or "")
        everyone = configs.get("allow.everyone.if.no.acl.found") == "true"
        authorizer = Authorizer(super_users, allow_if_no_acl=everyone)
        for number, acl in enumerate(await self.describe_acls()):
            authorizer.add(UUID(int=number), acl)
        rule = authorizer.rule(
            principal, canonical_host(host), operation, resource_type, resource_name
        )
        return AccessDecision(*rule)

    async def _authorizer_configs(self) -> dict[str, str | None]:
        """The options of the authorizer, as one broker has them."""

        async def attempt() -> dict[str, str | None]:
            brokers = (await self._client.refresh([])).brokers
            resource = {
                "resource_type": ResourceType.BROKER,
                "resource_name": str(min(brokers)),
                "configuration_keys": list(_AUTHORIZER_KEYS),
            }
            response = await self._client.request_broker(
                min(brokers), DESCRIBE_CONFIGS, {"resources": [resource]}
            )
            (row,) = response.results
            if row.error_code:
                raise error_from_wire(
                    row.error_code, "describing the authorizer", row.error_message
                )
            return {each.name: each.value for each in row.configs}

        return await self._retry("describing the authorizer", attempt)

    # -- SCRAM credentials

    async def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None
    ) -> dict[str, list[ScramCredentialInfo] | ClientError]:
        """The credentials of the users, without their secrets; of all users by default.

        A user without credentials has RESOURCE_NOT_FOUND.
        """
        wanted = None if users is None else check_names("users", users, "alice")
        if wanted == ():
            return {}

        async def attempt() -> dict[str, list[ScramCredentialInfo] | ClientError]:
            named = None if wanted is None else [{"name": name} for name in dict.fromkeys(wanted)]
            response = await self._client.request_controller(
                DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": named}
            )
            if response.error_code:
                raise error_from_wire(
                    response.error_code, "describing users", response.error_message
                )
            return {
                row.user: error_from_wire(row.error_code, f"user {row.user!r}", row.error_message)
                if row.error_code
                else [
                    ScramCredentialInfo(ScramMechanism(info.mechanism), info.iterations)
                    for info in row.credential_infos
                ]
                for row in response.results
            }

        return dict(sorted((await self._retry("describing users", attempt)).items()))

    async def alter_user_scram_credentials(
        self, alterations: Iterable[ScramUpsertion | ScramDeletion]
    ) -> dict[str, ClientError | None]:
        """Create, replace and delete SCRAM credentials, at most one of each user. None for each
        user whose credential is changed.

        A replaced password is valid for new logins only: connections stay open. A new password
        costs the client 2 to 20 ms.
        """
        wanted = check_alterations("alterations", alterations)
        users = [each.user for each in wanted]
        rows = {
            each.user: self._upsertion_row(each)
            for each in wanted
            if isinstance(each, ScramUpsertion)
        }

        async def attempt(left: list[str]) -> Outcomes:
            retried = [each for each in wanted if each.user in left]
            body = {
                "deletions": [
                    {"name": each.user, "mechanism": each.mechanism}
                    for each in retried
                    if isinstance(each, ScramDeletion)
                ],
                "upsertions": [
                    rows[each.user] for each in retried if isinstance(each, ScramUpsertion)
                ],
            }
            response = await self._client.request_controller(ALTER_USER_SCRAM_CREDENTIALS, body)
            return outcomes_of(
                ((row.user, row, row.error_message, None) for row in response.results), kind="user"
            )

        if len(set(users)) < len(users):
            twice = next(user for user in users if users.count(user) > 1)
            raise ClientError(
                ErrorCode.DUPLICATE_RESOURCE,
                f"user {twice!r} is in two alterations",
                remedy="alter one credential of a user in each call",
            )
        results: dict[str, ClientError | None] = await self._each(
            "altering users", users, attempt, repeated=ErrorCode.RESOURCE_NOT_FOUND
        )
        return results

    def _upsertion_row(self, upsertion: ScramUpsertion) -> dict[str, Any]:
        # As those of Kafka's tools, and of unknown users: all salts look the same.
        salt = text_of_bits(self._client.entropy.below(1 << NONCE_BITS)).encode()
        return {
            "name": upsertion.user,
            "mechanism": upsertion.mechanism,
            "iterations": upsertion.iterations,
            "salt": salt,
            "salted_password": pbkdf2_hmac(
                HASHES[upsertion.mechanism],
                upsertion.password.encode(),
                salt,
                upsertion.iterations,
            ),
        }

    # -- client quotas

    async def describe_client_quotas(
        self,
        entity: Mapping[str, str | None] | None = None,
        *,
        types: Iterable[str] = (),
        strict: bool = False,
    ) -> dict[QuotaEntity, dict[str, float]]:
        """The quotas of the entities that have these names by type (None: the default), and these
        types with any name. With `strict`, an entity has no other types. All by default.
        """
        names = as_entity_filter("entity", entity)
        kinds = check_entity_types("types", types)
        check_flag("strict", strict)
        components: list[dict[str, Any]] = [
            {"entity_type": kind, "match_type": _DEFAULT if name is None else _EXACT, "match": name}
            for kind, name in names.items()
        ]
        components += [
            {"entity_type": kind, "match_type": _ANY_NAME, "match": None} for kind in kinds
        ]

        async def attempt() -> dict[QuotaEntity, dict[str, float]]:
            response = await self._client.request_controller(
                DESCRIBE_CLIENT_QUOTAS, {"components": components, "strict": strict}
            )
            if response.error_code:
                raise error_from_wire(
                    response.error_code, "describing quotas", response.error_message
                )
            return {
                _entity(row.entity): {each.key: each.value for each in row["values"]}
                for row in response.entries or ()
            }

        found = await self._retry("describing quotas", attempt)
        return dict(sorted(found.items(), key=lambda each: _sort_key(each[0])))

    async def alter_client_quotas(
        self,
        changes: Mapping[QuotaEntity, Mapping[str, float | None]],
        *,
        validate_only: bool = False,
    ) -> dict[QuotaEntity, ClientError | None]:
        """Set quotas by key, and remove those whose value is None. All changes of an entity are
        made, or none.
        """
        wanted = as_quota_changes("changes", changes)
        check_flag("validate_only", validate_only)

        async def attempt(left: list[QuotaEntity]) -> Outcomes:
            body = {
                "entries": [_quota_row(entity, wanted[entity]) for entity in left],
                "validate_only": validate_only,
            }
            response = await self._client.request_controller(ALTER_CLIENT_QUOTAS, body)
            return outcomes_of(
                (_entity(row.entity), row, row.error_message, None) for row in response.entries
            )

        results: dict[QuotaEntity, ClientError | None] = await self._each(
            "altering quotas", list(wanted), attempt
        )
        for entity, error in results.items():
            if error is not None and (unknown := _unknown_keys(entity, wanted[entity])):
                error.remedy = unknown
        return results


def _acl_row(acl: Acl) -> dict[str, Any]:
    return {
        "resource_type": acl.resource_type,
        "resource_name": acl.resource_name,
        "resource_pattern_type": acl.pattern_type,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


def _filter_row(matching: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": matching.resource_type,
        "resource_name_filter": matching.resource_name,
        "pattern_type_filter": matching.pattern_type,
        "principal_filter": matching.principal,
        "host_filter": matching.host,
        "operation": matching.operation,
        "permission_type": matching.permission,
    }


def _acl(pattern: Any, entry: Any) -> Acl:
    return Acl(
        AclResourceType(pattern.resource_type),
        pattern.resource_name,
        PatternType(pattern.pattern_type),
        entry.principal,
        entry.host,
        AclOperation(entry.operation),
        AclPermission(entry.permission_type),
    )


def _entity(parts: Any) -> QuotaEntity:
    return tuple(sorted((part.entity_type, part.entity_name) for part in parts))


def _unknown_keys(entity: QuotaEntity, keys: Iterable[str]) -> str:
    """The remedy for keys that no quota of the entity has; empty if there are none."""
    from mqd.options import nearest

    of_address = entity[0][0] == IP_ENTITY
    known = ADDRESS_KEYS if of_address else CLIENT_KEYS
    unknown = next((key for key in keys if key not in known), None)
    if unknown is None:
        return ""
    listed = f"the keys of {'addresses' if of_address else 'users and client ids'} are " + (
        ", ".join(known)
    )
    close = nearest(unknown, known)
    return listed if close is None else f"did you mean '{close}'? T{listed[1:]}"


def _sort_key(entity: QuotaEntity) -> list[tuple[str, bool, str]]:
    """Defaults after names."""
    return [(kind, name is None, name or "") for kind, name in entity]


def _quota_row(entity: QuotaEntity, changes: Mapping[str, float | None]) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [
            {"key": key, "value": 0.0 if value is None else float(value), "remove": value is None}
            for key, value in changes.items()
        ],
    }
