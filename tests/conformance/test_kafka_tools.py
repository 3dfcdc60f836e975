"""Apache Kafka's own command-line tools: kafka-acls.sh, kafka-configs.sh and
kafka-client-metrics.sh, which start these classes.
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
CLIENT_METRICS = "org.apache.kafka.tools.ClientMetricsCommand"
MATCH = ("--resource-pattern-type", "match")
TOOL_SECONDS = 60


def have_tools() -> bool:
    """Whether Java and the jars are here: the test downloads nothing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    home = Path(os.environ.get("KAFKA_HOME", cache / "mqd" / "kafka-4.3.1"))
    return shutil.which("java") is not None and (home / "libs").is_dir()


pytestmark = [
    pytest.mark.skipif(not have_tools(), reason="needs Java and `scripts/kafka.sh fetch`"),
    pytest.mark.timeout(15 * TOOL_SECONDS),
]


def run_tool(broker: Broker, kind: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), "tool", kind, "--bootstrap-server", broker.address, *arguments],
        capture_output=True,
        text=True,
        timeout=TOOL_SECONDS,
        check=False,
    )


def tool(broker: Broker, kind: str, *arguments: str) -> str:
    """Run a tool. Returns its output."""
    done = run_tool(broker, kind, *arguments)
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
    for removed in ("SCRAM-SHA-512", "producer_byte_rate"):
        tool(guarded, CONFIGS, "--alter", "--delete-config", removed, *of_user)
    described = tool(guarded, CONFIGS, "--describe", *of_user)
    assert "SCRAM-SHA-512" not in described and "producer_byte_rate" not in described


@pytest.mark.slow
def test_acls_of_patterns(guarded: Broker, new_name: Callable[[], str]) -> None:
    """A denial, a prefix and a wildcard: added, listed and removed."""
    name = new_name()
    deny = ("--deny-principal", f"User:{name}", "--deny-host", "10.1.2.3", "--operation", "Write")
    prefix = ("--topic", name, "--resource-pattern-type", "prefixed")
    allow = ("--allow-principal", f"User:{name}", "--operation", "Describe", "--transactional-id")
    tool(guarded, ACLS, "--add", *deny, *prefix)
    tool(guarded, ACLS, "--add", *allow, "*")
    of_user = ("--list", "--principal", f"User:{name}")
    denial = f"(principal=User:{name}, host=10.1.2.3, operation=WRITE, permissionType=DENY)"
    allowance = f"(principal=User:{name}, host=*, operation=DESCRIBE, permissionType=ALLOW)"
    pattern = f"resourceType=TOPIC, name={name}, patternType=PREFIXED"
    everything = "resourceType=TRANSACTIONAL_ID, name=*, patternType=LITERAL"
    with Wire(guarded.host, guarded.port) as wire:
        of_principal = matching(None, principal_filter=f"User:{name}")
        until(lambda: len(found(wire, **of_principal)) == 2, "two ACLs")
        listed = tool(guarded, ACLS, *of_user)
        assert all(text in listed for text in (denial, pattern, allowance, everything)), listed
        of_topic = tool(guarded, ACLS, "--list", "--topic", f"{name}-1", *MATCH)
        assert denial in of_topic and allowance not in of_topic
        tool(guarded, ACLS, "--remove", "--force", *prefix)
        tool(guarded, ACLS, "--remove", "--force", *allow, "*")
        until(lambda: not found(wire, **of_principal), "no ACL")


@pytest.mark.slow
@pytest.mark.parametrize(
    "entity, config",
    [
        (("--user", "{name}", "--client", "{name}"), "consumer_byte_rate=2048.0"),
        (("--client-defaults",), "request_percentage=150.5"),
        (("--ip", "10.1.2.3"), "connection_creation_rate=7.0"),
    ],
)
def test_quotas(
    guarded: Broker, new_name: Callable[[], str], entity: tuple[str, ...], config: str
) -> None:
    name = new_name()
    of_entity = [text.format(name=name) for text in entity]

    def described() -> str:
        return tool(guarded, CONFIGS, "--describe", *of_entity)

    tool(guarded, CONFIGS, "--alter", "--add-config", config, *of_entity)
    assert config in described()
    tool(guarded, CONFIGS, "--alter", "--delete-config", config.partition("=")[0], *of_entity)
    assert config not in described()


@pytest.mark.slow
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


@pytest.mark.slow
def test_client_metrics(broker: Broker, wire: Wire, new_name: Callable[[], str]) -> None:
    name = new_name()

    def metrics(*arguments: str) -> str:
        return tool(broker, CLIENT_METRICS, *arguments)

    pushed = ("--metrics", "a.,b.", "--interval", "5000", "--match", "client_id=a.*")
    altered = f"Altered client metrics config for {name}."
    assert metrics("--alter", "--name", name, *pushed).strip() == altered
    until(lambda: name in subscriptions(wire), "the subscription")
    configs = ("interval.ms=5000", "match=client_id=a.*", "metrics=a.,b.")
    head = f"Client metrics configs for {name} are:"
    shown = "\n".join((head, *(f"  {config}" for config in configs)))
    assert shown in metrics("--describe", "--name", name)
    assert shown in metrics("--describe")
    assert name in metrics("--list").split()

    made = metrics("--alter", "--generate-name", "--metrics", "")
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
            metrics("--delete", "--name", one).strip()
            == f"Deleted client metrics config for {one}."
        )
    until(lambda: name not in subscriptions(wire), "the end of the subscription")
    missing = f"The client metric resource {name} doesn't exist and doesn't have dynamic config."
    assert metrics("--describe", "--name", name).strip() == missing


def subscriptions(wire: Wire) -> list[str]:
    rows = wire.ask("ListConfigResources", 0).config_resources
    return [row.resource_name for row in rows]
