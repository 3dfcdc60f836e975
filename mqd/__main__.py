"""The command line of the daemon: `mqd start`, `dev`, `config list`, `storage` and
`force-voters`.

Exit codes: 0 success, 1 failure, 2 usage error. Each command imports its modules itself, after the
arguments are parsed: usage errors and --help appear without delay.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing.TYPE_CHECKING without importing typing
if TYPE_CHECKING:
    from argparse import Action, ArgumentParser, Namespace, _SubParsersAction
    from collections.abc import Iterable, Sequence
    from threading import Thread
    from typing import Any

    from mqd.config import NodeConfig
    from mqd.node.signals import StopSignals
    from mqd.security.client_listeners import ClientListener

OK, FAILURE, USAGE = 0, 1, 2
NODES_MAX = 9
"""The largest cluster of `mqd dev`."""
_PASSWORD_VARIABLE = "MQD_USER_PASSWORD"


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
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as stop:  # argparse has printed the reason
        return int(stop.code or OK)
    from mqd.errors import QuorumBroken, StorageError
    from mqd.options import StartError

    try:
        return int(options.run(options))
    except (StartError, StorageError, QuorumBroken, OSError) as error:
        print(f"mqd: {error}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        return FAILURE


def _parser() -> ArgumentParser:
    from argparse import ArgumentError, ArgumentParser

    from mqd import __version__

    class Suggesting(ArgumentParser):
        """Its error for an unknown command, option or choice suggests the nearest one."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options, allow_abbrev=False)

        def parse_known_args(  # type: ignore[override]
            self, args: Sequence[str] | None = None, namespace: Namespace | None = None
        ) -> tuple[Namespace, list[str]]:
            if args:
                self._check_options(args)
            return super().parse_known_args(args, namespace)

        def _check_options(self, arguments: Sequence[str]) -> None:
            """Exits for an unknown option, before argparse reports the one that is missing."""
            known = self._option_string_actions
            for argument in arguments:
                is_option = argument.startswith("-") and argument != "-"
                if argument == "--" or (self._subparsers is not None and not is_option):
                    return  # the parser of the command checks its own options
                name = argument.partition("=")[0] if argument.startswith("--") else argument[:2]
                if is_option and not name[1:].isdecimal() and name not in known:
                    from mqd.options import nearest

                    close = nearest(name, known)
                    if not name.startswith("--"):
                        same_letter = (each for each in known if each[1:].startswith(name.lower()))
                        close = next(same_letter, None)
                    hint = "" if close is None else f". Did you mean '{close}'?"
                    self.error(f"no such option: '{name}'{hint}")

        def _check_value(self, action: Action, value: Any) -> None:
            choices = action.choices
            if choices is not None and value not in choices:
                from mqd.options import nearest

                if (close := nearest(str(value), map(str, choices))) is not None:
                    what = f"no such choice: '{value}'. Did you mean '{close}'?"
                    raise ArgumentError(action, what)
            super()._check_value(action, value)

    parser: ArgumentParser = Suggesting(
        prog="mqd", description="A distributed message queue that speaks the Apache Kafka protocol."
    )
    parser.add_argument("--version", action="version", version=f"mqd {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)
    _add_start(commands)
    _add_dev(commands)
    _add_config(commands)
    _add_storage(commands)
    _add_force_voters(commands)
    return parser


def _add_start(commands: _SubParsersAction[ArgumentParser]) -> None:
    command = commands.add_parser(
        "start",
        help="run one node in the foreground",
        description="Run one node of a cluster until SIGTERM or Ctrl-C. For a local cluster "
        "without any configuration, use `mqd dev`.",
        epilog="Example: mqd start --peers peers.toml --node 1 --data data-1",
    )
    _add_node(command)
    command.add_argument(
        "--config",
        metavar="FILE",
        help="configuration file with Kafka's keys: TOML if it ends in .toml, else the format of "
        "server.properties",
    )
    what = "permit a node without a cluster secret, even if other machines can reach its peer port"
    command.add_argument("--insecure-peers", action="store_true", help=what)
    _add_settings(command)
    command.set_defaults(run=_start)


def _add_dev(commands: _SubParsersAction[ArgumentParser]) -> None:
    command = commands.add_parser(
        "dev",
        help="run a local cluster for development",
        description="Run a cluster on 127.0.0.1 until Ctrl-C. When all nodes are ready, it prints "
        "commands for a first test. A second run with the same DIR continues the same cluster.",
        epilog="Example: mqd dev --nodes 3 --data data3",
    )
    command.add_argument(
        "--nodes",
        type=_node_count,
        metavar="N",
        help=f"number of nodes, 1 to {NODES_MAX} [default: that of the cluster in DIR, else 1]",
    )
    command.add_argument(
        "--port",
        type=_port,
        metavar="P",
        help="first of 2 * N consecutive ports: N for clients, N between nodes [default: those of "
        "the cluster, else the first free block from 9092]",
    )
    command.add_argument(
        "--data",
        default="data",
        metavar="DIR",
        help="directory for the peers file and the data of every node [default: ./data]",
    )
    command.add_argument(
        "--secure",
        action="store_true",
        help="create a cluster with TLS, SCRAM logins and ACLs; TLS also protects connections "
        "between nodes. No effect on an existing cluster",
    )
    _add_settings(command)
    command.set_defaults(run=_dev)


def _add_config(commands: _SubParsersAction[ArgumentParser]) -> None:
    command = commands.add_parser("config", help="show configuration keys")
    listing = command.add_subparsers(metavar="command", required=True).add_parser(
        "list",
        help="list all configuration keys with type, default and meaning",
        description="List all configuration keys. STATUS: an implemented key works as in "
        "Kafka, an ignored key is accepted with a warning, a refused key prevents the "
        "start of a node. DYNAMIC: the key can be changed while the node runs, with Kafka's tools.",
        epilog="Example: mqd config list -o json",
    )
    listing.add_argument(
        "-o",
        dest="output",
        choices=("table", "json", "yaml"),
        default="table",
        help="output format [default: table]",
    )
    listing.set_defaults(run=_config_list)


def _add_storage(commands: _SubParsersAction[ArgumentParser]) -> None:
    storage = commands.add_parser("storage", help="prepare the files of a node")
    actions = storage.add_subparsers(metavar="command", required=True)
    command = actions.add_parser(
        "add-user",
        help="add the first user of a new cluster",
        description="Create the first user of a new cluster. Run it before the first start, on any "
        "node; if on several, with the same users. In a cluster that exists, use `mqctl user "
        "create`.",
        epilog="Example: mqd storage add-user admin --data data",
    )
    command.add_argument("--data", required=True, metavar="DIR", help="data directory of the node")
    command.add_argument(
        "--mechanism",
        choices=("SCRAM-SHA-256", "SCRAM-SHA-512"),
        default="SCRAM-SHA-256",
        help="how the user logs in [default: SCRAM-SHA-256]",
    )
    _add_user_options(command, iterations=4096)
    command.set_defaults(run=_add_user)
    command = actions.add_parser(
        "hash-password",
        help="write a user of PLAIN, with the hash of the password",
        description="Write one line of a `users_file`: a PLAIN user and the hash of the password. "
        "Without --file, print it.",
        epilog="Example: mqd storage hash-password alice --file plain-users",
    )
    command.add_argument(
        "--file", metavar="FILE", help="add the user to FILE, or replace its line there"
    )
    _add_user_options(command, iterations=16384)
    command.set_defaults(run=_hash_password)


def _add_user_options(command: ArgumentParser, *, iterations: int) -> None:
    command.add_argument("user", metavar="USER", help="name of the user")
    command.add_argument(
        "--iterations",
        type=int,
        default=iterations,
        metavar="N",
        help="PBKDF2 iterations. More iterations make guessing and logins slower [4096 to 16384; "
        f"default: {iterations}]",
    )
    command.add_argument(
        "--password-file",
        metavar="FILE",
        help="read the password from the first line of FILE; - is standard input [env: "
        f"{_PASSWORD_VARIABLE}; default: a prompt]",
    )


def _add_force_voters(commands: _SubParsersAction[ArgumentParser]) -> None:
    what = (
        "recover a quorum whose majority is permanently lost: make the voters of the peers file "
        "the voter set"
    )
    description = (
        f"{what[0].upper()}{what[1:]}. Stop all nodes first. Run it on every remaining "
        "voter, with the same peers file."
    )
    command = commands.add_parser(
        "force-voters",
        help=what,
        description=description,
        epilog="Example: mqd force-voters --peers peers.toml --node 1 --data data-1 --yes",
    )
    _add_node(command, creates=False)
    command.add_argument(
        "--yes",
        action="store_true",
        help="confirm: metadata that only the lost voters have is lost",
    )
    command.set_defaults(run=_force_voters)


def _add_node(command: ArgumentParser, *, creates: bool = True) -> None:
    """--peers, --node and --data. `creates`: whether the command creates the data directory."""
    command.add_argument(
        "--peers",
        required=True,
        metavar="FILE",
        help="TOML file with the addresses of all nodes, the same on every node",
    )
    command.add_argument(
        "--node",
        required=True,
        type=int,
        metavar="ID",
        help="id of this node, as in the peers file",
    )
    command.add_argument(
        "--data",
        required=True,
        metavar="DIR",
        help="data directory of this node" + "; created if it does not exist" * creates,
    )


def _add_settings(command: ArgumentParser) -> None:
    what = "set a configuration key (see `mqd config list`); repeatable"
    command.add_argument(
        "-o",
        dest="settings",
        type=_setting,
        action="append",
        default=[],
        metavar="key=value",
        help=what,
    )


def _setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise _usage(
            f"invalid setting {text!r}: expected key=value, for example -o log.retention.ms=3600000"
        )
    return key.strip(), value


def _node_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= NODES_MAX:
        raise _usage(f"invalid number of nodes {text!r}: expected 1 to {NODES_MAX}")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise _usage(f"invalid port {text!r}: expected 1 to 65535")
    return int(text)


def _usage(message: str) -> Exception:
    from argparse import ArgumentTypeError

    return ArgumentTypeError(message)


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
    from pathlib import Path
    from secrets import randbits

    from mqd.io.disk import OsDisk
    from mqd.logs import write_line
    from mqd.node.first_users import add_first_user
    from mqd.options import StartError
    from mqd.security.scram import BY_NAME, NONCE_BITS, check_iterations, text_of_bits

    try:
        check_iterations(options.iterations)
    except ValueError as error:
        raise StartError(f"--iterations: {error}") from None
    if not options.user:
        raise StartError("the name of the user is empty")
    add_first_user(
        OsDisk(),
        Path(options.data),
        options.user,
        _new_password(options.user, options.password_file),
        mechanism=BY_NAME[options.mechanism],
        iterations=options.iterations,
        # same format as the salts of mqctl and of unknown users
        salt=text_of_bits(randbits(NONCE_BITS)).encode(),
    )
    write_line(
        f"Added user '{options.user}' for {options.mechanism}. The first start of the new cluster "
        "creates it.",
        sys.stdout,
    )
    return OK


def _hash_password(options: Namespace) -> int:
    from pathlib import Path
    from secrets import randbits

    from mqd.io.disk import OsDisk
    from mqd.logs import write_line
    from mqd.options import StartError
    from mqd.security.hashed_users import line_of, with_line
    from mqd.security.scram import NONCE_BITS, text_of_bits

    salt = text_of_bits(randbits(NONCE_BITS)).encode()
    password = _new_password(options.user, options.password_file)
    try:
        line = line_of(options.user, password, salt, options.iterations)
    except ValueError as error:
        raise StartError(str(error)) from None
    if options.file is None:
        write_line(line, sys.stdout)
        return OK
    path = Path(options.file)
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        OsDisk().write_atomic(path, with_line(text, line).encode())
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"cannot change {path}: {error}") from None
    write_line(f"Wrote user '{options.user}' to {path}.", sys.stdout)
    return OK


