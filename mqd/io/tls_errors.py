"""Errors of TLS: what failed, why, and what to do, from the reasons that OpenSSL gives."""

from __future__ import annotations

import ssl

_ALERTS = {
    "CERTIFICATE_UNKNOWN": "it does not accept the certificate",
    "BAD_CERTIFICATE": "it does not accept the certificate",
    "UNKNOWN_CA": "it does not trust the CA that signed the certificate",
    "CERTIFICATE_EXPIRED": "the certificate is expired",
    "CERTIFICATE_REVOKED": "the certificate is revoked",
    "HANDSHAKE_FAILURE": "there is no common cipher suite or protocol version",
    "PROTOCOL_VERSION": "there is no common protocol version",
    "CERTIFICATE_REQUIRED": "it requires a certificate",
}
_REMEDIES = {
    "UNKNOWN_CA": "give the client the certificate of the CA",
    "CERTIFICATE_EXPIRED": "renew the certificate of this node (`mqctl cert renew`), or check the "
    "client's clock",
    "CERTIFICATE_REVOKED": "issue a new certificate for this node (`mqctl cert init`)",
    "HANDSHAKE_FAILURE": "compare ssl.enabled.protocols and ssl.cipher.suites",
    "PROTOCOL_VERSION": "compare ssl.enabled.protocols",
}
"""What to do after an alert of a client."""
_REMEDY = "check ssl.truststore.* and the address in the client"
_PEER_REMEDIES = {
    **_REMEDIES,
    "UNKNOWN_CA": "compare `listener.name.peer.ssl.truststore.*` of both nodes",
    "CERTIFICATE_EXPIRED": "renew the certificate of this node (`mqctl cert renew`), or check the "
    "clock of the other node",
}
"""What to do after an alert of another node."""
_PEER_REMEDY = "compare `listener.name.peer.ssl.truststore.*` of both nodes"
NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"})
_NOTHING_IN_COMMON = frozenset(
    {"NO_SHARED_CIPHER", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE", "NO_CIPHERS_AVAILABLE"}
)


class TlsFailed(OSError):
    """A TLS connection failed: the text has what happened, why, and what to do."""

    def __init__(
        self,
        message: str,
        remedy: str = "",
        *,
        is_plaintext: bool = False,
        is_closed: bool = False,
    ) -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message)
        self.message = message
        self.remedy = remedy
        self.is_plaintext = is_plaintext
        """Whether the other side probably has no TLS."""
        self.is_closed = is_closed
        """Whether the other side closed the connection, and gave no reason."""


def _alert_name(error: ssl.SSLError) -> str:
    """The name of an alert of the other side, UNKNOWN_CA. Empty if the error is none."""
    return (error.reason or "").partition("_ALERT_")[2]


def _alert(error: ssl.SSLError) -> str | None:
    """What an alert of the other side means. None if the error is none."""
    name = _alert_name(error)
    return _ALERTS.get(name, name.lower().replace("_", " ")) if name else None


def server_reason(error: ssl.SSLError, *, is_of_nodes: bool = False) -> tuple[str, str]:
    """(What happened and why, what to do) on the server. `is_of_nodes`: on the peer listener, where
    the client is another node.
    """
    if is_of_nodes:
        return _peer_reason(error)
    alert = _alert(error)
    if alert is not None:
        return (
            f"the client ended the TLS handshake: {alert}",
            _REMEDIES.get(_alert_name(error), _REMEDY),
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of the client is not accepted: {error.verify_message}",
            "it must be signed by a certificate in ssl.truststore.*, and be valid now",
        )
    if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return (
            "the client has no certificate, and ssl.client.auth=required",
            "set ssl.keystore.* in the client",
        )
    if error.reason in _NOTHING_IN_COMMON:
        return (
            "the client has no common TLS version or cipher suite with this listener",
            "compare ssl.enabled.protocols and ssl.cipher.suites",
        )
    return f"the TLS connection failed: {error.reason or error}", ""


def _peer_reason(error: ssl.SSLError) -> tuple[str, str]:
    alert = _alert(error)
    if alert is not None:
        return (
            f"another node ended the TLS handshake: {alert}",
            _PEER_REMEDIES.get(_alert_name(error), _PEER_REMEDY),
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of another node is not accepted: {error.verify_message}",
            "compare `listener.name.peer.ssl.truststore.*` of both nodes, or renew its certificate "
            "(`mqctl cert renew`)",
        )
    if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return (
            "another node has no certificate, or the client is no node",
            "set `listener.name.peer.ssl.keystore.*` there",
        )
    if error.reason in _NOTHING_IN_COMMON:
        return (
            "another node has no common TLS version or cipher suite with this node",
            "compare ssl.enabled.protocols and ssl.cipher.suites of both nodes",
        )
    return f"the TLS connection of another node failed: {error.reason or error}", ""


def client_reason(error: ssl.SSLError, address: str) -> tuple[str, str]:
    """(What happened and why, what to do) on the client."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message
        if error.verify_code == 10:  # X509_V_ERR_CERT_HAS_EXPIRED
            return (
                f"the certificate of {address} is expired",
                "renew it on the broker (`mqctl cert renew`), and check the clock of this machine",
            )
        if error.verify_code in (62, 63, 64) or "mismatch" in why.lower():
            return (
                f"the certificate of {address} is for another host: {why.rstrip('.')}",
                "connect to a name of the certificate, add this name to it, or set "
                "ssl.endpoint.identification.algorithm= (empty) if the network is safe",
            )
        if error.verify_code == 23:  # X509_V_ERR_CERT_REVOKED
            return f"the certificate of {address} is revoked", "issue a new one for the broker"
        if error.verify_code == 3:  # X509_V_ERR_UNABLE_TO_GET_CRL
            return (
                f"ssl.crl.location has no list of the CA that signed the certificate of {address}",
                "add the certificate revocation list of that CA",
            )
        return (
            f"the certificate of {address} is not trusted: {why}",
            "set the truststore (ssl.truststore.location) to the certificate of the CA "
            "that signed it",
        )
    alert = _alert(error)
    if alert is not None:
        return (
            f"{address} ended the TLS handshake: {alert}",
            "check the client's certificate and protocols (ssl.keystore.*, "
            "ssl.enabled.protocols); the log of the broker has the reason",
        )
    if error.reason in NO_TLS:
        return (
            f"{address} does not speak TLS",
            "set security.protocol=PLAINTEXT, or connect to a TLS listener",
        )
    if error.reason in _NOTHING_IN_COMMON:
        return (
            f"{address} has no common TLS version or cipher suite with this client",
            "compare ssl.enabled.protocols and ssl.cipher.suites",
        )
    return f"the TLS connection to {address} failed: {error.reason or error}", ""
