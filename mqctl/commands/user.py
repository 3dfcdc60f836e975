"""mqctl user: users that log in with SCRAM (KIP-554)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mqctl import render
from mqctl.app import (
    Failure,
    LazyGroup,
    Settings,
    confirm,
    options,
    print_message,
    run_admin,
)
from mqctl.outcomes import finish
from mqctl.passwords import password_option, read_password
from mqd.errors import some_of

if TYPE_CHECKING:
    from mqd.client.access import ScramCredentialInfo, ScramDeletion, ScramUpsertion
    from mqd.client.admin import Admin
    from mqd.client.errors import ClientError

COMMANDS = {
    "create": ("mqctl.commands.user:create", "Create a user with a password."),
    "list": ("mqctl.commands.user:list_", "List users and their mechanisms."),
    "set-password": ("mqctl.commands.user:set_password", "Change the password of a user."),
    "delete": ("mqctl.commands.user:delete", "Delete users."),
}
USERS = (
    render.Column("user", "USER"),
    render.Column("mechanism", "MECHANISM"),
    render.Column("iterations", "ITERATIONS", right=True),
)
MECHANISMS = {"SCRAM-SHA-256": "SHA_256", "SCRAM-SHA-512": "SHA_512"}
"""Kafka's name -> our member of ScramMechanism."""
_NAMED_MAX = 50

Credentials = Mapping[str, "list[ScramCredentialInfo]"]
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def _mechanism_option(default: str) -> Callable[[FunctionT], FunctionT]:
    return click.option(
        "--mechanism",
        "mechanisms",
        multiple=True,
        type=click.Choice(tuple(MECHANISMS), case_sensitive=False),
        help=f"SASL mechanism; repeatable. [default: {default}]",
    )


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def user() -> None:
    """Create users, change passwords, list and delete users."""


@click.command()
@click.argument("name", metavar="USER")
@_mechanism_option("SCRAM-SHA-256")
@click.option(
    "--iterations",
    type=click.IntRange(4096, 16384),
    default=4096,
    show_default=True,
    metavar="N",
    help="PBKDF2 iterations. More iterations make guessing and logins slower.",
)
@password_option()
@options
def create(
    settings: Settings, name: str, mechanisms: tuple[str, ...], iterations: int, password_file: Any
) -> None:
    """Create USER, who logs in with SCRAM-SHA-256, or with the given mechanisms.

    \b
    mqctl user create alice
    """
    wanted = mechanisms or ("SCRAM-SHA-256",)
    if name in run_admin(settings, lambda admin: _credentials(admin, (name,))):
        raise Failure(
            f"User '{name}' already exists.",
            remedy=f"change the password with `mqctl user set-password {name}`",
        )
    password = read_password(name, password_file)
    rows = dict.fromkeys(wanted, iterations)
    _set(settings, name, password, rows)
    if settings.output != "table":
        settings.show(USERS, [_row(name, *row) for row in rows.items()])
    print_message(f"Created user '{name}' for {some_of(list(wanted), _NAMED_MAX)}.")


@click.command("list")
@click.argument("names", nargs=-1, metavar="[USER]...")
@options
def list_(settings: Settings, names: tuple[str, ...]) -> None:
    """List all users, or the named ones, with their mechanisms. Passwords cannot be shown.

    \b
    mqctl user list
    """
    results = run_admin(
        settings, lambda admin: admin.describe_user_scram_credentials(names or None)
    )
    rows = [
        _row(name, _kafka_name(info.mechanism.name), info.iterations)
        for name, infos in results.items()
        if isinstance(infos, list)
        for info in infos
    ]
    if not results:
        print_message("no users")
    settings.show_found(USERS, rows)
    finish(results)


