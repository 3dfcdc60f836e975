"""The supervisor with children that are small scripts; tests/test_start.py tests it with the real
daemon.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chaos.node import free_port
from mqd import dev, dev_security
from mqd.config import NodeConfig
from mqd.dev import DevOptions
from mqd.node.listeners import ClientTls
from mqd.node.peer_tls import PeerTls
from mqd.options import ConfigError, StartError
from mqd.peers import load_peers
from mqd.security.client_listeners import client_listeners

# Replaces `mqd start`: reports that it is ready, waits for SIGTERM, then ends with the code of its
# file `exit-ID`.
CHILD = """
import pathlib, signal, sys
node, directory = sys.argv[1], pathlib.Path(sys.argv[2])
signal.signal(signal.SIGINT, signal.SIG_IGN)
# a handler and pause() lose a signal that comes between the two
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print(f"mqd node {node} ready on 127.0.0.1:1", file=sys.stderr, flush=True)
while True:
    signal.sigwait({signal.SIGTERM})
    sys.exit(int((directory / f"exit-{node}").read_text()))
"""
PARENT = """
import pathlib, sys
from mqd import dev
directory = pathlib.Path(sys.argv[1])
dev.start_command = lambda options, peers, node: [
    sys.executable, "-c", sys.argv[2], str(node), str(directory)
]
sys.exit(dev.run(dev.DevOptions(int(sys.argv[3]), None, directory)))
"""


@contextmanager
def supervisor(
    directory: Path, *, nodes: int, child: str = CHILD, codes: tuple[int, ...] = (0, 0, 0)
) -> Iterator[subprocess.Popen[str]]:
    for number, code in enumerate(codes, start=1):
        (directory / f"exit-{number}").write_text(str(code))
    command = [sys.executable, "-c", PARENT, str(directory), child, str(nodes)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_guide(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "c.close()" in line:
            return "".join(lines)
    raise AssertionError("no guide was printed: " + "".join(lines))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_every_node_with_exit_code_0(tmp_path: Path, number: signal.Signals) -> None:
    with supervisor(tmp_path, nodes=2) as process:
        guide = wait_for_guide(process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert "2 node(s) ready on 127.0.0.1:" in guide
    for words in (
        "export MQCTL_BOOTSTRAP=127.0.0.1:",
        "mqctl topic create demo",
        "kcat -b 127.0.0.1:",
        "from confluent_kafka import",
    ):
        assert words in guide
    assert sorted(errors.splitlines()) == [
        f"node {i} | mqd node {i} ready on 127.0.0.1:1" for i in (1, 2)
    ]


@pytest.mark.parametrize("gone", ["at once", "later"])
def test_the_reader_of_its_output_may_end_and_it_still_stops(tmp_path: Path, gone: str) -> None:
    """Such as `mqd dev 2>&1 | head`: one pipe for all output, which breaks before or after the
    guide.
    """
    for number in (1, 2):
        (tmp_path / f"exit-{number}").write_text("0")
    os.mkfifo(tmp_path / "up")
    child = CHILD.replace("while True:", "(directory / 'up').write_text('.')\nwhile True:").replace(
        "sys.exit(", "print('goes') or sys.exit("
    )
    reading, writing = os.pipe()
    if gone == "at once":
        os.close(reading)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), child, "2"], stdout=writing, stderr=writing
    ) as process:
        os.close(writing)
        try:
            with open(os.open(tmp_path / "up", os.O_RDWR), "rb", buffering=0) as up:
                assert up.read(1) + up.read(1) == b".."
            if gone == "later":
                with os.fdopen(reading) as lines:
                    assert any("c.close()" in line for line in lines)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()


def test_one_of_two_nodes_that_dies_takes_the_other_with_it(tmp_path: Path) -> None:
    dying = CHILD.replace("while True:", "if node == '2': sys.exit(7)\nwhile True:")
    with supervisor(tmp_path, nodes=2, child=dying) as process:
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "mqd dev: node 2 ended with exit code 7: stopping the other nodes" in errors


def test_one_of_three_nodes_that_dies_is_restarted_while_the_others_run(
    tmp_path: Path,
) -> None:
    pid = "print(__import__('os').getpid(), flush=True)\nprint(f"
    with supervisor(tmp_path, nodes=3, child=CHILD.replace("print(f", pid, 1)) as process:
        wait_for_guide(process)
        assert process.stderr is not None
        pids: dict[str, int] = {}
        lines: list[str] = []
        while sum("ready on" in line for line in lines) < 3:
            lines.append(process.stderr.readline())
            node, _, text = lines[-1].partition(" | ")
            if text.strip().isdigit():
                pids[node] = int(text)
        os.kill(pids["node 2"], signal.SIGKILL)
        expected = (
            "mqd dev: node 2 ended with signal SIGKILL: the other nodes keep running; "
            "restarting it in 1 s\n"
        )
        assert process.stderr.readline() == expected
        assert process.stderr.readline().startswith("node 2 | ")  # its pid
        assert process.stderr.readline() == "node 2 | mqd node 2 ready on 127.0.0.1:1\n"
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "ready on" not in output  # the guide is printed once


def test_a_node_that_keeps_dying_takes_the_others_with_it(tmp_path: Path) -> None:
    dying = CHILD.replace("while True:", "if node == '2': sys.exit(7)\nwhile True:")
    with supervisor(tmp_path, nodes=3, child=dying) as process:
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    ends = [line for line in errors.splitlines() if "node 2 ended" in line]
    assert [line.rpartition(": ")[2] for line in ends] == [
        *["the other nodes keep running; restarting it in 1 s"] * 2,
        "stopping the other nodes",
    ]


def test_a_node_that_is_killed_is_named_with_the_signal(tmp_path: Path) -> None:
    dying = CHILD.replace(
        "while True:", "import os; os.kill(os.getpid(), signal.SIGKILL)\nwhile True:"
    )
    with supervisor(tmp_path, nodes=1, child=dying) as process:
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "mqd dev: node 1 ended with signal SIGKILL" in errors


def test_a_node_that_fails_during_the_stop_is_reported(tmp_path: Path) -> None:
    with supervisor(tmp_path, nodes=2, codes=(0, 3)) as process:
        wait_for_guide(process)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "mqd dev: node 2 ended with exit code 3\n" in errors


def test_a_node_that_was_not_up_yet_may_die_of_the_signal(tmp_path: Path) -> None:
    early = "import sys, signal; print('early', flush=True); signal.pause()"
    with supervisor(tmp_path, nodes=1, child=early) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "node 1 | early\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 0


def test_a_second_signal_kills_nodes_that_do_not_stop(tmp_path: Path) -> None:
    stubborn = CHILD.replace(
        """sys.exit(int((directory / f"exit-{node}").read_text()))""", """print("no", flush=True)"""
    )
    assert stubborn != CHILD
    with supervisor(tmp_path, nodes=1, child=stubborn) as process:
        wait_for_guide(process)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while (line := process.stderr.readline()) != "node 1 | no\n":
            assert line, "the child got no signal to stop"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "node 1 ended with signal SIGKILL" in errors


def test_two_clusters_do_not_share_a_directory(tmp_path: Path) -> None:
    with supervisor(tmp_path, nodes=1) as process:
        wait_for_guide(process)
        with pytest.raises(StartError, match="in use by another `mqd dev`"):
            dev.run(DevOptions(1, None, tmp_path))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


# -- the peers file


def test_a_new_cluster_gets_a_block_of_free_ports(tmp_path: Path) -> None:
    peers = dev.prepare_peers(DevOptions(3, None, tmp_path))
    first = peers.nodes[1].port
    assert [(node.port, node.peer_port) for node in peers.nodes.values()] == [
        (first + i, first + 3 + i) for i in range(3)
    ]
    assert (first - dev.FIRST_PORT) % dev.PORT_STEP == 0
    assert len(peers.cluster_id) == 22
    assert load_peers(tmp_path / "peers.toml") == peers


def test_a_second_start_keeps_the_cluster(tmp_path: Path) -> None:
    port = free_block(3)
    peers = dev.prepare_peers(DevOptions(3, port, tmp_path))
    assert peers.nodes[1].port == port
    assert dev.prepare_peers(DevOptions(None, None, tmp_path)) == peers
    assert dev.prepare_peers(DevOptions(3, port, tmp_path)) == peers


def test_a_cluster_moves_when_its_ports_are_taken(tmp_path: Path) -> None:
    peers = dev.prepare_peers(DevOptions(1, free_block(1), tmp_path))
    with listening(peers.nodes[1].peer_port):
        moved = dev.prepare_peers(DevOptions(None, None, tmp_path))
    assert moved.cluster_id == peers.cluster_id
    assert moved.nodes[1].peer_port != peers.nodes[1].peer_port
    assert load_peers(tmp_path / "peers.toml") == moved


def test_several_nodes_share_a_secret_that_only_their_user_can_read(tmp_path: Path) -> None:
    """Otherwise any program of any user of this machine could impersonate one of them."""
    peers = dev.prepare_peers(DevOptions(2, free_block(2), tmp_path))
    file = tmp_path / dev.SECRET_NAME
    assert (
        peers.secret is not None
        and file.read_bytes().strip() == peers.secret
        and file.stat().st_mode & 0o777 == 0o600
    )
    assert peers.secret.decode() not in (tmp_path / "peers.toml").read_text()
    with listening(peers.nodes[1].peer_port):
        moved = dev.prepare_peers(DevOptions(None, None, tmp_path))
    assert (
        moved.nodes != peers.nodes
        and moved.secret == peers.secret == load_peers(tmp_path / "peers.toml").secret
    )


def test_a_node_alone_needs_no_secret(tmp_path: Path) -> None:
    assert dev.prepare_peers(DevOptions(1, free_block(1), tmp_path)).secret is None
    assert not (tmp_path / dev.SECRET_NAME).exists()


def test_a_requested_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    port = free_block(1)
    with (
        listening(port),
        pytest.raises(
            StartError, match=f"port {port} on 127.0.0.1 is in use; choose another block"
        ),
    ):
        dev.prepare_peers(DevOptions(1, port, tmp_path))
    assert not (tmp_path / "peers.toml").exists()
    with pytest.raises(StartError, match="port 65536"):
        dev.prepare_peers(DevOptions(1, 65535, tmp_path))


def test_another_number_of_nodes_is_refused(tmp_path: Path) -> None:
    dev.prepare_peers(DevOptions(2, None, tmp_path))
    with pytest.raises(
        ConfigError,
        match=r"this cluster has 2 node\(s\), not 3; "
        r"use --nodes 2, or another directory with --data",
    ):
        dev.prepare_peers(DevOptions(3, None, tmp_path))


def test_a_file_edited_by_hand_is_unchanged(tmp_path: Path) -> None:
    text = 'cluster_id = "mine"\n[[node]]\nid = 5\nhost = "localhost"\nport = 1\npeer_port = 2\n'
    (tmp_path / "peers.toml").write_text(text)
    assert list(dev.prepare_peers(DevOptions(None, 7777, tmp_path)).nodes) == [5]
    assert (tmp_path / "peers.toml").read_text() == text


def test_a_node_is_started_like_any_other(tmp_path: Path) -> None:
    options = DevOptions(1, None, tmp_path, {"num.partitions": "3"})
    command = dev.start_command(options, dev.prepare_peers(options), 1)
    assert command[:4] == [sys.executable, "-m", "mqd", "start"]
    assert command[4:] == [
        "--peers",
        f"{tmp_path}/peers.toml",
        "--node",
        "1",
        "--data",
        f"{tmp_path}/node-1",
        "-o",
        "num.partitions=3",
    ]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="file/data: cannot create the directory"):
        dev.run(DevOptions(1, None, tmp_path / "file" / "data"))


def test_a_cluster_id_never_looks_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [b"\xf8" + bytes(15), bytes(16)]
    monkeypatch.setattr(os, "urandom", lambda count: answers.pop(0))
    assert dev.new_cluster_id() == "A" * 22


def free_block(nodes: int) -> int:
    """A port with as many free ones after it as `nodes` need."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        port = free_port()
        if all(dev._is_free(number) for number in range(port, port + 2 * nodes)):
            return port
    raise AssertionError("no free block of ports")


