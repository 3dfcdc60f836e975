"""The commands of `mqd`, with their options and help pages.

`parser().parse_args(...)` returns the options of a command; `run` is its name, by which
`__main__.py` finds its function. Only argparse is imported: usage errors and --help appear without
delay.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING without importing typing
if TYPE_CHECKING:
    from argparse import Action, ArgumentParser, Namespace, _SubParsersAction
    from collections.abc import Sequence
    from typing import Any

NODES_MAX = 9
"""The largest cluster of `mqd dev`."""
PASSWORD_VARIABLE = "MQD_USER_PASSWORD"


def parser() -> ArgumentParser:
    """The parser of all commands."""
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

    made: ArgumentParser = Suggesting(
        prog="mqd", description="A distributed message queue that speaks the Apache Kafka protocol."
    )
    made.add_argument("--version", action="version", version=f"mqd {__version__}")
    commands = made.add_subparsers(metavar="command", required=True)
    _add_start(commands)
    _add_dev(commands)
    _add_config(commands)
    _add_storage(commands)
    _add_force_voters(commands)
    return made


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
    command.set_defaults(run="start")


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
    command.set_defaults(run="dev")


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
    listing.set_defaults(run="config list")


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
    command.set_defaults(run="storage add-user")
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
    command.set_defaults(run="storage hash-password")


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
        f"{PASSWORD_VARIABLE}; default: a prompt]",
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
    command.set_defaults(run="force-voters")


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
