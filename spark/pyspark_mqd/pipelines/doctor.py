"""mqd-spark doctor: check Java, versions, settings, brokers and topics, and name remedies.

This file observes, doctor_checks.py concludes. It starts no JVM, and it needs neither Java nor
pyspark: whatever is missing becomes a finding.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyspark_mqd.pipelines import java, report
from pyspark_mqd.pipelines.brokers import TIMEOUTS
from pyspark_mqd.pipelines.cli import OK as EXIT_OK, Settings, options, split_list
from pyspark_mqd.pipelines.doctor_checks import (
    FAILED,
    GUARANTEES,
    OK,
    Finding,
    Local,
    Node,
    Topic,
    broker_findings,
    config_findings,
    local_findings,
    topic_findings,
)

if TYPE_CHECKING:
    from mqd.client.admin import Admin
    from mqd.client.cluster import ClusterClient

PACKAGES = ("pyspark", "pyarrow", "numpy", "pandas")
WORKER_SECONDS = 30.0
_WORKER = (
    "import sys, importlib.util as u;"
    "print(*sys.version_info[:3], u.find_spec('pyspark_mqd') is not None)"
)


@click.command()
@options()
@click.option(
    "--guarantee",
    type=click.Choice(GUARANTEES),
    default="at-least-once",
    help="Delivery guarantee that must be available.",
)
@click.option(
    "--topics", metavar="NAME,..", default="", show_default=False,
    help="Topics to check  [default: none]",
)  # fmt: skip
@click.option(
    "--conf",
    metavar="KEY=VALUE",
    multiple=True,
    help="Setting of your session. Repeat it for more.",
)
@click.option("--local", is_flag=True, help="Check only this machine; connect to no broker.")
def command(settings: Settings, guarantee: str, topics: str, local: bool) -> None:
    """Check Java, versions, settings, brokers and topics. Exit code 1 if a check has failed.

    \b
    Example: mqd-spark doctor --bootstrap broker1:9092 --topics orders --guarantee exactly-once
             mqd-spark doctor --local
    """
    findings = [*local_findings(observe_local(settings.conf))]
    if not local:
        findings += observe_brokers(settings, guarantee, split_list(topics))
    show(settings.output, findings)
    failed = any(each.state == FAILED for each in findings)
    raise SystemExit(1 if failed else EXIT_OK)


def show(output: str, findings: Iterable[Finding]) -> None:
    """One line a finding, and its remedy below it."""
    rows = [each._asdict() for each in findings]
    if output == "json":
        healthy = not any(row["state"] == FAILED for row in rows)
        report.show_summary("json", {"healthy": healthy, "findings": rows})
        return
    width = max(len(row["check"]) for row in rows)
    for row in rows:
        click.echo(f"{row['state']:<8}{row['check']:<{width}}  {report.printable(row['what'])}")
        if row["remedy"] and row["state"] != OK:
            click.echo(f"{'':<8}{'':<{width}}    -> {report.printable(row['remedy'])}")


# -- this machine


def observe_local(given: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Local:
    """What this machine has. `given` are settings of Spark, which win over its files."""
    description, problem = "", ""
    try:
        runtime = java.find(dict(environ))
        shim = ", through a start script without its missing vector module" if runtime.shim else ""
        description = f"Java {runtime.version} from {runtime.origin}: '{runtime.executable}'{shim}"
    except java.JavaMissing as error:
        problem = str(error)
    worker = environ.get("PYSPARK_PYTHON", "")
    if worker in ("", sys.executable):
        worker = ""
    version, has_package = _worker(worker) if worker else (None, False)
    return Local(
        sys.version_info[:3],
        {name: _version(name) for name in PACKAGES},
        description,
        problem,
        {**defaults_of(environ), **given},
        worker,
        version,
        has_package,
    )


def _version(package: str) -> str | None:
    """The version of a package that can be imported; found without importing it."""
    if find_spec(package) is None:
        return None
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "0"


def _worker(python: str) -> tuple[tuple[int, ...] | None, bool]:
    """The version of the Python that tasks would run with, and whether it has the connector."""
    try:
        done = subprocess.run(
            [python, "-c", _WORKER], capture_output=True, text=True, timeout=WORKER_SECONDS
        )
        *numbers, found = done.stdout.split()
        return (
            (tuple(map(int, numbers)), found == "True") if done.returncode == 0 else (None, False)
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None, False


def defaults_of(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings in spark-defaults.conf, where Spark would find it."""
    folder = environ.get("SPARK_CONF_DIR")
    if not folder:
        home = environ.get("SPARK_HOME")
        if not home:
            spec = find_spec("pyspark")
            home = str(Path(spec.origin).parent) if spec is not None and spec.origin else ""
        folder = str(Path(home) / "conf")
    try:
        text = (Path(folder) / "spark-defaults.conf").read_text()
    except OSError:
        return {}
    return parse_defaults(text)


