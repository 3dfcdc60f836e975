"""The shell of mqd-spark: lazy commands, options, exit codes, tables, progress. No Spark."""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import subprocess
import sys
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pyspark_mqd.pipelines import cli, progress, report, session
from pyspark_mqd.pipelines.__main__ import COMMANDS, cli as group


def settings_from(*arguments: str) -> cli.Settings:
    got: list[cli.Settings] = []

    @click.command()
    @cli.options(spark=True, stream=True)
    def command(settings: cli.Settings) -> None:
        got.append(settings)

    command.main([*arguments], standalone_mode=False)
    return got[0]


def test_shared_options_become_settings() -> None:
    settings = settings_from(
        *("-b", "a:1,b:2", "--checkpoint", "c", "--conf", "spark.x=1=2", "--available-now"),
        *("--client", "request.timeout.ms=5", "--client", "kafka.security.protocol=SSL"),
    )
    assert settings.conf == {"spark.x": "1=2"}
    assert settings.trigger.arguments() == {"availableNow": True}
    assert settings.source_options() == {
        "kafka.bootstrap.servers": "a:1,b:2",
        "kafka.request.timeout.ms": "5",
        "kafka.security.protocol": "SSL",
    }


def test_triggers() -> None:
    assert settings_from("--checkpoint", "c").trigger.arguments() == {}
    given = settings_from("--checkpoint", "c", "--trigger", "10 seconds").trigger
    assert given.arguments() == {"processingTime": "10 seconds"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--checkpoint", "c", "--conf", "novalue"),
        ("--checkpoint", "c", "--trigger", "often"),
        ("--checkpoint", "c", "--trigger", "1 second", "--available-now"),
        (),
    ],
)
def test_wrong_usage_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    with pytest.raises(click.UsageError):
        settings_from(*arguments)


