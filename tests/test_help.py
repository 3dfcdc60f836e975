"""Every entry point has help: --help of each command and sub-command ends with 0 and shows no raw
source.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from mqctl.__main__ import cli
from mqd import __main__ as mqd
from mqd.command_line import parser as parser_of_mqd


def of_click(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from of_click(inner, (*path, name))


def of_argparse(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    yield path
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from of_argparse(inner, (*path, name))


@pytest.mark.parametrize("path", list(of_click(cli)), ids=" ".join)
def test_mqctl(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*path, "--help"], prog_name="mqctl", standalone_mode=False) == 0
    looks_right(capsys.readouterr().out, " ".join(("Usage: mqctl", *path)))


@pytest.mark.parametrize("path", list(of_argparse(parser_of_mqd())), ids=" ".join)
def test_mqd(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert mqd.main([*path, "--help"]) == 0
    looks_right(capsys.readouterr().out, " ".join(("usage: mqd", *path)))


@pytest.mark.parametrize("module", ["mqd", "mqctl", "chaos.kill9", "bench.produce_fetch"])
def test_modules(module: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, timeout=30
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    looks_right(ran.stdout, "sage: ")


def looks_right(text: str, begins: str) -> None:
    assert begins in text.splitlines()[0]
    assert "\\b" not in text
    assert "\b" not in text
    assert "Traceback" not in text
    for metavar in ("INTEGER", "FILENAME", "FLOAT"):
        assert metavar not in text, "name what the value is: N, FILE, SECONDS"
