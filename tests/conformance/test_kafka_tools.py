"""Apache Kafka's own command-line tools for access: kafka-acls.sh and kafka-configs.sh, which start
these classes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Broker
from .test_wire_security import found, matching
from .wire import Wire, until

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "kafka.sh"
ACLS, CONFIGS = "org.apache.kafka.tools.AclCommand", "kafka.admin.ConfigCommand"
TOOL_SECONDS = 60


def have_tools() -> bool:
    """Whether Java and the jars are here: the test downloads nothing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    home = Path(os.environ.get("KAFKA_HOME", cache / "mqd" / "kafka-4.3.1"))
    return shutil.which("java") is not None and (home / "libs").is_dir()


@pytest.mark.skipif(not have_tools(), reason="needs Java and `scripts/kafka.sh fetch`")
def test_acls_users_and_quotas(guarded: Broker, new_name: Callable[[], str]) -> None:
    name = new_name()

    def tool(kind: str, *arguments: str) -> str:
        done = subprocess.run(
            [str(SCRIPT), "tool", kind, "--bootstrap-server", guarded.address, *arguments],
            capture_output=True,
            text=True,
            timeout=TOOL_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    principal = f"User:{name}"
    allow = ("--allow-principal", principal, "--consumer", "--topic", name, "--group", name)
    added = tool(ACLS, "--add", *allow)
    entry = f"(principal={principal}, host=*, operation=READ, permissionType=ALLOW)"
    assert added.count(entry) == 2
    with Wire(guarded.host, guarded.port) as wire:
        until(lambda: len(found(wire, **matching(name))) == 3, "three ACLs")
        tool(ACLS, "--remove", "--force", *allow)
        until(lambda: not found(wire, **matching(name)), "no ACL")

    of_user = ("--entity-type", "users", "--entity-name", name)
    for change in ("SCRAM-SHA-512=[iterations=8192,password=sesame]", "producer_byte_rate=1024"):
        tool(CONFIGS, "--alter", "--add-config", change, *of_user)
    described = tool(CONFIGS, "--describe", *of_user)
    assert "SCRAM-SHA-512=iterations=8192" in described
    assert "producer_byte_rate=1024.0" in described
