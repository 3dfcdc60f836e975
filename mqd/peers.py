"""The peers file: the nodes of the cluster, their addresses, and which of them are voters. Every
node has the same file.

    cluster_id = "Nk018hRAQFytWskYqtQduw"

    [[node]]
    id = 1
    host = "10.0.0.1"
    port = 9092          # clients
    peer_port = 9192     # the other nodes

Optional for the file: cluster_secret = "...", with which nodes authenticate to each other (16 to
1024 random characters). Or cluster_secret_file = "name", a file with only the secret, relative to
the peers file. A warning is logged if users other than the owner can read the secret.

Optional for a node: rack, voter (default: true for the first five), advertised_host and
advertised_port (the address for clients). Errors name the file, the line or key, and the remedy.
tomllib does not report lines of keys, so `_Lines` finds them in the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mqd.file_modes import others_can_read, remedy_for
from mqd.options import ConfigError

VOTERS_BY_DEFAULT = 5
"""This many nodes are voters by default: a larger quorum is slower, and hardly safer."""

_FILE_KEYS = ("cluster_id", "cluster_secret", "cluster_secret_file", "node")
_SECRET_LENGTHS = range(16, 1025)
"""A shorter secret could be guessed by an attacker that poses as a node."""
_SECRET_REMEDY = "create one with `openssl rand -base64 32`"
_NODE_KEYS = (
    "id",
    "host",
    "port",
    "peer_port",
    "rack",
    "voter",
    "advertised_host",
    "advertised_port",
)
_NODE_KEYS_NEEDED = ("id", "host", "port", "peer_port")
_NODE_ID_MAX = 2**31 - 1
_WILDCARDS = ("0.0.0.0", "::", "[::]")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names of the same host: they share their ports."""
_CLUSTER_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class PeerNode:
    """One node of the cluster. `advertised_*` default to `host` and `port`."""

    id: int
    host: str
    port: int
    peer_port: int
    rack: str | None
    voter: bool
    advertised_host: str
    advertised_port: int


