from __future__ import annotations

import errno
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio
import yaml

import mqd
from mqd import __main__ as command_line
from mqd.__main__ import FAILURE, OK, USAGE, main
from mqd.config import OPTIONS, StartOptions
from mqd.errors import QuorumBroken, StorageError
from mqd.options import StartError

PEERS = 'cluster_id = "c"\n[[node]]\nid = 1\nhost = "127.0.0.1"\nport = 1\npeer_port = 2\n'


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["stop"],
        ["config"],
        ["config", "list", "-o", "xml"],
        ["start", "--node", "1", "--data", "d"],
        ["start", "--peers", "p", "--node", "one", "--data", "d"],
        ["start", "--peers", "p", "--node", "1", "--data", "d", "-o", "key"],
        ["start", "--peers", "p", "--node", "1", "--data", "d", "-o", "=value"],
        ["dev", "--nodes", "0"],
        ["dev", "--nodes", "10"],
        ["dev", "--nodes", "-1"],
        ["dev", "--port", "0"],
        ["dev", "--port", "65536"],
    ],
)
def test_bad_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == USAGE
    assert capsys.readouterr().err.startswith("usage: mqd")


@pytest.mark.parametrize(
    ("arguments", "suggested"),
    [
        (["strt"], "start"),
        (["config", "lst"], "list"),
        (["config", "list", "-o", "tabel"], "table"),
    ],
)
def test_an_unknown_command_or_choice_suggests_the_nearest(
    arguments: list[str], suggested: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == USAGE
    assert f"no such choice: '{arguments[-1]}'. Did you mean '{suggested}'?" in (
        capsys.readouterr().err
    )
    assert main(["qqq"]) == USAGE
    assert "choose from" in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == OK
    assert capsys.readouterr().out == f"mqd {mqd.__version__}\n"


def test_it_refuses_to_run_without_its_assertions() -> None:
    done = run("-O", "-m", "mqd", "config", "list")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "cannot run under python -O" in done.stderr


def test_errors_that_the_user_can_fix_are_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peers = tmp_path / "peers.toml"
    arguments = ["start", "--peers", str(peers), "--node", "2", "--data", str(tmp_path / "data")]
    assert main(arguments) == FAILURE
    assert (
        capsys.readouterr().err
        == f"mqd: {peers}: no such file; write one (see docs/OPERATIONS.md), or run `mqd "
        "dev`, which writes it\n"
    )
    peers.write_text(PEERS)
    assert main(arguments) == FAILURE
    assert (
        capsys.readouterr().err
        == f"mqd: {peers}: node 2 does not exist; existing nodes: 1; choose one with --node, or "
        "add a [[node]] with this id\n"
    )
    arguments[4] = "1"
    assert main([*arguments, "-o", "num.partitions=x"]) == FAILURE
    assert (
        "Invalid value x for configuration num.partitions: Not a number" in capsys.readouterr().err
    )
    assert main([*arguments, "--config", str(tmp_path / "none")]) == FAILURE
    assert "none: cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "raised",
    [
        StartError("port 1 is in use"),
        BaseExceptionGroup(
            "nursery", [BaseExceptionGroup("nursery", [StartError("port 1 is in use")])]
        ),
        BaseExceptionGroup("nursery", [StorageError("port 1 is in use")]),
    ],
)
def test_the_daemon_gets_its_options_and_its_start_errors_are_printed(
    raised: BaseException,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from mqd import daemon

    seen: list[StartOptions] = []

    async def fake(options: StartOptions, seams: daemon.Seams) -> None:
        seen.append(options)
        raise raised

    monkeypatch.setattr(daemon, "main", fake)
    monkeypatch.setattr("mqd.logs.set_up", lambda level: None)
    monkeypatch.setenv("MQD_NUM_PARTITIONS", "3")
    (tmp_path / "peers.toml").write_text(PEERS)
    arguments = [
        "start",
        "--peers",
        str(tmp_path / "peers.toml"),
        "--node",
        "1",
        "--data",
        str(tmp_path / "data"),
    ]
    assert (
        main([*arguments, "-o", "delete.topic.enable=false", "-o", "num.partitions=4"]) == FAILURE
    )
    assert capsys.readouterr().err == "mqd: port 1 is in use\n"
    (options,) = seen
    assert (options.node_id, options.data_directory, options.peers.cluster_id) == (
        1,
        tmp_path / "data",
        "c",
    )
    assert (
        options.config["delete.topic.enable"],
        options.config["num.partitions"],
        options.config["node.id"],
    ) == (False, 4, 1)


def test_a_broken_quorum_is_printed_in_one_line_with_possible_causes() -> None:
    result = command_line._user_error(
        BaseExceptionGroup(
            "nursery", [BaseExceptionGroup("nursery", [QuorumBroken("two lead term 3")])]
        )
    )
    assert str(result).startswith(
        "the metadata quorum is broken: two lead term 3; "
    ) and "set cluster_secret" in str(result)
    assert isinstance(result, QuorumBroken) and "\n" not in str(result)


def test_a_bug_keeps_its_traceback() -> None:
    group = BaseExceptionGroup("nursery", [StartError("x"), RuntimeError("y")])
    assert command_line._user_error(group) is group
    interrupted = KeyboardInterrupt()
    assert command_line._user_error(BaseExceptionGroup("nursery", [interrupted])) is interrupted


def test_errors_of_the_operating_system_are_printed_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "peers.toml").write_text(PEERS)
    failure = OSError(errno.EMFILE, "Too many open files")

    def run(*_arguments: object) -> None:
        raise BaseExceptionGroup("nursery", [ExceptionGroup("nursery", [failure])])

    monkeypatch.setattr("trio.run", run)
    monkeypatch.setattr("mqd.logs.set_up", lambda level: None)
    assert (
        main(
            [
                "start",
                "--peers",
                str(tmp_path / "peers.toml"),
                "--node",
                "1",
                "--data",
                str(tmp_path / "data"),
            ]
        )
        == FAILURE
    )
    result = capsys.readouterr().err
    assert result.count("\n") == 1 and "Too many open files" in result and "ulimit -n" in result


