"""A running cluster becomes secure under load, and its certificates, passwords and ACLs change.
Does a client get an error that is not due? Does each change have its effect in time?

    python -m chaos.secure_rolling [--rate 50] [--keep DIR]

Three real nodes, replication factor 3. Producers (acks=all, idempotent) and members of two consumer
groups run all the time, each kind with mqd.client and with confluent-kafka. The steps:

1. The nodes start with PLAINTEXT for clients, and with the cluster secret between nodes.
2. Rolling restart: a listener SASL_SSL beside PLAINTEXT, an authorizer, `peer.ssl=preferred`. Then
   users and ACLs are created, and the clients move to SASL_SSL.
3. Rolling restart: no PLAINTEXT any more, `peer.ssl=required`.
4. `mqctl cert renew`, without a restart.
5. A password is rotated, an ACL is revoked and a user is deleted (chaos/secure_access.py).

The trial verifies that

- no client of the load gets an error, and no connection breaks when certificates change;
- each effect occurs within 5 s;
- a connection with an old password or a deleted user ends within `connections.max.reauth.ms` and
  5 s more, and one that lost an ACL stays open;
- no acknowledged record is lost, duplicated or out of order; both groups receive every record;
- after the stop, replicas are identical, and `mqctl log verify` finds no damage.

Exit code 0: all checks passed; 1: a check failed.
"""

from __future__ import annotations

import argparse
import secrets
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mqd.client import sync
from mqd.client.access import ScramMechanism, ScramUpsertion
from mqd.client.errors import ClientError
from mqd.client.security import Security
from mqd.io.certificates import CA_CERTIFICATE, node_file

from .checker import check
from .client_security import PLAINTEXT, librdkafka_options
from .cluster import verify_files
from .cluster_security import certificate_options, create_authority
from .ensemble import mqd_ensemble
from .history import Key, Reads
from .node import CLUSTER_ID, LOOPBACK, Node, NodeFailed, end_on_sigterm, free_ports
from .program import add_keep, conclude, directory_of, failed
from .replicas import differences
from .secure_access import (
    ADMIN,
    MECHANISM,
    PROBED,
    REAUTH_MS,
    SHOP,
    USERS,
    WAIT_S,
    AccessChange,
    Effect,
    check_results,
    needed_acls,
    worst_effect,
)
from .secure_clients import (
    ConfluentMember,
    GroupReads,
    Member,
    MqdMember,
    MqdProducer,
    problems,
)
from .secure_probes import presented_certificate
from .workload import Producer, TrialFailed, gather, read_all

TOPIC = "secure-load"
PARTITIONS = 3
MEMBERS: tuple[type[Member], ...] = (MqdMember, ConfluentMember)


