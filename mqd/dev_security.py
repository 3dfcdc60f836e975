"""Prepares the cluster of `mqd dev --secure`: certificates, a first user, and a configuration for
each node.

In the folder `secure` of the data directory:

    ca.pem, ca.key      a certificate authority (CA, io/certificates.py)
    node-N.pem          the certificate of a node
    node-N.properties   its configuration: SASL_SSL for clients, TLS between nodes, ACLs
    admin.properties    what a client needs to log in as the super user `admin` (mode 0600)
    admin.password      the same password alone, for other clients (mode 0600)
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from secrets import randbits, token_urlsafe

from mqd.io.certificates import (
    CA_CERTIFICATE,
    CA_KEY,
    Authority,
    hosts_of,
    issue_node,
    node_file,
    write_private,
)
from mqd.io.disk import OsDisk
from mqd.node.first_users import add_first_user
from mqd.options import StartError
from mqd.peers import PeerNode, Peers
from mqd.security.scram import BY_NAME, ITERATIONS_MIN, NONCE_BITS, text_of_bits

FOLDER = "secure"
ADMIN = "admin"
MECHANISM = "SCRAM-SHA-256"
_ITERATIONS = ITERATIONS_MIN
"""As those of unknown users: a login does not show which users exist."""


def configuration(data_directory: Path, node_id: int) -> Path:
    return data_directory / FOLDER / f"node-{node_id}.properties"


def admin_properties(data_directory: Path) -> Path:
    return data_directory / FOLDER / "admin.properties"


def admin_password(data_directory: Path) -> Path:
    return data_directory / FOLDER / "admin.password"


def prepare(data_directory: Path, peers: Peers) -> None:
    """Create what is missing, and write the configurations. Raises StartError."""
    folder = data_directory / FOLDER
    password_file = admin_password(data_directory)
    try:
        if not password_file.exists():
            password = token_urlsafe(24)
            _add_admin(data_directory, peers, password)
            folder.mkdir(mode=0o700, exist_ok=True)
            write_private(password_file, password.encode() + b"\n", replace=True)
        _write_certificates(folder, peers)
        for node in peers.nodes.values():
            text = _node_properties(folder, node)
            write_private(configuration(data_directory, node.id), text.encode(), replace=True)
        text = _client_properties(folder, password_file.read_text(encoding="utf-8").strip())
        write_private(admin_properties(data_directory), text.encode(), replace=True)
    except (OSError, ValueError) as error:
        raise StartError(
            f"{folder}: cannot prepare the secure cluster ({error}); choose another directory "
            "with --data"
        ) from None


def _add_admin(data_directory: Path, peers: Peers, password: str) -> None:
    """Raises StartError if the cluster exists already, without security."""
    salt = text_of_bits(
        randbits(NONCE_BITS)
    ).encode()  # the same user on each node: whichever registers first adds it
    for node_id in peers.nodes:
        add_first_user(
            OsDisk(),
            data_directory / f"node-{node_id}",
            ADMIN,
            password,
            mechanism=BY_NAME[MECHANISM],
            iterations=_ITERATIONS,
            salt=salt,
        )


def _write_certificates(folder: Path, peers: Peers) -> None:
    now = datetime.now(UTC)
    if (folder / CA_KEY).exists():
        authority = Authority.load(folder)
    else:
        authority = Authority.create(f"mqd dev {peers.cluster_id}", now=now)
        authority.save(folder)
    for node in peers.nodes.values():
        path = folder / node_file(node.id)
        if not path.exists():
            pem = issue_node(authority, peers.cluster_id, node.id, hosts_of(node), now=now)
            write_private(path, pem, replace=False)


def _node_properties(folder: Path, node: PeerNode) -> str:
    folder = folder.resolve()
    address = f"{node.host}:{node.port}"
    return _properties(
        {
            "listeners": f"SASL_SSL://{address}",
            "advertised.listeners": f"SASL_SSL://{node.advertised_host}:{node.advertised_port}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / node_file(node.id)),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / CA_CERTIFICATE),
            "sasl.enabled.mechanisms": MECHANISM,
            "peer.ssl": "required",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN}",
        }
    )


def _client_properties(folder: Path, password: str) -> str:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return _properties(
        {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder.resolve() / CA_CERTIFICATE),
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": f'{module} required username="{ADMIN}" password="{password}";',
        }
    )


def _properties(values: dict[str, str]) -> str:
    return "".join(
        f"{key}={value.replace(chr(92), chr(92) * 2)}\n" for key, value in values.items()
    )
