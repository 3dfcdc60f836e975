"""Certificates for tests: made once for each process, and valid for 127.0.0.1 and localhost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from mqd.io.certificates import Authority

HOSTS = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class TlsTexts:
    """PEM texts. Those of `node` and `client` have a key and its certificate."""

    ca: str
    node: str
    client: str
    expired: str
    """A certificate of a node that expired yesterday."""
    elsewhere: str
    """A certificate of a node for another host."""
    other_ca: str


@cache
def texts() -> TlsTexts:
    now = datetime.now(UTC)
    authority, other = Authority.create("test", now=now), Authority.create("other", now=now)

    def issue(name: str, **options: object) -> str:
        given = {"organization": "cluster", "hosts": HOSTS, "now": now, **options}
        return authority.issue(name, **given).decode()  # type: ignore[arg-type]

    return TlsTexts(
        ca=authority.pem.decode(),
        node=issue("node-1"),
        client=issue("alice", hosts=()),
        expired=issue("node-1", days=-1),
        elsewhere=issue("node-1", hosts=("elsewhere.example",)),
        other_ca=other.pem.decode(),
    )


def write_texts(directory: Path) -> dict[str, Path]:
    """All of them as files `NAME.pem`, by name."""
    paths = {}
    for name in TlsTexts.__dataclass_fields__:
        paths[name] = directory / f"{name}.pem"
        paths[name].write_text(getattr(texts(), name))
    return paths