def test_the_list_of_commands_imports_none_of_them() -> None:
    probe = (
        "import sys\n"
        "from pyspark_mqd.pipelines.__main__ import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        "names = ('pyarrow', 'mqd.client', 'pyspark_mqd.pipelines.archive')\n"
        "assert not any(name in sys.modules for name in names), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


def every_command() -> list[tuple[list[str], click.Command]]:
    """Every command and subcommand of mqd-spark, with its words."""

    def below(words: list[str], command: click.Command) -> list[tuple[list[str], click.Command]]:
        found = [(words, command)]
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                found += below([*words, name], inner)
        return found

    return below([], group)


VERBS = (
    *("Abort", "Aggregate", "Change", "Check", "Commit", "Compare", "Copy", "Count", "Find"),
    *("Group", "List", "Merge", "Run", "Send", "Show", "Write"),
)


@pytest.mark.parametrize(
    ("words", "command"), [pytest.param(*each, id=" ".join(each[0])) for each in every_command()]
)
def test_help_has_a_verb_defaults_and_an_example(words: list[str], command: click.Command) -> None:
    shown = CliRunner().invoke(group, [*words, "--help"]).output
    example = shown.partition("Example:")[2]
    assert " ".join(["mqd-spark", *words, ""]) in f"{example.splitlines()[0]} "
    summary = shown.split("\n\n")[1].split()
    assert summary[0].strip(",") in VERBS and summary[-1].endswith(".")
    assert '[default: ""]' not in shown and "[default: ]" not in shown
    assert "letter" not in shown.lower().replace("dead letter", "").replace("dead\n", "")
    for option in command.params:
        help_text = getattr(option, "help", None)
        assert not isinstance(option, click.Option) or (help_text and help_text[-1] in ".]")
        if isinstance(option.default, str | int | float | tuple) and option.default:
            assert "[default: " in shown


RECIPES = {
    "avro_registry": ("fastavro", "--registry", "http://127.0.0.1:1"),
    "protobuf_values": ("google.protobuf", "--descriptor", __file__, "--message", "m"),
    "json_values": ("", "--columns", "id bigint"),
}


@pytest.mark.parametrize("name", RECIPES)
def test_help_of_recipes_has_a_verb_defaults_and_an_example(name: str) -> None:
    command = importlib.import_module(f"pyspark_mqd.recipes.{name}").command
    for flag in ("-h", "--help"):
        shown = CliRunner().invoke(command, [flag]).output
        assert f"Example: python -m pyspark_mqd.recipes.{name} " in shown
        assert shown.split("\n\n")[1].split()[0] == "Write" and "[default: table]" in shown


@pytest.mark.parametrize("name", ["avro_registry", "protobuf_values"])
@pytest.mark.parametrize("pandas", [False, True])
def test_a_recipe_without_its_packages_is_one_sentence(name: str, pandas: bool) -> None:
    module, *given = RECIPES[name]
    hidden = "pandas" if pandas else module
    probe = (
        f"import runpy, sys; sys.modules[{hidden!r}] = None;"
        f"runpy.run_module('pyspark_mqd.recipes.{name}', run_name='__main__', alter_sys=True)"
    )
    shared = ("--topics", "t", "--to", "d", "--dlq", "q", "--checkpoint", "c")
    done = subprocess.run(
        [sys.executable, "-c", probe, *given, *shared], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        f"error: The recipe needs the Python module '{hidden}', which is not installed.\n"
        "  Run: pip install 'mqd[recipes]'\n"
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (cli.Failure("It failed."), 1),
        (cli.Failure("Confirm.", exit_code=cli.USAGE), 2),
        (click.UsageError("no"), 2),
        (KeyboardInterrupt(), 130),
        (cli.Terminated(), 143),
        (FileNotFoundError(2, "No such file", "lake"), 1),
    ],
)
def test_exit_codes(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def fail() -> None:
        raise error

    with pytest.raises(SystemExit) as end:
        cli.guarded(fail)
    assert end.value.code == code


def test_signals_wait_for_the_end_of_a_call() -> None:
    signals = cli.Signals()
    done = []
    for number, kind in ((2, KeyboardInterrupt), (15, cli.Terminated)):
        with pytest.raises(kind), signals.held():
            signals._arrived(number, None)
            done.append(number)
        with pytest.raises(kind):
            signals._arrived(number, None)
    assert done == [2, 15]
    with signals.held():
        pass


def test_a_signal_rises_in_place_of_the_error_that_it_causes() -> None:
    signals = cli.Signals()
    ended: list[str] = []
    with pytest.raises(cli.Terminated), signals.held(lambda: ended.append("jvm")):
        signals._arrived(15, None)
        raise ConnectionRefusedError
    assert ended == ["jvm"] and signals.arrived is cli.Terminated
    with pytest.raises(ConnectionRefusedError), signals.held():
        raise ConnectionRefusedError


@pytest.mark.parametrize(("kind", "code"), [(KeyboardInterrupt, 130), (cli.Terminated, 143)])
def test_errors_after_a_signal_are_its_exit_code(
    kind: type[BaseException], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(cli.signals, "arrived", kind)

    def fail() -> None:
        try:
            raise kind
        finally:
            raise ConnectionRefusedError

    with pytest.raises(SystemExit) as end:
        cli.guarded(fail)
    assert end.value.code == code


def test_our_own_errors_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(ZeroDivisionError):
        cli.guarded(lambda: 1 / 0)


def test_an_error_of_a_python_worker_is_one_sentence() -> None:
    text = (
        "[STREAM_FAILED] Query failed\nTraceback (most recent call last):\n  File x\n"
        "mqd.client.errors.ClientError: Topic 'a' does not exist.\n"
    )
    assert cli.spark_message(text) == "Topic 'a' does not exist."
    masked = "pyspark_mqd.errors.OptionError: Remove it.\nUnboundLocalError: no local 'reader'"
    assert cli.spark_message(masked) == "Remove it."
    assert cli.spark_message("\n[PATH_NOT_FOUND] Path x\n at y") == "[PATH_NOT_FOUND] Path x"


def test_consent_is_refused_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(cli.Failure, match="confirmation") as failed:
        cli.confirm("Topic 'a' is written to.", yes=False)
    assert failed.value.exit_code == cli.USAGE
    cli.confirm("Topic 'a' is written to.", yes=True)


def test_tables_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    columns = (report.Column("topic", "TOPIC"), report.Column("records", "RECORDS", right=True))
    rows: list[dict[str, Any]] = [
        {"topic": "a\x1b[2J", "records": 1_234_567},
        {"topic": "longer-topic", "records": None},
    ]
    assert report.table(columns, rows) == (
        "TOPIC           RECORDS\na\\x1b[2J      1,234,567\nlonger-topic          -\n"
    )
    report.show("json", columns, [{"key": b"k\xff"}])
    assert json.loads(capsys.readouterr().out) == [{"key": "k\\xff"}]
    report.show_summary("table", {"files_written": 3})
    assert capsys.readouterr().out == "files written  3\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere() -> None:
    now = [0.0]
    for stream in (Terminal(), io.StringIO()):
        now[0] = 0.0
        with progress.Progress("archive", total=100, stream=stream, clock=lambda: now[0]) as bar:
            for step in range(1, 11):
                now[0] += 2.0
                bar.update(step * 10)
        written = stream.getvalue()
        if stream.isatty():
            assert written.count("\r") == 11 and written.endswith("\n")
            assert "[############............]  50%  50 of 100 records  5/s  10s left" in written
        else:
            assert "\r" not in written and len(written.splitlines()) == 2


def test_progress_without_work_writes_nothing() -> None:
    stream = io.StringIO()
    with progress.Progress("archive", stream=stream):
        pass
    assert stream.getvalue() == ""


def test_lengths_of_time() -> None:
    assert [progress.seconds(each) for each in (0.4, 61, 3700)] == ["0s", "1m01s", "1h01m"]


def test_options_of_the_command_win_over_defaults_and_spark_submit_keeps_its_master() -> None:
    settings = cli.Settings(conf={"spark.log.level": "INFO"})
    local = session.settings_for(settings, {"a": "1"}, submitted=False)
    assert local["spark.master"] == "local[*]" and local["spark.ui.enabled"] == "false"
    assert local["spark.log.level"] == "INFO" and local["a"] == "1"
    submitted = session.settings_for(settings, {}, submitted=True)
    assert "spark.master" not in submitted and "spark.driver.host" not in submitted
    given: Any = session.settings_for(cli.Settings(master="spark://h:7"), {}, submitted=True)
    assert given["spark.master"] == "spark://h:7"
