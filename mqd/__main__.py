"""The command line of the daemon: `mqd start`, `dev`, `config list`, `storage` and
`force-voters`.

Exit codes: 0 success, 1 failure, 2 usage error. Each command imports its modules itself, after the
arguments are parsed: usage errors and --help appear without delay.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing.TYPE_CHECKING without importing typing
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Sequence
    from threading import Thread

    from mqd.config import NodeConfig
    from mqd.node.signals import StopSignals
    from mqd.security.client_listeners import ClientListener

OK, FAILURE, USAGE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. An error that the user can fix is printed as one
    line.
    """
    if not __debug__:
        print(
            "mqd: cannot run under python -O, which removes the assertions that protect your data; "
            "remove -O and PYTHONOPTIMIZE",
            file=sys.stderr,
        )
        return USAGE
    from mqd.command_line import parser

    try:
        options = parser().parse_args(arguments)
    except SystemExit as stop:  # argparse has printed the reason
        return int(stop.code or OK)
    from mqd.errors import QuorumBroken, StorageError
    from mqd.options import StartError

    try:
        return _COMMANDS[options.run](options)
    except (StartError, StorageError, QuorumBroken, OSError) as error:
        print(f"mqd: {error}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        return FAILURE


def _start(options: Namespace) -> int:
    from signal import SIGINT, SIGTERM

    from mqd.node.signals import StopSignals

    # before all imports that take time
    with StopSignals(SIGTERM, SIGINT) as signals:
        return _run_node(options, signals)


def _run_node(options: Namespace, signals: StopSignals) -> int:
    import os
    from pathlib import Path

    from mqd import logs
    from mqd.config import NodeConfig, StartOptions, load_peers
    from mqd.security.client_listeners import client_listeners

    peers = load_peers(options.peers)
    peers.require(options.node)
    if not options.insecure_peers:
        peers.require_secret(options.node)
    config = NodeConfig.load(
        Path(options.config) if options.config else None, os.environ, dict(options.settings)
    )
    logs.set_up(config.text("logging.level"))
    logs.warn_all((*peers.warnings, *config.warnings))
    config = config.of_node(peers, options.node)
    _check_advertised_hosts(client_listeners(config, peers.nodes[options.node]), config)

    import trio

    from mqd import daemon
    from mqd.io.disk import OsDisk

    disk = OsDisk(group_readable=config.boolean("data.group.readable"))
    try:
        trio.run(
            daemon.main,
            StartOptions(peers, options.node, Path(options.data), config),
            daemon.Seams(disk=disk, signals=signals),
        )
    except BaseExceptionGroup as group:
        raise _user_error(group) from group
    return OK


def _check_advertised_hosts(listeners: Iterable[ClientListener], config: NodeConfig) -> Thread:
    """Warn of advertised hosts that this machine cannot resolve. It is not an error: clients may
    use another DNS. The check runs in a thread, so that a slow DNS does not delay the start.
    """
    import socket
    from threading import Thread

    from mqd import logs
    from mqd.config_sources import Source

    def key_of(host: str) -> str:
        for key in ("advertised.listeners", "listeners"):
            is_set = config.source(key) not in (Source.DEFAULT, Source.PEERS)
            if is_set and any(host in entry for entry in config.strings(key)):
                return key
        return "advertised_host in the peers file"

    names: dict[str, list[str]] = {}
    for listener in listeners:
        names.setdefault(listener.advertised_host, []).append(listener.name)

    def check() -> None:
        for host, named in names.items():
            try:
                socket.getaddrinfo(host, None)
            except (OSError, UnicodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                logs.warn_all(
                    [
                        f"the advertised host {host!r} of {', '.join(named)} cannot be resolved "
                        f"({reason}): clients that cannot resolve it cannot connect; correct "
                        f"{key_of(host)}, or add the name to the DNS"
                    ]
                )

    thread = Thread(target=check, name="advertised hosts", daemon=True)
    thread.start()
    return thread


_OS_REMEDIES = {
    24: "raise the limit on open files (ulimit -n, LimitNOFILE)",
    23: "the machine has too many open files: raise fs.file-max",
    28: "free some space on the disk",
}
"""Remedies by error number: EMFILE, ENFILE, ENOSPC."""


def _user_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The single error inside of an exception group, if the operator can fix it or has interrupted
    the node. Otherwise the group: it is a bug.
    """
    from mqd.errors import QuorumBroken, StorageError
    from mqd.options import StartError

    for kind in (StartError, StorageError, QuorumBroken, OSError, KeyboardInterrupt):
        matched, rest = group.split(kind)
        if matched is not None and rest is None:
            leaf: BaseException = matched
            while isinstance(leaf, BaseExceptionGroup):
                leaf = leaf.exceptions[0]
            if isinstance(leaf, OSError):
                remedy = _OS_REMEDIES.get(leaf.errno or 0)
                return StartError(f"{leaf}; {remedy}" if remedy else str(leaf))
            return leaf
    return group


def _dev(options: Namespace) -> int:
    from pathlib import Path

    from mqd import dev

    return dev.run(
        dev.DevOptions(
            options.nodes, options.port, Path(options.data), dict(options.settings), options.secure
        )
    )


def _force_voters(options: Namespace) -> int:
    from pathlib import Path

    from mqd.config import load_peers
    from mqd.logs import write_line
    from mqd.raft.journal_start import force_voters

    peers = load_peers(options.peers)
    peers.require(options.node)
    if not options.yes:
        write_line("mqd: 'force-voters' is destructive. Re-run with --yes to confirm.")
        return USAGE
    found = force_voters(
        Path(options.data),
        cluster_id=peers.cluster_id,
        node_id=options.node,
        voters=frozenset(peers.voters),
    )
    write_line(
        f"Node {options.node} has voters {found}. Run this on every remaining voter, then "
        "start them.",
        sys.stdout,
    )
    return OK


def _add_user(options: Namespace) -> int:
    from mqd.storage_commands import add_user

    add_user(options)
    return OK


def _hash_password(options: Namespace) -> int:
    from mqd.storage_commands import hash_password

    hash_password(options)
    return OK


def _config_list(options: Namespace) -> int:
    from mqd import option_listing
    from mqd.logs import write_line

    write_line(option_listing.render(options.output), sys.stdout)
    return OK


_COMMANDS: dict[str, Callable[[Namespace], int]] = {
    "start": _start,
    "dev": _dev,
    "config list": _config_list,
    "storage add-user": _add_user,
    "storage hash-password": _hash_password,
    "force-voters": _force_voters,
}


if __name__ == "__main__":
    sys.exit(main())
