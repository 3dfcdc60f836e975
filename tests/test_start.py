"""The daemon as a process: ready line, clean shutdown, exit codes, and data directories that it
refuses.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from chaos.node import Node, NodeFailed, free_port
from mqd.__main__ import FAILURE, main
from mqd.daemon import Seams


def test_a_node_stops_cleanly_and_starts_again_also_after_a_kill(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.start()
    assert node._process is not None
    node._process.send_signal(signal.SIGHUP)  # does not stop it
    node.stop()  # demands exit code 0 and no traceback
    assert "signal ignored signal=SIGHUP" in node.stderr()
    node.start()
    assert "clean=True" in node.stderr()
    node.kill()
    node.start()
    assert "clean=True" not in node.stderr()
    node.stop()


EARLY_SIGNALS = [
    (["SIGHUP", "SIGTERM"], 0, "stopping signal=SIGTERM"),
    (["SIGTERM", "SIGTERM"], 1, "stopped immediately after a second SIGTERM"),
]


@pytest.mark.slow
def test_signals_before_the_event_loop_runs(tmp_path: Path) -> None:
    """They arrive while the node is imported, half a second before its event loop runs."""
    program = """
import builtins, os, signal, sys

real = builtins.__import__

def importing(name, *rest, **named):
    if name == "trio" and sys.argv:
        builtins.__import__ = real
        for number in NUMBERS:
            os.kill(os.getpid(), getattr(signal, number))
    return real(name, *rest, **named)

builtins.__import__ = importing
from mqd.__main__ import main

sys.exit(main())
"""
    node = Node(tmp_path)
    for numbers, exit_code, line in EARLY_SIGNALS:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                program.replace("NUMBERS", repr(numbers)),
                *node.command()[3:],
            ],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert (done.returncode, "Traceback" in done.stderr) == (exit_code, False), done.stderr
        assert line in done.stderr
        assert ("signal ignored signal=SIGHUP" in done.stderr) == ("SIGHUP" in numbers)
    node.start()
    node.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_of_a_kind_stops_at_once_while_the_loop_is_busy(
    number: signal.Signals,
) -> None:
    program = """
import signal, sys, trio
from mqd import logs
from mqd.node.signals import StopSignals

logs.set_up()

async def main():
    stop = trio.Event()
    with signals.reported(trio.lowlevel.current_trio_token(), stop):
        print("ready", flush=True)
        await stop.wait()
        print("busy", flush=True)
        while True:
            pass

with StopSignals(signal.SIGTERM, signal.SIGINT) as signals:
    trio.run(main)
"""
    other = signal.SIGINT if number == signal.SIGTERM else signal.SIGTERM
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "busy\n"
        process.send_signal(other)
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1 and "Traceback" not in errors
    assert f"stopped immediately after a second {number.name}" in errors


@pytest.fixture
def start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """`mqd start`, which must refuse with exit code 1; returns its message, one line. It runs in
    this process, which it does not own: another one would import for half a second.
    """
    monkeypatch.setattr("mqd.logs.set_up", lambda level: None)
    monkeypatch.setattr("mqd.daemon.Seams", partial(Seams, owns_process=False))

    def refused(peers: Path, data: Path, *more: str, node_id: int = 1) -> str:
        arguments = ["--peers", str(peers), "--node", str(node_id), "--data", str(data), *more]
        assert main(["start", *arguments]) == FAILURE
        return one_line(capsys.readouterr().err)

    return refused


@pytest.mark.slow
def test_a_port_or_data_directory_in_use_or_of_another_node_is_refused(
    tmp_path: Path, start: Callable[..., str]
) -> None:
    node = Node(tmp_path / "first")
    node.start()
    text = (node.directory / "peers.toml").read_text()
    other = tmp_path / "other.toml"
    try:
        lines = [
            f"{line.split('=')[0]}= {free_port()}" if "port" in line else line
            for line in text.splitlines()
        ]
        other.write_text("\n".join(lines))
        assert str(node.data_directory) in start(other, node.data_directory)

        second = Node(tmp_path / "second")
        peers = second.directory / "peers.toml"
        peers.write_text(
            peers.read_text().replace(f"port = {second.port}\n", f"port = {node.port}\n", 1)
        )
        with pytest.raises(NodeFailed, match="exit code 1"):
            second.start()
        assert str(node.port) in one_line(second.stderr())
    finally:
        node.stop()
    other.write_text(text.replace('cluster_id = "', 'cluster_id = "other-'))
    message = start(other, node.data_directory)
    assert "cluster" in message and "meta.properties" in message and "space" not in message
    other.write_text(text.replace("id = 1", "id = 2"))
    assert "node" in start(other, node.data_directory, node_id=2)


def test_a_start_error_names_the_remedy(tmp_path: Path, start: Callable[..., str]) -> None:
    peers = tmp_path / "peers.toml"
    text = 'cluster_id = "c"\n[[node]]\nid = 1\nhost = "HOST"\nport = PORT\npeer_port = 1\n'
    # an address of no machine: RFC 5737
    peers.write_text(text.replace("HOST", "192.0.2.1").replace("PORT", str(free_port())))
    assert "without a cluster secret" in start(peers, tmp_path / "data")
    message = start(peers, tmp_path / "data", "--insecure-peers")
    assert "it must be an address of this machine: see node 1 in" in message
    assert "stop the process that uses it" not in message
    peers.write_text(text.replace("HOST", "127.0.0.1").replace("PORT", str(free_port())))
    message = start(peers, peers)
    assert f"{peers} is not a directory; choose another one" in message
    assert "space" not in message


def test_a_local_cluster_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mqd",
        "dev",
        "--data",
        str(tmp_path),
        "-o",
        "num.io.threads=8",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert any("1 node(s) ready on 127.0.0.1:" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert "node 1 | mqd node 1 ready on 127.0.0.1:" in errors
    assert "'num.io.threads' is ignored: one event loop serves a node" in errors


def one_line(errors: str) -> str:
    """The refusal: the output of `mqd` itself, without log lines; a traceback fails the test."""
    assert "Traceback" not in errors
    (line,) = [line for line in errors.splitlines() if line.startswith("mqd: ")]
    return line
