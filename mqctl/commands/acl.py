"""mqctl acl: who may do what (Kafka's ACLs)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mqctl import render
from mqctl.app import (
    FAILED,
    USAGE,
    Failure,
    LazyGroup,
    Settings,
    confirm,
    options,
    print_message,
    run_admin,
)
from mqctl.outcomes import finish
from mqctl.roles import check_operation, operations_of, roles_of

if TYPE_CHECKING:
    from mqd.client.access import Acl, AclFilter
    from mqd.client.admin import Admin

COMMANDS = {
    "create": ("mqctl.commands.acl:create", "Allow or deny operations."),
    "list": ("mqctl.commands.acl:list_", "List ACLs."),
    "check": ("mqctl.commands.acl:check", "Show whether a principal may do something, and why."),
    "delete": ("mqctl.commands.acl:delete", "Delete ACLs."),
}
ACLS = (
    render.Column("permission", "PERMISSION"),
    render.Column("principal", "PRINCIPAL"),
    render.Column("host", "HOST"),
    render.Column("operation", "OPERATION"),
    render.Column("resource_type", "RESOURCE"),
    render.Column("pattern", "PATTERN"),
    render.Column("resource", "NAME"),
)
DECISION = (
    render.Column("allowed", "ALLOWED"),
    render.Column("rule", "RULE"),
    render.Column("acl", "ACL"),
)
OPERATIONS = (
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster-action",
    "describe-configs",
    "alter-configs",
    "idempotent-write",
    "create-tokens",
    "describe-tokens",
    "two-phase-commit",
)
_CLUSTER = "kafka-cluster"
_RESOURCES = {
    "topic": "TOPIC",
    "group": "GROUP",
    "transactional_id": "TRANSACTIONAL_ID",
    "delegation_token": "DELEGATION_TOKEN",
    "token_owner": "USER",
}
"""Option -> member of AclResourceType; the cluster is a flag."""
_SHOWN_MAX = 50


class _Principal(click.ParamType[str]):
    """`User:alice`; `alice` means the same."""

    name = "principal"

    def convert(
        self, value: str, param: click.Parameter | None, context: click.Context | None
    ) -> str:
        if not value.strip():
            self.fail("it is empty; specify User:NAME", param, context)
        return value if ":" in value else f"User:{value}"


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def acl() -> None:
    """Create, list, check and delete ACLs.

    A principal is User:NAME, or User:* for everyone. NAME alone means User:NAME. A DENY ACL
    overrides ALLOW ACLs.
    """


def _resource_options(*, multiple: bool) -> Callable[[FunctionT], FunctionT]:
    """--topic, --group and so on; the command receives them as keywords."""
    more = "; repeatable" if multiple else ""

    def add(function: FunctionT) -> FunctionT:
        for option, metavar, text in (
            ("--token-owner", "PRINCIPAL", "Delegation tokens of a user"),
            ("--delegation-token", "ID", "A delegation token"),
            ("--transactional-id", "ID", "A transactional id"),
            ("--group", "GROUP", "A group"),
            ("--topic", "TOPIC", "A topic"),
        ):
            function = click.option(
                option, multiple=multiple, metavar=metavar, help=f"{text}{more}."
            )(function)
        return click.option("--cluster", is_flag=True, help="The cluster itself.")(function)

    return add


def _resources(cluster: bool, given: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs of AclResourceType's member and name."""
    found = [("CLUSTER", _CLUSTER)] if cluster else []
    for option, kind in _RESOURCES.items():
        values = given[option]
        names = values if isinstance(values, tuple) else (values,) if values else ()
        found += [(kind, name) for name in names]
    return found


