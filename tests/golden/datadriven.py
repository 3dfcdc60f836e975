"""Transcripts: commands, `----`, and the output that the real cores gave.

The format is that of cockroachdb/datadriven, which etcd's Raft uses. A transcript starts with
comment lines that state what it shows. Then come blocks, with an empty line between them:

    # A comment belongs to the block below it.
    command argument name=value
    command
    ----
    output of all commands of the block

A driver is a class; its method `high_watermark` is the command `high-watermark`. The annotations of
the method give the type of each argument. Positional parameters have no name in a transcript, and
keyword-only parameters are `name=value`, or `name` alone for a bool. A command returns its output
lines, and an MqError of a core is the output `refused: CODE`. A block without output prints `ok`.
"""

from __future__ import annotations

import difflib
import inspect
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

from mqd.errors import MqError

SEPARATOR = "----"


class BadTranscript(Exception):
    """A transcript that cannot be run: the file, the line and the reason."""


@dataclass
class Command:
    line: int
    text: str


@dataclass
class Block:
    """The lines before `----` as they are, the commands among them, and the recorded output."""

    lines: list[str] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    output: list[str] = field(default_factory=list)


def parse(path: Path) -> list[Block]:
    """The blocks of a transcript; comments behind the last one are a block without commands."""
    blocks = [Block()]
    in_output = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        block = blocks[-1]
        if line == SEPARATOR:
            if in_output or not block.commands:
                raise BadTranscript(f"{path}:{number}: {SEPARATOR} without a command before it")
            in_output = True
        elif in_output and line:
            block.output.append(line)
        elif in_output:
            blocks.append(Block())
            in_output = False
        else:
            block.lines.append(line)
            if line and not line.startswith("#"):
                block.commands.append(Command(number, line))
    if not in_output and blocks[-1].commands:
        last = blocks[-1].commands[-1]
        raise BadTranscript(f"{path}:{last.line}: no {SEPARATOR} behind {last.text!r}")
    return blocks


def run(path: Path, driver: Any) -> str:
    """The transcript with the output that the driver gives now."""
    written: list[str] = []
    blocks = parse(path)
    for block in blocks:
        written += block.lines
        if block.commands:
            output = [line for one in block.commands for line in _call(path, driver, one)]
            written += [SEPARATOR, *(output or ["ok"]), ""]
    return "\n".join(written).rstrip("\n") + "\n"


def compare(path: Path, driver: Any) -> str | None:
    """A readable difference between the recorded and the present output; None if they agree."""
    recorded, now = path.read_text(encoding="utf-8"), run(path, driver)
    if recorded == now:
        return None
    difference = difflib.unified_diff(
        recorded.splitlines(), now.splitlines(), "recorded", "now", lineterm="", n=6
    )
    return "\n".join([f"{path}: the output is not the recorded one", *difference])


def _call(path: Path, driver: Any, command: Command) -> Iterator[str]:
    """Run one command; its output lines."""
    place = f"{path}:{command.line}"
    name, *words = shlex.split(command.text)
    method = getattr(driver, name.replace("-", "_"), None)
    if name.startswith("_") or not inspect.ismethod(method):
        raise BadTranscript(f"{place}: unknown command {name!r}")
    positional, named = _arguments(place, method, words)
    try:
        output = method(*positional, **named)
    except MqError as refusal:
        output = [f"refused: {refusal.code.name}"]
    except Exception as error:
        error.add_note(f"{place}: {command.text}")
        raise
    for line in [output] if isinstance(output, str) else output or []:
        assert line and line == line.rstrip(), (place, line)
        yield line


def _arguments(
    place: str, method: Callable[..., Any], words: list[str]
) -> tuple[list[Any], dict[str, Any]]:
    signature = inspect.signature(method, eval_str=True)
    parameters = signature.parameters
    places = [one for one in parameters.values() if one.kind is not one.KEYWORD_ONLY]
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.replace("-", "_")
        parameter = parameters.get(name)
        if parameter is not None and parameter.kind is parameter.KEYWORD_ONLY:
            if name in named:
                raise BadTranscript(f"{place}: argument {name!r} is there twice")
            if not equals and parameter.annotation is not bool:
                raise BadTranscript(f"{place}: argument {name!r} has no value")
            named[name] = _read(place, parameter, text if equals else "yes")
        elif equals or not places:
            raise BadTranscript(f"{place}: unknown argument {word!r}")
        else:
            parameter = places[0]
            if parameter.kind is not parameter.VAR_POSITIONAL:
                del places[0]
            positional.append(_read(place, parameter, word))
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        raise BadTranscript(f"{place}: {error}") from None
    return positional, named


def _read(place: str, parameter: inspect.Parameter, text: str) -> Any:
    kind = parameter.annotation
    if isinstance(kind, UnionType):  # X | None: None is the default
        kind = get_args(kind)[0]
    try:
        if kind is bool:
            return {"yes": True, "no": False}[text]
        if get_origin(kind) is tuple:
            item = get_args(kind)[0]
            return tuple(item(one) for one in text.split(",") if one)
        return kind(text)
    except (ValueError, KeyError):
        raise BadTranscript(f"{place}: argument {parameter.name!r} cannot be {text!r}") from None