def test_config_list_shows_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "list", "-o", "json"]) == OK
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == sorted(OPTIONS)
    row = next(row for row in rows if row["name"] == "retention.ms")
    assert row == {
        "name": "retention.ms",
        "type": "long",
        "default": "604800000",
        "scope": ["topic"],
        "status": "implemented",
        "dynamic": True,
        "meaning": "Age at which segments are deleted; -1: no limit",
        "note": "",
        "synonyms": ["log.retention.ms", "log.retention.minutes", "log.retention.hours"],
    }
    assert main(["config", "list", "-o", "yaml"]) == OK
    assert yaml.safe_load(capsys.readouterr().out) == rows
    assert main(["config", "list"]) == OK
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["NAME", "TYPE", "DEFAULT", "SCOPE", "STATUS", "DYNAMIC", "MEANING"]
    assert len(table) == len(OPTIONS) + 1
    assert not any(line != line.rstrip() for line in table)


def test_a_closed_output_causes_no_traceback() -> None:
    reading = [sys.executable, "-m", "mqd", "config", "list"]
    with subprocess.Popen(reading, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == OK


def test_a_secret_that_others_can_read_gives_a_warning_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mqd import daemon

    async def fake(options: StartOptions, seams: daemon.Seams) -> None: ...

    monkeypatch.setattr(daemon, "main", fake)
    monkeypatch.setattr("mqd.logs.set_up", lambda level: None)
    peers = tmp_path / "peers.toml"
    peers.write_text('cluster_secret = "sixteen letters, or more"\n' + PEERS)
    arguments = ["start", "--peers", str(peers), "--node", "1", "--data", str(tmp_path / "data")]
    for mode, result in ((0o600, []), (0o644, [f"chmod 600 {peers}"])):
        peers.chmod(mode)
        assert main(arguments) == 0
        assert [
            line[line.index("chmod") :].partition(",")[0]
            for line in caplog.messages
            if "cluster secret" in line
        ] == result


@pytest.mark.parametrize(
    ("settings", "hosts", "remedy"),
    [
        ([], ["mq1.exmaple.org"], "correct advertised_host in the peers file"),
        (
            [
                "listeners=PLAINTEXT://127.0.0.1:0,EXTERNAL://127.0.0.1:0",
                "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,EXTERNAL:PLAINTEXT",
                "advertised.listeners=PLAINTEXT://a.invalid:9,EXTERNAL://b.invalid:9",
            ],
            ["a.invalid", "b.invalid"],
            "correct advertised.listeners",
        ),
        (["listeners=PLAINTEXT://c.invalid:9"], ["c.invalid"], "correct listeners"),
        (["listeners=PLAINTEXT://:9"], ["mq1.exmaple.org"], "correct advertised_host in the"),
    ],
)
@pytest.mark.parametrize(
    "error", [None, OSError(-2, "Name or service not known"), UnicodeError("label too long")]
)
def test_advertised_hosts_that_cannot_be_resolved_are_reported_at_the_start(
    settings: list[str],
    hosts: list[str],
    remedy: str,
    error: Exception | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from mqd import daemon

    requested = []

    def resolve(host: str, port: None) -> list[object]:
        requested.append(host)
        if error is not None:
            raise error
        return []

    async def fake(options: StartOptions, seams: daemon.Seams) -> None:
        for thread in threading.enumerate():
            if thread.name == "advertised hosts":
                await trio.to_thread.run_sync(thread.join)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(daemon, "main", fake)
    monkeypatch.setattr("mqd.logs.set_up", lambda level: None)
    peers = tmp_path / "peers.toml"
    peers.write_text(PEERS + 'advertised_host = "mq1.exmaple.org"\n')
    arguments = ["start", "--peers", str(peers), "--node", "1", "--data", str(tmp_path / "data")]
    assert main([*arguments, *(f"-o{each}" for each in settings)]) == OK
    assert requested == hosts
    lines = [line for line in caplog.messages if "cannot be resolved" in line]
    assert len(lines) == (0 if error is None else len(hosts))
    for line, host in zip(lines, hosts, strict=False):
        assert f"the advertised host '{host}' of " in line and remedy in line


@pytest.mark.parametrize("host", ["10.0.0.1", "0.0.0.0", "::", "mq1.example.org"])
def test_without_a_secret_no_node_listens_beyond_loopback(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mqd import daemon

    started = []

    async def fake(options: StartOptions, seams: daemon.Seams) -> None:
        started.append(options.peers.nodes[1].host)

    monkeypatch.setattr(daemon, "main", fake)
    monkeypatch.setattr("mqd.logs.set_up", lambda level: None)
    peers = tmp_path / "peers.toml"
    text = PEERS.replace("127.0.0.1", host) + 'advertised_host = "a"\n'
    peers.write_text(text)
    arguments = ["start", "--peers", str(peers), "--node", "1", "--data", str(tmp_path / "data")]
    assert main(arguments) == FAILURE and started == []
    refusal = capsys.readouterr().err
    assert (
        f"{host}:2 without a cluster secret" in refusal
        and "--insecure-peers" in refusal
        and "cluster_secret_file" in refusal
    )
    assert main([*arguments, "--insecure-peers"]) == OK and started == [host]
    peers.write_text('cluster_secret = "sixteen letters, or more"\n' + text)
    assert main(arguments) == OK and started == [host, host]
    for here in ("localhost", "127.0.0.3", "::1"):
        peers.write_text(text.replace(host, here))
        assert main(arguments) == OK and started[-1] == here


def test_voters_are_forced_on_a_stopped_node_only(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from uuid import uuid4

    from mqd.io.disk import OsDisk
    from mqd.raft.journal_start import open_journal

    peers, data = tmp_path / "peers.toml", tmp_path / "data"
    peers.write_text(PEERS)
    arguments = ["force-voters", "--peers", str(peers), "--node", "1", "--data", str(data)]
    assert main(arguments) == USAGE and "Re-run with --yes" in capfd.readouterr().err
    assert main([*arguments, "--yes"]) == FAILURE and "has no metadata" in capfd.readouterr().err
    disk = OsDisk()
    journal = open_journal(disk, data / "metadata", cluster_id="c", node_id=1, new_uuid=uuid4)
    journal.set_first_voters(frozenset({1, 2, 3}))
    journal.flush()
    journal.close()
    lock = disk.lock(data / ".lock")
    assert (
        main([*arguments, "--yes"]) == FAILURE and "stop all nodes first" in capfd.readouterr().err
    )
    lock.close()
    assert (
        main([*arguments, "--yes"]) == OK and "has voters [1] (epoch 1)" in capfd.readouterr().out
    )
    journal = open_journal(disk, data / "metadata", cluster_id="c", node_id=1, new_uuid=uuid4)
    assert (
        journal.voter_set is not None
        and journal.voter_set.voters == frozenset({1})
        and not journal.records_voters
    )
    journal.close()


def test_parsing_the_arguments_imports_nothing_heavy() -> None:
    code = (
        "import sys, mqd.__main__ as m; m.main(['start', '--peers', 'p', '--node', 'x', "
        "'--data', 'd']); print(*sys.modules)"
    )
    loaded = run("-c", code).stdout.split()
    for heavy in (
        "trio",
        "construct",
        "click",
        "dataclasses",
        "logging",
        "asyncio",
        "socket",
        "yaml",
    ):
        assert heavy not in loaded


def test_the_configuration_imports_only_the_standard_library_and_base_modules() -> None:
    loaded = run("-c", "import sys, mqd.config; print(*sys.modules)").stdout.split()
    assert {name for name in loaded if name.startswith("mqd.")} <= {
        "mqd.config", "mqd.config_sources", "mqd.errors", "mqd.file_modes", "mqd.limits",
        "mqd.option_table", "mqd.options", "mqd.peers", "mqd.types",
    }  # fmt: skip
    for heavy in ("trio", "construct", "tomllib", "difflib", "logging", "json", "socket"):
        assert heavy not in loaded


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["start", "--confg", "x"], "no such option: '--confg'. Did you mean '--config'?"),
        (["start", "--pe=x"], "no such option: '--pe'. Did you mean '--peers'?"),
        (["dev", "--xyzzy"], "no such option: '--xyzzy'\n"),
        (["--versoin"], "no such option: '--versoin'. Did you mean '--version'?"),
        (["-V"], "no such option: '-V'. Did you mean '--version'?"),
        (["start", "-x"], "no such option: '-x'\n"),
        (["start", "-p"], "no such option: '-p'. Did you mean '--peers'?"),
        (["storage", "--hlp"], "no such option: '--hlp'. Did you mean '--help'?"),
        (["start", "-ox=1", "--node", "-1"], "are required: --peers, --data"),
    ],
)
def test_an_unknown_option_suggests_the_nearest(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == USAGE
    assert error in capsys.readouterr().err


@pytest.mark.parametrize("command", ["add-user", "hash-password"])
def test_a_password_file_that_cannot_be_read(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff")
    of_command = ["--data", str(tmp_path)] if command == "add-user" else []
    for path, reason in (
        (tmp_path / "nope", "No such file or directory"),
        (binary, "it is not UTF-8"),
    ):
        assert main(["storage", command, "x", *of_command, "--password-file", str(path)]) == FAILURE
        assert capsys.readouterr().err == (
            f"mqd: --password-file '{path}' cannot be read ({reason}); specify a readable file\n"
        )


@pytest.mark.parametrize("command", ["start", "dev", "config list", "force-voters"])
def test_a_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == OK
    assert f"\nExample: mqd {command} " in capsys.readouterr().out