@contextmanager
def listening(port: int) -> Iterator[Any]:
    with socket.create_server(("127.0.0.1", port)) as server:
        yield server


def test_a_secure_cluster_has_certificates_a_user_and_configurations(tmp_path: Path) -> None:
    options = dev.DevOptions(2, None, tmp_path, secure=True)
    peers = dev.prepare_peers(options)
    dev_security.prepare(tmp_path, peers)
    folder = tmp_path / dev.SECURE
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert {name for name, mode in modes.items() if mode != 0o600} == {"ca.pem"}
    assert (tmp_path / "node-2" / "first-users").exists()
    config = NodeConfig.load(folder / "node-1.properties")
    assert config.warnings == ()
    (listener,) = client_listeners(config, peers.nodes[1])
    assert (listener.name, listener.port) == ("SASL_SSL", peers.nodes[1].port)
    assert ClientTls(config, listener).settings is not None
    assert PeerTls(config, peers).mode == "required"
    assert str(folder / "node-2.properties") in dev.start_command(options, peers, 2)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    dev_security.prepare(tmp_path, peers)  # a second run keeps the cluster
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
    guide = dev.guide(peers, tmp_path)
    assert f"\n                   export MQCTL_COMMAND_CONFIG={folder}/admin.properties\n" in guide
    assert f"its password is in {folder}/admin.password\n  and admin.properties." in guide
    assert f"`mqctl cert renew {folder}`" in guide
    assert (folder / "admin.password").read_text().strip() not in guide
