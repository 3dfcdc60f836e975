"""mqctl cert: a certificate authority (CA) in a directory, without a connection."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from mqctl import render
from mqctl.app import (
    USAGE,
    Failure,
    LazyGroup,
    Settings,
    offline_options,
    print_message,
)
from mqd.file_modes import others_can_read, remedy_for
from mqd.io.certificates import (
    CA_CERTIFICATE,
    CA_DAYS,
    CA_KEY,
    NODE_DAYS,
    Authority,
    hosts_of,
    issue_node,
    node_file,
    read_info,
    write_private,
)
from mqd.options import ConfigError
from mqd.peers import PeerNode, load_peers

COMMANDS = {
    "init": (
        "mqctl.commands.cert:init",
        "Create a certificate authority (CA), and certificates for every node of a peers file.",
    ),
    "renew": ("mqctl.commands.cert:renew", "Replace certificates by new ones with the same names."),
    "show": ("mqctl.commands.cert:show", "Show names and expiry of certificates."),
}
CERTIFICATES = (
    render.Column("file", "FILE"),
    render.Column("subject", "SUBJECT"),
    render.Column("names", "NAMES"),
    render.Column("expires", "EXPIRES"),
    render.Column("days_left", "DAYS-LEFT", right=True),
)


_NODE_FILE = re.compile(r"node-[0-9]+\.pem")
"""Every name that `node_file` gives."""
_WARN_DAYS = 30
_OTHER_CA = "name certificates of `mqctl cert init` in the same directory"


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def cert() -> None:
    """Create, renew and show the certificates of nodes and clients."""


@click.command()
@offline_options
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--peers",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Peers file. Each of its nodes gets a certificate.",
)
@click.option(
    "--client",
    "clients",
    multiple=True,
    metavar="NAME",
    help="Create NAME.pem, a certificate for a client; repeatable.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="ID=HOST",
    help="Another host name or address of a node, such as one of advertised.listeners.",
)
@click.option(
    "--days",
    type=click.IntRange(1, CA_DAYS),
    default=NODE_DAYS,
    show_default=True,
    metavar="N",
    help="Validity of nodes and clients.",
)
def init(
    settings: Settings,
    directory: Path,
    peers: Path | None,
    clients: tuple[str, ...],
    hosts: tuple[str, ...],
    days: int,
) -> None:
    """Create a certificate authority (CA) in DIRECTORY, and a certificate for each node of the
    peers file.

    If DIRECTORY has a CA, only missing certificates are created. Copy ca.pem and node-ID.pem to
    node ID. Keep ca.key offline: anyone who has it can act as any node or client.

    \b
    mqctl cert init certs --peers peers.toml --client alice
    """
    if peers is None and not clients:
        raise click.UsageError("specify --peers, --client, or both")
    extra = _extra_hosts(hosts)
    for name in clients:
        _check_name(name)
    now = datetime.now(UTC)
    cluster_id, nodes = _nodes(peers)
    if unknown := extra.keys() - {node.id for node in nodes}:
        raise Failure(
            f"--host names node {min(unknown)}, which the peers file does not have",
            remedy="write --host ID=HOST with the id of a node",
            exit_code=USAGE,
        )
    try:
        if (directory / CA_KEY).exists():
            _warn_of_mode(directory / CA_KEY)
            authority = Authority.load(directory)
        else:
            authority = Authority.create(f"mqd {cluster_id or 'authority'}", now=now)
            authority.save(directory)
        written = []
        for node in nodes:
            path = directory / node_file(node.id)
            if path.exists():
                continue
            hosts_of_node = [*hosts_of(node), *extra.get(node.id, ())]
            pem = issue_node(authority, cluster_id, node.id, hosts_of_node, now=now, days=days)
            write_private(path, pem, replace=False)
            written.append(path)
        for name in clients:
            path = directory / f"{name}.pem"
            if path.exists():
                continue
            write_private(path, authority.issue(name, now=now, days=days), replace=False)
            written.append(path)
    except (OSError, ValueError) as error:
        raise _failure(error) from None
    _show(settings, [directory / CA_CERTIFICATE, *written], now)


@click.command()
@offline_options
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--days",
    type=click.IntRange(1, CA_DAYS),
    default=NODE_DAYS,
    show_default=True,
    metavar="N",
    help="Validity of the new certificates.",
)
def renew(settings: Settings, directory: Path, names: tuple[str, ...], days: int) -> None:
    """Replace certificates of DIRECTORY (all, or NAME.pem) by new ones with new keys.

    Files that the CA of DIRECTORY did not issue stay, and so does the CA. Nodes read changed files
    within a few seconds, and keep their connections.

    \b
    mqctl cert renew certs node-1
    """
    now = datetime.now(UTC)
    paths = [directory / f"{name.removesuffix('.pem')}.pem" for name in names] or [
        path for path in sorted(directory.glob("*.pem")) if path.name != CA_CERTIFICATE
    ]
    try:
        _warn_of_mode(directory / CA_KEY)
        authority = Authority.load(directory)
        old: dict[Path, bytes] = {}
        for path in paths:
            data = path.read_bytes()
            refusal = authority.refusal_to_reissue(data)
            if refusal is None:
                old[path] = data
            elif names:
                raise Failure(f"'{path}' is not renewed: {refusal}", remedy=_OTHER_CA)
            else:
                print_message(f"'{path}' is not renewed: {refusal}")
        for path, data in old.items():
            write_private(path, authority.reissue(data, now=now, days=days), replace=True)
    except (OSError, ValueError) as error:
        raise _failure(error) from None
    _show(settings, old, now)


def _warn_of_mode(key: Path) -> None:
    """Raises OSError."""
    if others_can_read(key):
        print_message(
            f"users other than the owner can read '{key}', and issue certificates: "
            f"{remedy_for(key)}"
        )


@click.command()
@offline_options
@click.argument("path", metavar="DIR_OR_FILE", type=click.Path(exists=True, path_type=Path))
def show(settings: Settings, path: Path) -> None:
    """Show the subject, names and expiry of certificates in PEM.

    \b
    mqctl cert show certs
    """
    paths = sorted(path.glob("*.pem")) if path.is_dir() else [path]
    try:
        _show(settings, paths, datetime.now(UTC))
    except (OSError, ValueError) as error:
        raise _failure(error) from None


def _show(settings: Settings, paths: Iterable[Path], now: datetime) -> None:
    rows: list[dict[str, Any]] = []
    for path in paths:
        info = read_info(path)
        left = (info.not_after - now).days
        rows.append(
            {
                "file": str(path),
                "subject": info.subject,
                "names": ",".join(info.names),
                "expires": info.not_after.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "days_left": left,
            }
        )
        if left < _WARN_DAYS:
            print_message(f"'{path}' {_expiry(info.not_after, now)}: {_renewal(path)}")
    settings.show(CERTIFICATES, rows)


def _expiry(not_after: datetime, now: datetime) -> str:
    """For example `expired 3 days ago`."""
    days = abs(not_after - now).days
    text = "1 day" if days == 1 else f"{days} days" if days else "less than a day"
    return f"expires in {text}" if now < not_after else f"expired {text} ago"


def _renewal(path: Path) -> str:
    if path.name == CA_CERTIFICATE:
        return "create another CA with `mqctl cert init`"
    return f"run `mqctl cert renew {shlex.quote(str(path.parent))}`"


def _nodes(peers: Path | None) -> tuple[str, list[PeerNode]]:
    """(cluster id, nodes) of the peers file."""
    if peers is None:
        return "", []
    try:
        found = load_peers(peers)
    except ConfigError as error:
        raise Failure(str(error), exit_code=USAGE) from None
    return found.cluster_id, list(found.nodes.values())


def _extra_hosts(hosts: tuple[str, ...]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for text in hosts:
        node_id, equals, host = text.partition("=")
        if not equals or not host or not node_id.isdigit():
            raise click.BadParameter(f"invalid host {text!r}: expected ID=HOST")
        found.setdefault(int(node_id), []).append(host)
    return found


def _check_name(name: str) -> None:
    if not name or "/" in name or name.startswith("."):
        raise click.BadParameter(f"invalid client {name!r}: it is the name of a file")
    file = f"{name}.pem"
    if file == CA_CERTIFICATE or _NODE_FILE.fullmatch(file):
        raise click.BadParameter(
            f"invalid client {name!r}: {file} is the certificate of the CA or of a node"
        )


def _failure(error: Exception) -> Failure:
    if isinstance(error, FileNotFoundError):
        return Failure(f"{error.filename} does not exist", remedy="create it: `mqctl cert init`")
    if isinstance(error, OSError):
        return Failure(f"{error.filename}: {error.strerror or error}")
    return Failure(str(error))
