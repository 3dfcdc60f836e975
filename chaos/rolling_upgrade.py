"""A rolling upgrade from the previous release, under load: does each step work, and is no
acknowledged record lost?

    python -m chaos.rolling_upgrade [--order first|last|both] [--from COMMIT]

Three nodes start with the code of an earlier commit. confluent-kafka produces (acks=all,
idempotent) and consumes all the time. The nodes are restarted with the current code, one at a time,
the controller first or last. The first one is downgraded once, and upgraded again. While a node
runs the old code, the cluster must refuse to finalize the new metadata version. Then `mqctl feature
upgrade` finalizes it, and every node is restarted once more. After each step, every node must
report a full ISR of every partition. At the end, the cluster must not admit a node with the old
code.

Exit code 0: the client got no error, and no record is lost, duplicated or out of order. A shallow
clone does not have the old commit: then the program reports this, and exits with 0.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from .ensemble import Ensemble, mqd_ensemble
from .node import Node, NodeFailed, end_on_sigterm
from .releases import BEFORE, HERE, OF_VERSION_1, unpack
from .rolling import PARTITIONS, Confluent

FEATURE, NEWEST = "mqd.metadata.version", 3
LOAD_BEGUN = 100
"""Records."""
KEPT_OUT_S = 5.0
"""How long the trial checks that the cluster does not admit a node of the previous release."""


def newest_level(code: Path) -> int:
    """The newest metadata version that a release supports. Releases of version 1 do not name it."""
    versions = code / "mqd" / "raft" / "versions.py"
    if not versions.exists():
        return 1
    found = re.search(r"^NEWEST = (\d+)$", versions.read_text(), re.MULTILINE)
    assert found is not None, versions
    return int(found[1])


class NodeOfAnyRelease(Node):
    """`mqd start` from the source in `code`."""

    code = HERE

    def command(self) -> list[str]:
        program, *rest = super().command()
        return [program, "-P", *rest]

    def environment(self) -> dict[str, str] | None:
        return {**os.environ, "PYTHONPATH": str(self.code)}

    def restart(self, code: Path) -> None:
        """Stop cleanly, then start with this source. Raises NodeFailed."""
        self.stop()
        self.code = code
        self.start()


class Upgrade:
    """One cluster during its upgrade."""

    def __init__(self, directory: Path, old: Path, *, controller_first: bool) -> None:
        self.old = old
        self.old_level = newest_level(old)
        self.controller_first = controller_first
        made = mqd_ensemble(directory, 3)
        self.nodes: dict[int, NodeOfAnyRelease] = {}
        for node_id, node in made.nodes.items():
            assert isinstance(node, Node)
            self.nodes[node_id] = NodeOfAnyRelease(
                node.directory, node.options, node_id=node_id, port=node.port, peers=node.peers
            )
            self.nodes[node_id].code = old
        self.cluster = Ensemble("mqd", self.nodes, made.session_ms)
        self.steps = 0

    def run(self) -> list[str]:
        """Run all steps. Returns the errors of the client. Raises NodeFailed if a step fails."""
        cluster = self.cluster
        cluster.start()
        load = Confluent(cluster.bootstrap)
        # A leader with the old code may return OUT_OF_ORDER_SEQUENCE_NUMBER for a request that
        # follows a refused one. Then librdkafka appends records twice (its issue 4953).
        load.in_flight = 1
        cluster.create_topic(load.topic, PARTITIONS, configs={"retention.ms": "-1"})
        load.start()
        try:
            cluster.wait_until(lambda: load.sent > LOAD_BEGUN, "the load to begin")
            self._upgrade_all(load.topic)
            self._finalize(load.topic)
            for node_id in self.nodes:
                self._restart(node_id, HERE, load.topic)
            self._keep_out(min(self.nodes), load.topic)
        finally:
            errors = load.finish()
        self.acked, self.sent = load.acked, load.sent
        cluster.stop()
        return errors

    def _upgrade_all(self, topic: str) -> None:
        went_back = False
        while waiting := [node_id for node_id, node in self.nodes.items() if node.code == self.old]:
            controller = self.cluster.controller()
            preferred = [
                node_id for node_id in waiting if (node_id == controller) == self.controller_first
            ]
            node_id = (preferred or waiting)[0]
            if len(waiting) == 1:
                self._refuse_to_finalize(node_id)
            self._restart(node_id, HERE, topic)
            if not went_back:
                went_back = True
                self._restart(node_id, self.old, topic)
                self._restart(node_id, HERE, topic)
        self._demand_level(self.old_level)

    def _restart(self, node_id: int, code: Path, topic: str) -> None:
        self.nodes[node_id].restart(code)
        self.steps += 1
        self._wait_whole(
            topic,
            f"the restart of node {node_id} on {'the old' if code == self.old else 'this'} code",
        )

    def _wait_whole(self, topic: str, what: str) -> None:
        self.cluster.wait_until(
            lambda: (
                self.cluster.is_whole({topic: PARTITIONS})
                and all(
                    len(self.cluster.brokers(node_id)) == len(self.nodes) for node_id in self.nodes
                )
            ),
            f"a full ISR after {what}",
        )

    def _refuse_to_finalize(self, old: int) -> None:
        done = self._mqctl("feature", "upgrade", f"{FEATURE}={NEWEST}", "--yes")
        if done.returncode == 0:
            raise NodeFailed(
                f"version {NEWEST} was finalized while node {old} ran the release before: "
                f"{done.stdout}{done.stderr}"
            )
        self._demand_level(self.old_level)

    def _finalize(self, topic: str) -> None:
        done = self._mqctl("feature", "upgrade", "--yes")
        if done.returncode:
            raise NodeFailed(f"mqctl feature upgrade: exit code {done.returncode}: {done.stderr}")
        self.cluster.wait_until(
            lambda: self._levels() == {NEWEST}, f"version {NEWEST} on every node"
        )
        self._wait_whole(topic, "the new version was finalized")

    def _keep_out(self, node_id: int, topic: str) -> None:
        node = self.nodes[node_id]
        node.stop()
        node.code = self.old
        node.launch()
        deadline = time.monotonic() + KEPT_OUT_S
        while time.monotonic() < deadline:
            if node.is_ready():
                raise NodeFailed(
                    f"node {node_id} serves with the release before, though version {NEWEST} "
                    "is finalized"
                )
            time.sleep(0.1)
        node.kill()
        node.code = HERE
        node.start()
        self._wait_whole(topic, f"node {node_id} could not go back to the release before")

    def _levels(self) -> set[int]:
        found = set()
        for node_id in self.nodes:
            with suppress(OSError):
                response = self.cluster.request(
                    node_id,
                    "api_versions",
                    4,
                    {"client_software_name": "chaos", "client_software_version": "1"},
                )
                found |= {
                    row.max_version_level
                    for row in response.finalized_features
                    if row.name == FEATURE
                }
        return found

    def _demand_level(self, level: int) -> None:
        if (found := self._levels()) != {level}:
            raise NodeFailed(f"{FEATURE} is {found}, it should be {level}")

    def _mqctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mqctl", "-b", self.cluster.bootstrap, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE)


def main() -> int:
    """Parse the command line, upgrade once or twice, print the client's errors."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos.rolling_upgrade", description="a rolling upgrade under load"
    )
    parser.add_argument(
        "--order",
        choices=("first", "last", "both"),
        default="both",
        help="when the controller is upgraded (both)",
    )
    parser.add_argument(
        "--from",
        dest="commit",
        default=BEFORE,
        metavar="COMMIT",
        help=f"the release before ({BEFORE[:7]}; {OF_VERSION_1[:7]} has metadata version 1)",
    )
    arguments = parser.parse_args()
    logging.getLogger().addHandler(logging.NullHandler())
    end_on_sigterm()
    directory = Path(tempfile.mkdtemp(prefix="upgrade-"))
    failed = False
    try:
        if (why := unpack(arguments.commit, directory / "old")) is not None:
            print(f"upgrade: SKIPPED: {why}", file=sys.stderr)
            return 0
        for order in ("first", "last") if arguments.order == "both" else (arguments.order,):
            upgrade = Upgrade(
                directory / order, directory / "old", controller_first=order == "first"
            )
            started_at = time.monotonic()
            try:
                errors = upgrade.run()
            except NodeFailed as failure:
                print(f"upgrade: FAILED: {failure}", file=sys.stderr)
                return 1
            finally:
                with suppress(NodeFailed):
                    upgrade.cluster.kill()
            for error in errors:
                print(error, file=sys.stderr)
            failed = failed or bool(errors)
            seconds = time.monotonic() - started_at
            shown = f"acknowledged {upgrade.acked} of {upgrade.sent}; errors {len(errors)}"
            print(
                f"upgrade: controller {order}, {upgrade.steps} restarts in {seconds:.0f} s, {shown}"
            )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