class Trial:
    """One run; `run` fills in the results."""

    def __init__(self, directory: Path, rate: float) -> None:
        self.rate = rate
        self.violations: list[str] = []
        self.effects: list[Effect] = []
        self.acked = 0
        self.repeated = 0
        self.seconds = 0.0
        self.cluster = mqd_ensemble(directory)
        self._certificates = directory / "certificates"
        self._ports = dict(
            zip(self.cluster.nodes, free_ports(len(self.cluster.nodes)), strict=True)
        )
        self._passwords = {user: secrets.token_urlsafe(18) for user in USERS}
        self._plain_options = {node_id: self._node(node_id).options for node_id in self._ports}
        self._producers: list[Producer | MqdProducer] = []
        self._members: dict[str, Member] = {}
        self._groups: dict[str, GroupReads] = {}
        self._left: list[Member] = []
        self._started_at = 0.0

    @property
    def keys(self) -> list[Key]:
        return [(TOPIC, partition) for partition in range(PARTITIONS)]

    @property
    def secured(self) -> str:
        """The addresses of the SASL_SSL listeners."""
        return ",".join(f"{LOOPBACK}:{port}" for port in self._ports.values())

    def run(self) -> None:
        """Run the whole trial. Raises TrialFailed, NodeFailed and ClientError."""
        self._started_at = time.monotonic()
        self.cluster.start()
        for topic, partitions in ((TOPIC, PARTITIONS), (PROBED, 1)):
            self.cluster.create_topic(topic, partitions, configs={"retention.ms": "-1"})
        self._start_load(self.cluster.bootstrap, PLAINTEXT)
        try:
            self._add_listeners()
            self._create_users()
            self._start_load(self.secured, self._security(SHOP))
            self._say("all clients use SASL_SSL")
            self._remove_plaintext()
            self._renew_certificates()
            self._change_access()
        finally:
            self._end_load()
        self._judge()
        self.seconds = time.monotonic() - self._started_at

    # -- the load

    def _start_load(self, bootstrap: str, security: Security) -> None:
        """Start producers, and replace the earlier ones and the members of the groups."""
        before = list(self._producers[-2:])
        number = len(self._producers)
        producers = (
            Producer(
                number,
                bootstrap,
                self.keys,
                number,
                rate=self.rate,
                options=librdkafka_options(security),
            ),
            MqdProducer(number + 1, bootstrap, self.keys, self.rate, security),
        )
        for producer in producers:
            self._producers.append(producer)
            producer.start()
        for producer in producers:
            self._wait(_has_begun, "a first record", producer)
        for earlier in before:
            earlier.finish()
        for kind in MEMBERS:
            group = f"group-{kind.__name__}"
            found = self._groups.setdefault(group, GroupReads(self.keys))
            if group in self._members:
                self._members[group].finish()
                self._left.append(self._members[group])
            member = self._members[group] = kind(found, bootstrap, group, security)
            member.start()
            self._wait(_reads_more, f"a record of {group}", found, found.count, member)

    def _end_load(self) -> None:
        for producer in self._producers[-2:]:
            producer.finish()

    # -- steps

    def _add_listeners(self) -> None:
        self._certificates.mkdir(mode=0o700)
        create_authority(self._certificates)
        for node_id in self._ports:
            plain = f"PLAINTEXT://{self.cluster.nodes[node_id].address}"
            self._restart(node_id, plain, "preferred", f"User:{ADMIN};User:ANONYMOUS")
            self._wait(
                lambda: self.cluster.is_whole({TOPIC: PARTITIONS}),
                f"full ISRs after the restart of node {node_id}",
            )
        self._say("every node has a SASL_SSL listener, and prefers TLS between nodes")

    def _create_users(self) -> None:
        with sync.connect(self.cluster.bootstrap) as client:
            upsertions = [
                ScramUpsertion(user, ScramMechanism.SHA_256, password)
                for user, password in self._passwords.items()
            ]
            check_results(client.admin.alter_user_scram_credentials(upsertions))
            check_results(client.admin.create_acls(needed_acls("secure-", "group-")))

    def _remove_plaintext(self) -> None:
        for node_id in self._ports:
            self._restart(node_id, None, "required", f"User:{ADMIN}")
            with sync.connect(self.secured, security=self._security(ADMIN), wait_s=WAIT_S) as one:
                what = f"full ISRs after the restart of node {node_id}"
                self._wait(self._is_whole, what, one)
        self._say("no PLAINTEXT listener is left, and nodes require TLS")

    def _is_whole(self, client: sync.BlockingClient) -> bool:
        states = client.admin.describe_partitions([TOPIC, PROBED]).values()
        return all(set(state.isr) == set(self._ports) for state in states)

    def _renew_certificates(self) -> None:
        before = self._presented()
        client = self._producers[-1]
        assert isinstance(client, MqdProducer)
        connections = client.network.connections
        command = [sys.executable, "-m", "mqctl", "cert", "renew", str(self._certificates)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise TrialFailed(f"mqctl cert renew: {done.stderr.strip()}")
        began = time.monotonic()
        seconds: dict[str, float | None] = dict.fromkeys(before)
        while None in seconds.values() and time.monotonic() - began < WAIT_S:
            for listener, certificate in self._presented().items():
                if certificate != before[listener] and seconds[listener] is None:
                    seconds[listener] = time.monotonic() - began
        for what in ("client", "peer"):
            of_nodes = [at for name, at in seconds.items() if name.startswith(what)]
            name = f"every {what} listener presents its new certificate"
            self._add(worst_effect(name, of_nodes))
        if client.network.connections != connections:
            self.violations.append("a client lost its connections when certificates were renewed")

    def _presented(self) -> dict[str, str]:
        """Listener -> the certificate that it presents."""
        ca, found = self._certificates / CA_CERTIFICATE, {}
        other = {1: 2}  # a node may not connect as itself
        for node_id, port in self._ports.items():
            own = self._certificates / node_file(other.get(node_id, 1))
            found[f"client {node_id}"] = presented_certificate(port, ca)
            found[f"peer {node_id}"] = presented_certificate(self._peer_port(node_id), ca, own)
        return found

    def _change_access(self) -> None:
        change = AccessChange(self.secured, self._security)
        try:
            change.run()
        finally:
            self.violations += change.violations
            for effect in change.effects:
                self._add(effect)

    # -- the verdict

    def _judge(self) -> None:
        options = librdkafka_options(self._security(ADMIN))
        final = read_all(self.secured, self.keys, options=options)
        for group, found in self._groups.items():
            self._wait(found.has, f"{group} to receive every record", final)
        for member in self._members.values():
            member.finish()
        history = gather(self._producers, (), final)
        history.reads = {number: found.reads for number, found in enumerate(self._groups.values())}
        self.acked = history.acked
        self.repeated = sum(found.repeated for found in self._groups.values())
        self.violations += [str(anomaly) for anomaly in check(history)]
        self.violations += problems((*self._producers, *self._left, *self._members.values()))
        self.violations += [f"late: {each}" for each in self.effects if each.is_late]
        self.cluster.stop()
        self._judge_files(final)

    def _judge_files(self, final: dict[Key, Reads]) -> None:
        directories = {node_id: node.data_directory for node_id, node in self.cluster.nodes.items()}
        for key in self.keys:
            self.violations += differences(directories, key, len(final[key].offsets))
        for directory in directories.values():
            self.violations += verify_files(directory)

    def _add(self, effect: Effect) -> None:
        self.effects.append(effect)
        self._say(str(effect))

    # -- helpers

    def _node(self, node_id: int) -> Node:
        node = self.cluster.nodes[node_id]
        assert isinstance(node, Node)
        return node

    def _peer_port(self, node_id: int) -> int:
        text = self._node(node_id).peers.read_text()
        ports = [line.split("=")[1] for line in text.splitlines() if line.startswith("peer_port")]
        return int(ports[node_id - 1])

    def _security(self, user: str) -> Security:
        return Security(
            protocol="SASL_SSL",
            ca=self._certificates / CA_CERTIFICATE,
            mechanism=MECHANISM,
            username=user,
            password=self._passwords[user],
        )

    def _restart(self, node_id: int, plain: str | None, peer_ssl: str, super_users: str) -> None:
        secured = f"SASL_SSL://{LOOPBACK}:{self._ports[node_id]}"
        node = self._node(node_id)
        node.stop()
        node.options = (
            *self._plain_options[node_id],
            f"listeners={secured if plain is None else f'{plain},{secured}'}",
            *certificate_options(self._certificates, CLUSTER_ID, node_id),
            f"sasl.enabled.mechanisms={MECHANISM}",
            f"connections.max.reauth.ms={REAUTH_MS}",
            f"peer.ssl={peer_ssl}",
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            f"super.users={super_users}",
        )
        node.start()

    def _wait(self, condition: Callable[..., Any], what: str, *arguments: Any) -> None:
        self.cluster.wait_until(lambda: condition(*arguments), what)

    def _say(self, text: str) -> None:
        elapsed = time.monotonic() - self._started_at
        print(f"  {elapsed:6.1f} s  {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End every process of the trial."""
        self.cluster.kill()

    def summary(self) -> str:
        """The result with its counts."""
        return "\n".join(
            [
                *map(str, self.effects),
                f"mqd: {len(self._producers)} producers, {len(self._groups)} groups, acknowledged "
                f"{self.acked}, received again after a move {self.repeated}, {self.seconds:.0f} s; "
                f"violations {len(self.violations)}",
            ]
        )


def _has_begun(producer: Producer | MqdProducer) -> bool:
    return producer.acknowledged > 0 or bool(producer.errors)


def _reads_more(found: GroupReads, count: int, member: Member) -> bool:
    return found.count > count or bool(member.errors)


def main() -> int:
    """Parse the command line, run the trial, print the result."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos.secure_rolling", description="a cluster becomes secure under load"
    )
    parser.add_argument(
        "--rate", type=float, default=50, help="records a second of each producer (50)"
    )
    add_keep(parser)
    arguments = parser.parse_args()
    end_on_sigterm()
    with directory_of(arguments.keep, "secure-rolling-") as directory:
        trial = Trial(directory, arguments.rate)
        try:
            trial.run()
        except (TrialFailed, NodeFailed, ClientError, ssl.SSLError) as error:
            return failed(error, trial.violations)
        finally:
            trial.close()
    return conclude(trial.summary(), trial.violations)


if __name__ == "__main__":
    sys.exit(main())
