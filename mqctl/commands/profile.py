"""mqctl profile: saved addresses and credentials of clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mqctl import profiles, render
from mqctl.app import (
    USAGE,
    Failure,
    LazyGroup,
    Settings,
    offline_options,
    parse_pairs,
    print_message,
)
from mqctl.passwords import password_option, read_password

COMMANDS = {
    "create": ("mqctl.commands.profile:create", "Save the address and credentials of a cluster."),
    "use": ("mqctl.commands.profile:use", "Choose the profile of later commands."),
    "list": ("mqctl.commands.profile:list_", "List profiles, without their passwords."),
    "delete": ("mqctl.commands.profile:delete", "Delete profiles."),
}
PROFILES = (
    render.Column("current", ""),
    render.Column("name", "NAME"),
    render.Column("bootstrap", "BOOTSTRAP"),
    render.Column("protocol", "PROTOCOL"),
    render.Column("mechanism", "MECHANISM"),
    render.Column("user", "USER"),
)
_WITH_PASSWORD = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_name_argument = click.argument("name", metavar="NAME")


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def profile() -> None:
    """Save, choose, list and delete the credentials of clusters."""


@click.command()
@_name_argument
@click.option("-b", "--bootstrap", metavar="HOST:PORT,..", help="Bootstrap servers.")
@click.option(
    "--protocol",
    type=click.Choice(("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), case_sensitive=False),
    help="Security protocol. [default: SASL_SSL with --user, else PLAINTEXT]",
)
@click.option("--ca", metavar="FILE", help="Trusted certificates, in PEM.")
@click.option(
    "--mechanism",
    type=click.Choice((*_WITH_PASSWORD, "OAUTHBEARER"), case_sensitive=False),
    help="SASL mechanism. [default: SCRAM-SHA-256 with --user]",
)
@click.option("--user", metavar="USER", help="User name.")
@click.option(
    "--property", "pairs", multiple=True, metavar="KEY=VALUE", help="A client property; repeatable."
)
@click.option("--from", "source", metavar="FILE", help="Begin with the properties of this file.")
@password_option("--user")
@offline_options
def create(
    settings: Settings,
    name: str,
    bootstrap: str | None,
    protocol: str | None,
    ca: str | None,
    mechanism: str | None,
    user: str | None,
    pairs: tuple[str, ...],
    source: str | None,
    password_file: Any,
) -> None:
    """Save a profile, or replace it. The file has mode 0600. Paths in it are stored as absolute
    paths.

    NAME: 1 to 64 characters of a-z A-Z 0-9 . _ -

    \b
    mqctl profile create prod -b kafka:9093 --ca ca.pem --user alice
    """
    from mqd.client.client_properties import security_of
    from mqd.client.errors import ClientError

    path = profiles.path_of(name)
    found: dict[str, str] = {}
    if source is not None:
        directory = Path(source).expanduser().parent
        found = profiles.with_absolute_paths(profiles.read_file(Path(source), "--from"), directory)
    given = {
        "bootstrap.servers": bootstrap,
        "security.protocol": protocol or ("SASL_SSL" if user and source is None else None),
        "ssl.ca.location": ca,
        "sasl.mechanism": mechanism or ("SCRAM-SHA-256" if user and source is None else None),
        "sasl.username": user,
    }
    options = {key: value for key, value in given.items() if value is not None}
    found.update(profiles.with_absolute_paths({**options, **parse_pairs(pairs)}, Path.cwd()))
    if user is not None and found.get("sasl.mechanism", "").upper() in _WITH_PASSWORD:
        found["sasl.password"] = read_password(user, password_file, new=False)
    try:
        security_of(found)
    except ClientError as error:
        raise Failure(error.message, remedy=error.remedy, exit_code=USAGE) from None
    profiles.write(name, found)
    _show_data(settings, name)
    print_message(f"Saved profile '{name}' in {path}. Use it with `mqctl profile use {name}`.")


@click.command()
@_name_argument
@offline_options
def use(settings: Settings, name: str) -> None:
    """Use this profile in later commands that have neither --profile nor MQCTL_PROFILE.

    \b
    mqctl profile use prod
    """
    profiles.read(name)
    profiles.use(name)
    _show_data(settings, name)
    print_message(f"Later commands use profile '{name}'.")


@click.command("list")
@offline_options
def list_(settings: Settings) -> None:
    """List profiles, without their passwords.

    \b
    mqctl profile list
    """
    chosen = profiles.current()
    rows = []
    for name in profiles.names():
        found = profiles.read(name)
        rows.append(
            {
                "current": "*" if name == chosen else "",
                "name": name,
                "bootstrap": found.get("bootstrap.servers", ""),
                "protocol": found.get("security.protocol", "PLAINTEXT"),
                "mechanism": found.get("sasl.mechanism", ""),
                "user": found.get("sasl.username", ""),
            }
        )
    settings.show(PROFILES, rows)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@offline_options
def delete(settings: Settings, names: tuple[str, ...]) -> None:
    """Delete profiles; none if one of them does not exist.

    \b
    mqctl profile delete prod
    """
    profiles.delete(names)
    if settings.output != "table":
        settings.show((), [_data(name) for name in names])
    print_message(f"Deleted: {', '.join(names)}")


def _data(name: str) -> dict[str, str]:
    return {"profile": name, "file": str(profiles.path_of(name))}


def _show_data(settings: Settings, name: str) -> None:
    """The result, with -o json, jsonl or yaml."""
    if settings.output != "table":
        settings.show_data(_data(name))