@click.command()
@click.option(
    "--allow",
    multiple=True,
    type=_Principal(),
    metavar="PRINCIPAL",
    help="Allow this principal, such as User:alice; repeatable.",
)
@click.option(
    "--deny",
    multiple=True,
    type=_Principal(),
    metavar="PRINCIPAL",
    help="Deny this principal, such as User:alice; repeatable.",
)
@click.option(
    "--operation",
    "operations",
    multiple=True,
    type=click.Choice(OPERATIONS, case_sensitive=False),
    help="An operation; repeatable.",
)
@click.option("--producer", is_flag=True, help="What a producer needs, instead of --operation.")
@click.option("--idempotent", is_flag=True, help="Also IDEMPOTENT_WRITE, for old producers.")
@click.option("--consumer", is_flag=True, help="What a consumer needs, instead of --operation.")
@_resource_options(multiple=True)
@click.option("--prefix", is_flag=True, help="Treat the names as prefixes.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    default=("*",),
    metavar="ADDRESS",
    help="The client's address; repeatable. [default: *, any]",
)
@options
def create(
    settings: Settings,
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    operations: tuple[str, ...],
    producer: bool,
    idempotent: bool,
    consumer: bool,
    cluster: bool,
    prefix: bool,
    hosts: tuple[str, ...],
    **given: Any,
) -> None:
    """Allow or deny operations on resources. An allowed read, write, delete or alter includes
    describe.

    --producer allows WRITE, DESCRIBE and CREATE of the topics, and WRITE and DESCRIBE of the
    transactional ids. --consumer allows READ and DESCRIBE of the topics, and READ of the groups.

    \b
    mqctl acl create --allow User:alice --consumer --topic orders --group billing
    mqctl acl create --allow User:bob --operation write --topic orders- --prefix
    """
    resources = _resources(cluster, given)
    roles = roles_of(producer=producer, consumer=consumer, idempotent=idempotent)
    if roles and (operations or deny):
        raise Failure(f"{' and '.join(roles)}: only with --allow", exit_code=USAGE)
    if not roles and not operations:
        raise Failure(
            "specify what to allow: --operation, --producer or --consumer", exit_code=USAGE
        )
    if idempotent:
        resources = [*resources, ("CLUSTER", _CLUSTER)]
    if not resources:
        raise Failure("specify a resource, for example --topic orders", exit_code=USAGE)
    if not allow and not deny:
        raise Failure("specify a principal: --allow or --deny User:NAME", exit_code=USAGE)
    for host in hosts:
        _check_host(host)
    for kind, _ in resources if not roles else ():
        for operation in operations:
            check_operation(kind, operation)
    rules = (
        operations_of(roles, resources)
        if roles
        else [(kind, name, operation) for kind, name in resources for operation in operations]
    )

    async def work(admin: Admin) -> tuple[set[Acl], dict[Acl, Any]]:
        from mqd.client.access import (
            Acl,
            AclOperation,
            AclPermission,
            AclResourceType,
            PatternType,
        )

        wanted = [
            Acl(
                AclResourceType[kind],
                name,
                PatternType.PREFIXED if prefix and kind != "CLUSTER" else PatternType.LITERAL,
                principal,
                host,
                AclOperation[_member(operation)],
                permission,
            )
            for kind, name, operation in rules
            for permission, principals in (
                (AclPermission.ALLOW, allow),
                (AclPermission.DENY, deny),
            )
            for principal in principals
            for host in hosts
        ]
        before = set(await admin.describe_acls())
        return before, dict(await admin.create_acls(wanted))

    before, results = run_admin(settings, work)
    done = [each for each, outcome in results.items() if outcome is None]
    present = [each for each in done if each in before]
    for each in present:
        print_message(f"ACL already exists: {_text(each)}")
    if done:
        settings.show(ACLS, [_row(each) for each in done if each not in before])
    finish({_text(each): outcome for each, outcome in results.items()})


def _filter_options(function: FunctionT) -> FunctionT:
    for option in (
        click.option(
            "--matching",
            is_flag=True,
            help="Also prefixed and wildcard ACLs that apply to the name.",
        ),
        click.option(
            "--operation",
            type=click.Choice(OPERATIONS, case_sensitive=False),
            help="Only ACLs of this operation.",
        ),
        click.option("--host", metavar="ADDRESS", help="Only ACLs of this address."),
        click.option(
            "--principal",
            type=_Principal(),
            metavar="PRINCIPAL",
            help="Only ACLs of this principal.",
        ),
    ):
        function = option(function)
    return _resource_options(multiple=False)(function)


def _filter(
    cluster: bool,
    given: dict[str, Any],
    principal: str | None,
    host: str | None,
    operation: str | None,
    matching: bool,
) -> AclFilter:
    from mqd.client.access import AclFilter, AclOperation, AclResourceType, PatternType

    resources = _resources(cluster, given)
    if len(resources) > 1:
        raise Failure("specify one resource", exit_code=USAGE)
    kind, name = resources[0] if resources else ("ANY", None)
    return AclFilter(
        AclResourceType[kind],
        name,
        PatternType.MATCH if matching else PatternType.ANY,
        principal,
        host,
        AclOperation[_member(operation) if operation else "ANY"],
    )


