"""Whether a certificate is that of a node of this cluster, for mutual TLS between nodes. A core.

A certificate of `mqctl cert init` names the cluster and the node in a URI, `mqd://CLUSTER/nodes/1`.
One of another CA may name the host of the node instead, as the peers file has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from mqd.security.distinguished_name import alternative_names

_URI_START = "uri:mqd://"


def node_uri(cluster_id: str, node_id: int) -> str:
    """The name of a node in its certificate."""
    return f"mqd://{cluster_id}/nodes/{node_id}"


def refusal_of_node(
    certificate: bytes | None, cluster_id: str, node_id: int, hosts: Iterable[str]
) -> str | None:
    """Why this certificate (DER) is not that of the node. None: it is. `hosts`: those of the node
    in the peers file.
    """
    if certificate is None:
        return f"node {node_id} has no certificate"
    try:
        names = alternative_names(certificate)
    except ValueError as error:
        return f"the certificate of node {node_id} is invalid: {error}"
    of_nodes = sorted(name for name in names if name.startswith(_URI_START))
    if of_nodes:
        expected = node_uri(cluster_id, node_id)
        if f"uri:{expected}" in names:
            return None
        found = ", ".join(name.removeprefix("uri:") for name in of_nodes)
        return f"the certificate is for {found}, expected {expected}"
    wanted = {_name_of(host) for host in hosts}
    if wanted & names:
        return None
    return f"the certificate names neither node {node_id} nor its host {', '.join(hosts)}"


def _name_of(host: str) -> str:
    try:
        return f"ip:{ip_address(host).packed.hex()}"
    except ValueError:
        return f"dns:{host.lower()}"
