from __future__ import annotations

import ssl
from datetime import UTC, datetime

import pytest

from mqd.io.certificates import Authority, issue_node
from mqd.security.node_certificate import refusal_of_node

NOW = datetime.now(UTC)
AUTHORITY = Authority.create("test", now=NOW)


def der(pem: bytes) -> bytes:
    text = pem.decode()
    return ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERT") :])


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        (der(issue_node(AUTHORITY, "c", 1, ["h"], now=NOW)), None),
        (der(issue_node(AUTHORITY, "c", 2, ["h"], now=NOW)), "is for mqd://c/nodes/2, expected"),
        (der(issue_node(AUTHORITY, "other", 1, ["h"], now=NOW)), "is for mqd://other/nodes/1"),
        (der(AUTHORITY.issue("x", hosts=["H"], now=NOW)), None),
        (der(AUTHORITY.issue("x", hosts=["other"], now=NOW)), "neither node 1 nor its host h"),
        (der(AUTHORITY.issue("x", now=NOW)), "neither node 1 nor its host h"),
        (None, "has no certificate"),
        (b"\x30\x01", "is invalid"),
    ],
)
def test_a_certificate_names_the_cluster_and_the_node_or_its_host(
    certificate: bytes | None, words: str | None
) -> None:
    refusal = refusal_of_node(certificate, "c", 1, ["h"])
    assert refusal is None if words is None else words in str(refusal)