def _new_password(user: str, file: str | None) -> str:
    """From a file, the environment or a prompt. Raises StartError."""
    import os
    from getpass import getpass
    from pathlib import Path

    from mqd.file_modes import others_can_read, remedy_for
    from mqd.logs import write_line
    from mqd.options import StartError

    if file == "-":
        password = sys.stdin.readline().rstrip("\r\n")
    elif file is not None:
        try:
            password = Path(file).read_text(encoding="utf-8").split("\n", 1)[0].rstrip("\r")
            if others_can_read(Path(file)):
                write_line(
                    f"mqd: warning: users other than the owner can read the password in '{file}': "
                    f"{remedy_for(Path(file))}",
                    sys.stderr,
                )
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise StartError(
                f"--password-file '{file}' cannot be read ({reason}); specify a readable file"
            ) from None
    elif _PASSWORD_VARIABLE in os.environ:
        password = os.environ[_PASSWORD_VARIABLE]
    elif sys.stdin.isatty():
        password = getpass(f"Password of user '{user}': ")
        if getpass("Repeat it: ") != password:
            raise StartError("the passwords differ: nothing was changed")
    else:
        raise StartError(
            f"no password for user '{user}': standard input is not a terminal; give it with "
            f"--password-file FILE, or in {_PASSWORD_VARIABLE}"
        )
    if not password:
        raise StartError(f"the password of user '{user}' is empty")
    return password


def _config_list(options: Namespace) -> int:
    from mqd import option_listing
    from mqd.logs import write_line

    write_line(option_listing.render(options.output), sys.stdout)
    return OK


if __name__ == "__main__":
    sys.exit(main())