@click.command("list")
@_filter_options
@options
def list_(
    settings: Settings,
    cluster: bool,
    principal: str | None,
    host: str | None,
    operation: str | None,
    matching: bool,
    **given: Any,
) -> None:
    """List all ACLs, or those of a resource or principal.

    \b
    mqctl acl list --topic orders --matching
    mqctl acl list --principal User:alice
    """
    wanted = _filter(cluster, given, principal, host, operation, matching)
    found = run_admin(settings, lambda admin: admin.describe_acls(wanted))
    if not found:
        print_message("no ACLs")
    settings.show_found(ACLS, [_row(each) for each in found])


@click.command()
@_filter_options
@click.option("--all", "every", is_flag=True, help="Delete all ACLs of the cluster.")
@click.option("--yes", "-y", is_flag=True, help="Skip the confirmation prompt.")
@options
def delete(
    settings: Settings,
    cluster: bool,
    principal: str | None,
    host: str | None,
    operation: str | None,
    matching: bool,
    every: bool,
    yes: bool,
    **given: Any,
) -> None:
    """Delete the ACLs of a resource or principal. Takes effect within seconds.

    Exit code 0 also if no ACL matches.

    \b
    mqctl acl delete --principal User:alice --topic orders
    """
    from mqd.client.access import AclFilter

    wanted = _filter(cluster, given, principal, host, operation, matching)
    if wanted == AclFilter() and not every:
        raise Failure(
            "specify which ACLs: for example --principal User:alice, or --all", exit_code=USAGE
        )
    found = run_admin(settings, lambda admin: admin.describe_acls(wanted))
    if not found:
        print_message("no ACL matches")
        settings.show_found(ACLS, [])
        return
    lines = [_text(each) for each in found[:_SHOWN_MAX]]
    if len(found) > _SHOWN_MAX:
        lines.append(f"and {len(found) - _SHOWN_MAX} more")
    confirm("\n".join(["Delete these ACLs:", *lines]), yes=yes)

    exact = [_exact(each) for each in found]
    results = run_admin(settings, lambda admin: admin.delete_acls(exact))
    deleted = [outcome for outcome in results.values() if isinstance(outcome, list)]
    settings.show(ACLS, [_row(each) for matched in deleted for each in matched])
    finish({_text(each): outcome for each, outcome in zip(found, results.values(), strict=True)})


@click.command()
@click.argument("principal", type=_Principal(), metavar="PRINCIPAL")
@click.argument(
    "operation", type=click.Choice(OPERATIONS, case_sensitive=False), metavar="OPERATION"
)
@_resource_options(multiple=False)
@click.option("--host", default="*", metavar="ADDRESS", help="The client's address. [default: any]")
@options
def check(
    settings: Settings, principal: str, operation: str, cluster: bool, host: str, **given: Any
) -> None:
    """Show whether PRINCIPAL may do OPERATION, and which rule decides. Exit code 1: denied.

    \b
    mqctl acl check User:alice read --topic orders --host 10.0.0.1
    """
    resources = _resources(cluster, given)
    if len(resources) != 1:
        raise Failure("specify one resource, for example --topic orders", exit_code=USAGE)
    ((kind, name),) = resources

    from mqd.client.access import AclOperation, AclResourceType

    decision = run_admin(
        settings,
        lambda admin: admin.explain_access(
            principal, AclOperation[_member(operation)], AclResourceType[kind], name, host=host
        ),
    )
    text = None if decision.acl is None else _text(decision.acl)
    row = {"allowed": decision.allowed, "rule": decision.rule, "acl": text}
    settings.show(DECISION, [row])
    if not decision.allowed:
        raise SystemExit(FAILED)


def _check_host(host: str) -> None:
    """Raises Failure for a host that no client has: Kafka's authorizer compares addresses."""
    from ipaddress import ip_address

    if host == "*":
        return
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        raise Failure(
            f"'{host}' is not an address", remedy="use an IP address or *", exit_code=USAGE
        ) from None


def _exact(each: Acl) -> AclFilter:
    """The filter that matches only this ACL."""
    from mqd.client.access import AclFilter

    return AclFilter(*each)


def _member(operation: str) -> str:
    return operation.replace("-", "_").upper()


def _words(member: str) -> str:
    return member.replace("_", "-").lower()


def _row(each: Acl) -> dict[str, Any]:
    return {
        "permission": _words(each.permission.name),
        "principal": each.principal,
        "host": each.host,
        "operation": _words(each.operation.name),
        "resource_type": _words(each.resource_type.name),
        "pattern": _words(each.pattern_type.name),
        "resource": each.resource_name,
    }


def _text(each: Acl) -> str:
    from mqd.client.access import text_of_acl

    return text_of_acl(each)
