"""Apache Kafka's own command-line tools for access: kafka-acls.sh and kafka-configs.sh, which start
these classes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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


pytestmark = [
    pytest.mark.skipif(not have_tools(), reason="needs Java and `scripts/kafka.sh fetch`"),
    pytest.mark.timeout(8 * TOOL_SECONDS),
]


def tool(broker: Broker, kind: str, *arguments: str) -> str:
    """Run a tool. Returns its output."""
    done = subprocess.run(
        [str(SCRIPT), "tool", kind, "--bootstrap-server", broker.address, *arguments],
        capture_output=True,
        text=True,
        timeout=TOOL_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_acls_users_and_quotas(guarded: Broker, new_name: Callable[[], str]) -> None:
    name = new_name()
    principal = f"User:{name}"
    allow = ("--allow-principal", principal, "--consumer", "--topic", name, "--group", name)
    added = tool(guarded, ACLS, "--add", *allow)
    entry = f"(principal={principal}, host=*, operation=READ, permissionType=ALLOW)"
    assert added.count(entry) == 2
    with Wire(guarded.host, guarded.port) as wire:
        until(lambda: len(found(wire, **matching(name))) == 3, "three ACLs")
        tool(guarded, ACLS, "--remove", "--force", *allow)
        until(lambda: not found(wire, **matching(name)), "no ACL")

    of_user = ("--entity-type", "users", "--entity-name", name)
    for change in ("SCRAM-SHA-512=[iterations=8192,password=sesame]", "producer_byte_rate=1024"):
        tool(guarded, CONFIGS, "--alter", "--add-config", change, *of_user)
    described = tool(guarded, CONFIGS, "--describe", *of_user)
    assert "SCRAM-SHA-512=iterations=8192" in described
    assert "producer_byte_rate=1024.0" in described


def test_mqctl_creates_the_acls_of_the_same_options(
    guarded: Broker, new_name: Callable[[], str]
) -> None:
    name = new_name()
    principal = f"User:{name}"
    options = ["--producer", "--idempotent", "--consumer", "--topic", name, "--group", name]
    options += ["--transactional-id", name]
    of_principal = matching(None, principal_filter=principal)
    with Wire(guarded.host, guarded.port) as wire:
        tool(guarded, ACLS, "--add", "--allow-principal", principal, *options)
        until(lambda: len(found(wire, **of_principal)) == 8, "eight ACLs")
        by_tool = found(wire, **of_principal)
        filters = [matching(None, principal_filter=principal)]
        wire.ask("DeleteAcls", 3, filters=filters)
        until(lambda: not found(wire, **of_principal), "no ACL")
        command = [sys.executable, "-m", "mqctl", "acl", "create", "--allow", principal, *options]
        subprocess.run([*command, "-b", guarded.address], check=True, timeout=TOOL_SECONDS)
        until(lambda: found(wire, **of_principal) == by_tool, "the same ACLs")
