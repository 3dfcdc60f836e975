"""Apache Kafka's own command-line tools: kafka-acls.sh, kafka-configs.sh and
kafka-client-metrics.sh, which start these classes.
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
CLIENT_METRICS = "org.apache.kafka.tools.ClientMetricsCommand"
TOOL_SECONDS = 120
"""Each run starts a Java machine: seconds of processor time."""
pytestmark = pytest.mark.timeout(15 * TOOL_SECONDS)


def have_tools() -> bool:
    """Whether Java and the jars are here: the test downloads nothing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    home = Path(os.environ.get("KAFKA_HOME", cache / "mqd" / "kafka-4.3.1"))
    return shutil.which("java") is not None and (home / "libs").is_dir()


needs_tools = pytest.mark.skipif(not have_tools(), reason="needs Java and `scripts/kafka.sh fetch`")


def run_tool(broker: Broker, kind: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), "tool", kind, "--bootstrap-server", broker.address, *arguments],
        capture_output=True,
        text=True,
        timeout=TOOL_SECONDS,
        check=False,
    )


@needs_tools
def test_acls_users_and_quotas(guarded: Broker, new_name: Callable[[], str]) -> None:
    name = new_name()

    def tool(kind: str, *arguments: str) -> str:
        done = run_tool(guarded, kind, *arguments)
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


@needs_tools
def test_client_metrics(broker: Broker, wire: Wire, new_name: Callable[[], str]) -> None:
    name = new_name()

    def tool(*arguments: str) -> str:
        done = run_tool(broker, CLIENT_METRICS, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pushed = ("--metrics", "a.,b.", "--interval", "5000", "--match", "client_id=a.*")
    altered = f"Altered client metrics config for {name}."
    assert tool("--alter", "--name", name, *pushed).strip() == altered
    until(lambda: name in subscriptions(wire), "the subscription")
    configs = ("interval.ms=5000", "match=client_id=a.*", "metrics=a.,b.")
    head = f"Client metrics configs for {name} are:"
    shown = "\n".join((head, *(f"  {config}" for config in configs)))
    assert shown in tool("--describe", "--name", name)
    assert shown in tool("--describe")
    assert name in tool("--list").split()

    made = tool("--alter", "--generate-name", "--metrics", "")
    generated = made.removeprefix("Altered client metrics config for ").strip().rstrip(".")
    assert len(generated) == 22, "a UUID in base64"
    for wrong, message in (
        (("--interval", "5"), "Invalid value 5 for interval.ms"),
        (("--match", "client_id=["), "Illegal client matching pattern: client_id=["),
    ):
        refused = run_tool(broker, CLIENT_METRICS, "--alter", "--name", name, *wrong)
        assert refused.returncode == 1
        assert message in refused.stdout + refused.stderr

    for one in (name, generated):
        assert (
            tool("--delete", "--name", one).strip() == f"Deleted client metrics config for {one}."
        )
    until(lambda: name not in subscriptions(wire), "the end of the subscription")
    missing = f"The client metric resource {name} doesn't exist and doesn't have dynamic config."
    assert tool("--describe", "--name", name).strip() == missing


def subscriptions(wire: Wire) -> list[str]:
    rows = wire.ask("ListConfigResources", 0).config_resources
    return [row.resource_name for row in rows]