@dataclass(frozen=True, slots=True)
class Peers:
    """The contents of a peers file. `nodes` is keyed by id, in the order of the file."""

    cluster_id: str
    nodes: dict[int, PeerNode]
    path: Path
    secret: bytes | None = field(default=None, repr=False)
    """The cluster secret, if there is one. It must never be logged."""
    secret_path: Path | None = field(default=None, compare=False)
    """The file that contains the secret: the peers file, or that of cluster_secret_file."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """Warnings about the files, one line each."""

    @property
    def voters(self) -> dict[int, PeerNode]:
        return {node_id: node for node_id, node in self.nodes.items() if node.voter}

    def require_secret(self, node_id: int) -> None:
        """Raise ConfigError if other machines can reach this node's peer port, and there is no
        cluster secret.
        """
        node = self.require(node_id)
        if self.secret is None and not is_loopback(node.host):
            raise ConfigError(
                f"{self.path}: node {node_id} listens for other nodes on "
                f"{node.host}:{node.peer_port} without a cluster secret:"
                " any machine that can reach it could act as a node. Set "
                "cluster_secret_file in the peers file of every"
                " node (openssl rand -base64 32), or add --insecure-peers"
            )

    def require(self, node_id: int) -> PeerNode:
        """The node with this id. Raises ConfigError, which lists the existing ids."""
        if node_id not in self.nodes:
            known = ", ".join(map(str, self.nodes))
            raise ConfigError(
                f"{self.path}: node {node_id} does not exist; existing nodes: {known}; choose "
                "one with --node, or add a [[node]] with this id"
            )
        return self.nodes[node_id]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener at `host`. False for names other than
    localhost, which may have any address.
    """
    import ipaddress

    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_peers(path: Path | str) -> Peers:
    """Read and check a peers file. Raises ConfigError."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file; write one (see docs/OPERATIONS.md), or run `mqd dev`, which "
            "writes it"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); specify a readable file with --peers"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8"
        ) from None
    peers = parse_peers(text, path)
    return (
        replace(peers, warnings=_warnings(peers.secret_path))
        if peers.secret_path is not None
        else peers
    )


def _warnings(secret_path: Path) -> tuple[str, ...]:
    if not others_can_read(secret_path):
        return ()
    remedy = f"{remedy_for(secret_path)}, and make the user that runs mqd its owner"
    return (
        f"users other than the owner can read the cluster secret in {secret_path}, and act as a "
        f"node of this cluster: {remedy}",
    )


def parse_peers(text: str, path: Path) -> Peers:
    """Parse and check a peers file; `path` is for messages. Raises ConfigError."""
    import tomllib

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    return _Parser(path, _Lines(text)).peers(document)


def format_peers(
    cluster_id: str, nodes: Mapping[int, PeerNode], *, secret_file: str | None = None
) -> str:
    """The text of a peers file, from which `parse_peers` returns the same values.

    `secret_file`: the value of cluster_secret_file.
    """
    from json import dumps  # JSON strings are also valid in TOML

    lines = [f'cluster_id = "{cluster_id}"']
    if secret_file is not None:
        lines.append(f"cluster_secret_file = {dumps(secret_file, ensure_ascii=False)}")
    for node in nodes.values():
        lines += [
            "",
            "[[node]]",
            f"id = {node.id}",
            f'host = "{node.host}"',
            f"port = {node.port}",
            f"peer_port = {node.peer_port}",
        ]
        if node.rack is not None:
            lines.append(f"rack = {dumps(node.rack, ensure_ascii=False)}")
        lines.append(f"voter = {'true' if node.voter else 'false'}")
        if node.advertised_host != node.host:
            lines.append(f'advertised_host = "{node.advertised_host}"')
        if node.advertised_port != node.port:
            lines.append(f"advertised_port = {node.advertised_port}")
    return "\n".join(lines) + "\n"


def _machine(host: str) -> str:
    """A name of a host that is equal for equal hosts: lower case, and one name for loopback."""
    host = host.lower()
    return _LOOPBACK[0] if host in _LOOPBACK else host


class _Lines:
    """The line numbers of `[[node]]` headers and of the keys below each; none for inline tables."""

    _HEADER = re.compile(r"\s*\[\[\s*node\s*\]\]")
    _KEY = re.compile(r"""\s*["']?([A-Za-z0-9_-]+)["']?\s*=""")

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[int | None, str | None], int] = {}
        node: int | None = None
        for number, line in enumerate(text.splitlines(), start=1):
            if self._HEADER.match(line):
                node = 0 if node is None else node + 1
                self._lines[node, None] = number
            elif key := self._KEY.match(line):
                self._lines.setdefault((node, key[1]), number)

    def find(self, node: int | None, key: str | None) -> int | None:
        """The line of a key in the `node`-th table (None: on the top level); else the line of the
        table; else None.
        """
        return self._lines.get((node, key)) or self._lines.get((node, None))