@click.command("set-password")
@click.argument("name", metavar="USER")
@password_option()
@options
def set_password(settings: Settings, name: str, password_file: Any) -> None:
    """Change the password of USER, for all mechanisms that the user has.

    Open connections stay open.

    \b
    mqctl user set-password alice --password-file secret.txt
    """
    known = run_admin(settings, lambda admin: _credentials(admin, (name,)))
    if name not in known:
        raise _missing(name)
    password = read_password(name, password_file)
    rows = {_kafka_name(info.mechanism.name): info.iterations for info in known[name]}
    _set(settings, name, password, rows)
    if settings.output != "table":
        settings.show(USERS, [_row(name, *row) for row in rows.items()])
    print_message(f"Changed the password of user '{name}'.")


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="USER...")
@_mechanism_option("all of the user")
@click.option("--yes", "-y", is_flag=True, help="Skip the confirmation prompt.")
@options
def delete(
    settings: Settings, names: tuple[str, ...], mechanisms: tuple[str, ...], yes: bool
) -> None:
    """Delete users, or only their credentials for the given mechanisms.

    Open connections stay open. ACLs and quotas of the users stay, too. Exit code 1 if a user does
    not exist, 3 if others were deleted.

    \b
    mqctl user delete alice --yes
    """
    known = run_admin(settings, lambda admin: _credentials(admin, names))
    chosen = {
        name: [
            info.mechanism.name
            for info in known.get(name, ())
            if not mechanisms or _kafka_name(info.mechanism.name) in mechanisms
        ]
        for name in names
    }
    doomed = [name for name, found in chosen.items() if found]
    if doomed:
        confirm(f"Delete users: {some_of(doomed, _NAMED_MAX)}", yes=yes)

    async def work(admin: Admin) -> dict[str, Any]:
        from mqd.client.access import ScramDeletion, ScramMechanism

        return await _alter(
            admin,
            [
                ScramDeletion(name, ScramMechanism[mechanism])
                for name in doomed
                for mechanism in chosen[name]
            ],
        )

    results: dict[str, Any] = run_admin(settings, work) if doomed else {}
    from mqd.client.errors import ClientError
    from mqd.errors import ErrorCode

    for name in names:
        if not chosen[name]:
            results[name] = ClientError(
                ErrorCode.RESOURCE_NOT_FOUND,
                _missing(name).message,
                remedy="list users with `mqctl user list`",
            )
    deleted = [name for name, outcome in results.items() if outcome is None]
    if settings.output != "table":
        settings.show((), [{"user": name, "deleted": True} for name in deleted])
    if deleted:
        print_message(f"Deleted: {some_of(deleted, _NAMED_MAX)}")
    finish(results)


def _missing(name: str) -> Failure:
    return Failure(
        f"User '{name}' does not exist.", remedy=f"create it with `mqctl user create {name}`"
    )


def _kafka_name(member: str) -> str:
    return next((name for name, each in MECHANISMS.items() if each == member), member)


def _row(name: str, mechanism: str, iterations: int) -> dict[str, Any]:
    return {"user": name, "mechanism": mechanism, "iterations": iterations}


def _set(settings: Settings, name: str, password: str, iterations: Mapping[str, int]) -> None:
    """Set the password for each mechanism (Kafka's name)."""

    async def work(admin: Admin) -> dict[str, ClientError | None]:
        from mqd.client.access import ScramMechanism, ScramUpsertion

        return await _alter(
            admin,
            [
                ScramUpsertion(name, ScramMechanism[MECHANISMS[mechanism]], password, number)
                for mechanism, number in iterations.items()
            ],
        )

    finish(run_admin(settings, work))


async def _alter(
    admin: Admin,
    alterations: Iterable[ScramUpsertion | ScramDeletion],
) -> dict[str, ClientError | None]:
    """The result of each user: its first error. A request alters one credential of a user."""
    results: dict[str, ClientError | None] = {}
    left = list(alterations)
    while left:
        batch = {each.user: each for each in reversed(left)}
        left = [each for each in left if each is not batch[each.user]]
        for name, outcome in (await admin.alter_user_scram_credentials(batch.values())).items():
            results[name] = results.get(name) or outcome
    return results


async def _credentials(admin: Admin, names: tuple[str, ...]) -> Credentials:
    """The credentials of the named users that exist. Raises ClientError for any other error."""
    from mqd.client.errors import ClientError
    from mqd.errors import ErrorCode

    found: dict[str, list[ScramCredentialInfo]] = {}
    for name, outcome in (await admin.describe_user_scram_credentials(names or None)).items():
        if not isinstance(outcome, ClientError):
            found[name] = outcome
        elif outcome.code is not ErrorCode.RESOURCE_NOT_FOUND:
            raise outcome
    return found