def parse_defaults(text: str) -> dict[str, str]:
    """A file of properties: `key value`, `key=value`; # begins a comment."""
    found = {}
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            name, _, value = line.replace("=", " ", 1).partition(" ")
            found[name] = value.strip()
    return found


# -- the brokers


def observe_brokers(settings: Settings, guarantee: str, topics: list[str]) -> list[Finding]:
    """Query the brokers, and judge their responses."""
    import trio

    from mqd.client.cluster import connect
    from mqd.client.errors import ClientError
    from pyspark_mqd.connection import connection_of
    from pyspark_mqd.errors import OptionError

    try:
        wanted = connection_of({**TIMEOUTS, **settings.source_options()})
    except OptionError as error:
        return [Finding("brokers", FAILED, str(error), "Correct the options given with --client.")]

    async def main() -> list[Finding]:
        async with connect(
            wanted.bootstrap,
            **wanted.client_options(),
        ) as client:
            return await _observe(client, wanted.bootstrap, guarantee, topics)

    try:
        return trio.run(main)
    except ClientError as error:
        return list(broker_findings(wanted.bootstrap, error.message, [], guarantee))


async def _observe(
    client: ClusterClient, bootstrap: str, guarantee: str, names: list[str]
) -> list[Finding]:
    import trio

    from mqd.client.admin import Admin

    admin = Admin(client, timeout_s=client.request_timeout_s)
    described = await admin.describe_cluster()
    nodes: list[Node] = []
    async with trio.open_nursery() as nursery:
        for broker in described.brokers:
            nursery.start_soon(_observe_node, client, broker.node_id, broker.address, nodes)
    findings = list(broker_findings(bootstrap, "", nodes, guarantee))
    if guarantee == "exactly-once":
        alive = next((node.node_id for node in nodes if not node.error), None)
        findings += config_findings(await _node_configs(admin, alive))
    findings += topic_findings([await _topic(admin, name) for name in names])
    return findings


async def _observe_node(
    client: ClusterClient, node_id: int, address: tuple[str, int], nodes: list[Node]
) -> None:
    from mqd.client.errors import ClientError

    shown = f"{address[0]}:{address[1]}"
    try:
        connection = await client.connection_to(address)
    except ClientError as error:
        nodes.append(Node(node_id, shown, error.message))
    else:
        nodes.append(Node(node_id, shown, "", connection.versions, connection.features))


async def _node_configs(admin: Admin, node_id: int | None) -> dict[str, str]:
    from mqd.client.descriptions import Resource, ResourceType

    resource = Resource(ResourceType.BROKER, str(node_id))
    return {} if node_id is None else await _configs(admin, resource)


async def _configs(admin: Admin, resource: Any) -> dict[str, str]:
    from mqd.client.errors import ClientError

    outcome = (await admin.describe_configs([resource]))[resource]
    if isinstance(outcome, ClientError):
        return {}
    return {each.name: each.value for each in outcome if each.value is not None}


async def _topic(admin: Admin, name: str) -> Topic:
    from mqd.client.descriptions import Resource, ResourceType
    from mqd.client.errors import ClientError

    try:
        outcome = (await admin.describe_topics([name]))[name]
    except ClientError as error:
        outcome = error
    if isinstance(outcome, ClientError):
        return Topic(name, outcome.message)
    rows = outcome.partitions
    return Topic(
        name,
        "",
        len(rows),
        sum(row.leader < 0 for row in rows),
        min((len(row.isr) for row in rows), default=0),
        await _configs(admin, Resource(ResourceType.TOPIC, name)),
    )