class _Parser:
    """Turns a parsed document into Peers. Raises ConfigError for its first mistake."""

    def __init__(self, path: Path, lines: _Lines) -> None:
        self._path = path
        self._lines = lines

    def peers(self, document: dict[str, Any]) -> Peers:
        for key in document:
            if key not in _FILE_KEYS:
                raise self._error(
                    None, key, f"unknown key {key}", self._remedy_for_key(key, _FILE_KEYS)
                )
        cluster_id = document.get("cluster_id")
        if cluster_id is None:
            raise self._error(
                None, None, "cluster_id is missing", 'add a line cluster_id = "..." at the top'
            )
        if not isinstance(cluster_id, str) or not _CLUSTER_ID.fullmatch(cluster_id):
            problem = f"invalid cluster_id {cluster_id!r}"
            raise self._error(
                None, "cluster_id", problem, "use 1 to 64 letters, digits, '.', '_' and '-'"
            )
        tables = document.get("node")
        if (
            not isinstance(tables, list)
            or not tables
            or not all(isinstance(table, dict) for table in tables)
        ):
            raise self._error(
                None,
                "node",
                "the file has no nodes",
                "add a [[node]] table for each node of the cluster",
            )
        nodes: dict[int, PeerNode] = {}
        index_by_id: dict[int, int] = {}
        for index, table in enumerate(tables):
            node = self._node(index, table)
            if node.id in nodes:
                problem = (
                    f"id {node.id} is already the id of the node "
                    f"{self._named(index_by_id[node.id])}"
                )
                raise self._error(index, "id", problem, "use a different id for each node")
            nodes[node.id] = node
            index_by_id[node.id] = index
        self._check_addresses(nodes, index_by_id)
        if not any(node.voter for node in nodes.values()):
            raise self._error(
                None, None, "the cluster has no voters", "set voter = true for 1, 3 or 5 nodes"
            )
        return Peers(cluster_id, nodes, self._path, *self._secret(document))

    def _secret(self, document: dict[str, Any]) -> tuple[bytes | None, Path | None]:
        """The cluster secret, and the file that contains it."""
        if "cluster_secret" in document and "cluster_secret_file" in document:
            raise self._error(
                None,
                "cluster_secret_file",
                "cluster_secret and cluster_secret_file are both set",
                "remove one of them",
            )
        if "cluster_secret" in document:
            secret = document["cluster_secret"]
            if not isinstance(secret, str) or len(secret) not in _SECRET_LENGTHS:
                raise self._error(
                    None,
                    "cluster_secret",
                    "cluster_secret is not a string of 16 to 1024 characters",
                    _SECRET_REMEDY,
                )
            return secret.encode(), self._path
        if "cluster_secret_file" not in document:
            return None, None
        name = document["cluster_secret_file"]
        if not isinstance(name, str) or not name:
            raise self._error(
                None,
                "cluster_secret_file",
                f"cluster_secret_file {name!r} is not a file name",
                "write it in quotes",
            )
        path = self._path.parent / name
        try:
            with path.open("rb") as file:
                data = file.read(4 * _SECRET_LENGTHS.stop + 1)
            secret = data.decode().strip()
        except OSError as error:
            problem = f"the cluster secret in {path} cannot be read ({error.strerror})"
            remedy = "create the file with the same content on every node, readable by this user"
            raise self._error(None, "cluster_secret_file", problem, remedy) from None
        except UnicodeDecodeError:
            raise self._error(
                None, "cluster_secret_file", f"{path} is not UTF-8 text", _SECRET_REMEDY
            ) from None
        if len(secret) not in _SECRET_LENGTHS:
            least, most = _SECRET_LENGTHS.start, _SECRET_LENGTHS.stop - 1
            count = f"more than {most}" if len(secret) > most else str(len(secret))
            problem = (
                f"the cluster secret in '{path}' has {count} characters, {least} to {most} are "
                "needed"
            )
            raise self._error(None, "cluster_secret_file", problem, _SECRET_REMEDY)
        return secret.encode(), path

    def _node(self, index: int, table: dict[str, Any]) -> PeerNode:
        for key in table:
            if key not in _NODE_KEYS:
                raise self._error(
                    index, key, f"unknown key {key}", self._remedy_for_key(key, _NODE_KEYS)
                )
        for key in _NODE_KEYS_NEEDED:
            if key not in table:
                raise self._error(
                    index,
                    None,
                    f"the node {self._named(index)} has no {key}",
                    f"add {key} = ... to the node",
                )
        node_id = self._integer(index, table, "id", 0, _NODE_ID_MAX)
        host, port = self._host(index, table, "host"), self._integer(index, table, "port", 1, 65535)
        rack = table.get("rack")
        if rack is not None and not (isinstance(rack, str) and rack):
            raise self._error(
                index,
                "rack",
                f"rack {rack!r} is not a name",
                'write it in quotes, as rack = "a", or remove it',
            )
        voter = table.get("voter", index < VOTERS_BY_DEFAULT)
        if not isinstance(voter, bool):
            raise self._error(
                index,
                "voter",
                f"voter {voter!r} is not true or false",
                "write voter = true or voter = false",
            )
        node = PeerNode(
            id=node_id,
            host=host,
            port=port,
            peer_port=self._integer(index, table, "peer_port", 1, 65535),
            rack=rack,
            voter=voter,
            advertised_host=self._host(index, table, "advertised_host")
            if "advertised_host" in table
            else host,
            advertised_port=self._integer(index, table, "advertised_port", 1, 65535)
            if "advertised_port" in table
            else port,
        )
        if node.advertised_host in _WILDCARDS:
            key = "advertised_host" if "advertised_host" in table else "host"
            problem = f"clients cannot connect to {node.advertised_host}"
            raise self._error(
                index,
                key,
                problem,
                "set advertised_host to a name or address that clients can reach",
            )
        return node

    def _check_addresses(
        self, nodes: Mapping[int, PeerNode], index_by_id: Mapping[int, int]
    ) -> None:
        listening: dict[tuple[str, int], str] = {}
        advertised: dict[tuple[str, int], int] = {}
        for node in nodes.values():
            for key, port in (("port", node.port), ("peer_port", node.peer_port)):
                user = listening.setdefault((_machine(node.host), port), f"{key} of node {node.id}")
                if user != f"{key} of node {node.id}":
                    problem = f"{node.host}:{port} is already the {user}"
                    raise self._error(
                        index_by_id[node.id],
                        key,
                        problem,
                        "use a different address for each listener",
                    )
            advertising_node = advertised.setdefault(
                (_machine(node.advertised_host), node.advertised_port), node.id
            )
            if advertising_node != node.id:
                problem = (
                    f"{node.advertised_host}:{node.advertised_port} is already the "
                    f"advertised address of node {advertising_node}"
                )
                raise self._error(
                    index_by_id[node.id],
                    "advertised_port",
                    problem,
                    "advertise a different address for each node",
                )

    def _host(self, index: int, table: dict[str, Any], key: str) -> str:
        host = table[key]
        if (
            not isinstance(host, str)
            or not host
            or any(character.isspace() or character == "/" for character in host)
        ):
            problem = f"{key} {host!r} is not a host name or an IP address"
            raise self._error(index, key, problem, f'write {key} = "name", without scheme or port')
        if host.startswith("[") or (host.count(":") == 1):
            problem = f"{key} {host!r} has a port or brackets"
            raise self._error(
                index,
                key,
                problem,
                "set the port with its own key, and write IPv6 addresses without brackets",
            )
        return host

    def _integer(self, index: int, table: dict[str, Any], key: str, least: int, most: int) -> int:
        value = table[key]
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._error(
                index,
                key,
                f"{key} {value!r} is not a whole number",
                f"use a number from {least} to {most}",
            )
        if not least <= value <= most:
            raise self._error(
                index, key, f"{key} {value} is out of range", f"use a number from {least} to {most}"
            )
        return value

    def _named(self, index: int) -> str:
        line = self._lines.find(index, None)
        return f"number {index + 1} in the file" if line is None else f"of line {line}"

    def _remedy_for_key(self, key: str, known: tuple[str, ...]) -> str:
        import difflib

        close = difflib.get_close_matches(key, known, n=1)
        return f"did you mean {close[0]}?" if close else f"the keys are {', '.join(known)}"

    def _error(self, node: int | None, key: str | None, problem: str, remedy: str) -> ConfigError:
        line = self._lines.find(node, key)
        place = "" if line is None else f", line {line}"
        return ConfigError(f"{self._path}{place}: {problem}; {remedy}")
