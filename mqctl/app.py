"""What all commands share: options, output, errors, exit codes, and groups with lazy imports.

Data goes to standard output, everything else to standard error. Exit codes: 0 success, 1 failure,
2 usage error, 3 partial failure, 4 timeout; 130 after Ctrl-C, 141 when standard output was closed.
"""

from __future__ import annotations

import difflib
import math
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from mqctl import profiles, render
from mqctl.failure import (
    FAILED as FAILED,
    OK as OK,
    PARTIAL as PARTIAL,
    TIMED_OUT as TIMED_OUT,
    USAGE as USAGE,
    Failure as Failure,
)

if TYPE_CHECKING:
    from trio import CancelScope

    from mqd.client.admin import Admin
    from mqd.client.cluster import ClusterClient
    from mqd.client.security import Security

INTERRUPTED = 130
READER_GONE = 141

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 3.0
"""Timeout of a connection to one broker: a frozen broker delays a command by at most this."""
FORMATS = ("table", "json", "jsonl", "yaml")
ALIASES = {"ls": "list"}
"""Other names of commands, in groups that have the command."""

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
ResultT = TypeVar("ResultT")


class LazyGroup(click.Group):
    """A group that imports the module of a command only when it is called, or its help is shown."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        """`lazy`: command name -> ("module:attribute", one line of help)."""
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = self._without_alias(cmd_name)
        if cmd_name not in self._lazy:
            return None
        module, attribute = self._lazy[cmd_name][0].split(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises UsageError that suggests the command with the most similar name."""
        name = args[0]
        if self._without_alias(name) not in self._lazy and not ctx.resilient_parsing:
            close = difflib.get_close_matches(name, self._lazy, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            raise click.UsageError(f"No such command '{name}'.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def _without_alias(self, name: str) -> str:
        alias = ALIASES.get(name, name)
        return alias if alias in self._lazy else name

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._lazy.items()])


class ReaderGone(Exception):
    """The reader of standard output closed it (`| head`): stop, without a message."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options that every command has."""

    bootstrap: str
    output: str
    timeout_s: float
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Client properties: TLS and login."""

    def show(self, columns: Sequence[render.Column], rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows: as a table, or as a list in JSON or YAML. An empty list is written at the end
        of the command, unless the command fails: then its errors are the document."""
        if self.output != "table" and not rows:
            _run.found_nothing = True
        elif self.output == "table":
            write(render.table(columns, rows, bold=wants_colour(sys.stdout)))
        elif self.output == "jsonl":
            write("".join(render.to_json(row, indent=None) for row in rows))
        else:
            self.show_data(list(rows))

    def show_found(
        self, columns: Sequence[render.Column], rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Like `show`, but without a table of no rows."""
        if rows or self.output != "table":
            self.show(columns, rows)

    def show_data(self, data: Any) -> None:
        """Write one value as JSON or YAML."""
        write(
            render.to_yaml(data)
            if self.output == "yaml"
            else render.to_json(data, indent=None if self.output == "jsonl" else 2)
        )


@dataclass(slots=True)
class _Run:
    """The state of one run, for `guarded`: it writes errors as data if there is no result."""

    output: str = "table"
    written: bool = False
    """Whether standard output has received anything."""
    found_nothing: bool = False
    """Whether the result is an empty list, which is not written yet."""
    failures: list[Failure] = field(default_factory=list)

    def write_rest(self, exit_code: int) -> None:
        """With -o json, jsonl or yaml: write the errors as a document, unless the command has
        already written its result. Write an empty result if the command succeeds, or succeeds in
        part.
        """
        if self.written or self.output not in ("json", "jsonl", "yaml"):
            return
        settings = Settings(DEFAULT_BOOTSTRAP, self.output, DEFAULT_TIMEOUT_S)
        if self.found_nothing and (not self.failures or exit_code == PARTIAL):
            if self.output != "jsonl":
                settings.show_data([])
            return
        if not self.failures:
            return
        errors = [
            {"message": each.message, "remedy": each.remedy or None} for each in self.failures
        ]
        settings.show_data({"errors": errors, "exit_code": exit_code})


_run = _Run()


def options(function: FunctionT) -> FunctionT:
    """Add --output and those of `connection_options`; the command receives them as `settings`."""

    def gather(
        bootstrap: str | None,
        output: str | None,
        timeout: float | None,
        command_config: str | None,
        profile: str | None,
        **rest: Any,
    ) -> Any:
        settings = settings_of(
            bootstrap, output, timeout, command_config=command_config, profile=profile
        )
        return function(settings, **rest)

    gather.__doc__ = function.__doc__
    gather.__name__ = function.__name__
    gather.__dict__.update(function.__dict__)
    return shared_options(gather)  # type: ignore[return-value]


def offline_options(function: FunctionT) -> FunctionT:
    """Add only --output, for commands without a connection; they receive it in `settings`."""

    def gather(output: str | None, **rest: Any) -> Any:
        return function(_output_settings(output), **rest)

    gather.__doc__ = function.__doc__
    gather.__name__ = function.__name__
    gather.__dict__.update(function.__dict__)
    return _output_option(gather)  # type: ignore[return-value]


def settings_of(
    bootstrap: str | None,
    output: str | None,
    timeout: float | None,
    *,
    command_config: str | None = None,
    profile: str | None = None,
    default_output: str = "table",
) -> Settings:
    """The value of each option: from the command's own options, else from the options before the
    command's name, else from the environment, else the default.
    """
    above: dict[str, Any] = click.get_current_context().find_root().obj or {}
    _run.output = output or above.get("output") or default_output
    profile = profile or above.get("profile")
    command_config = command_config or above.get("command_config")
    properties = profiles.properties(profile, command_config, warn=print_message)
    saved = properties.get("bootstrap.servers")
    return Settings(
        bootstrap=bootstrap
        or above.get("bootstrap")
        or (saved if profile or command_config else None)
        or os.environ.get("MQCTL_BOOTSTRAP")
        or saved
        or DEFAULT_BOOTSTRAP,
        output=_run.output,
        timeout_s=timeout or above.get("timeout") or DEFAULT_TIMEOUT_S,
        properties=properties,
    )


def _output_settings(output: str | None) -> Settings:
    """Settings of a command without a connection."""
    above: dict[str, Any] = click.get_current_context().find_root().obj or {}
    _run.output = output or above.get("output") or "table"
    return Settings(DEFAULT_BOOTSTRAP, _run.output, DEFAULT_TIMEOUT_S)


def parse_pairs(pairs: tuple[str, ...]) -> dict[str, str]:
    """`key=value` arguments as a dict. Raises click.BadParameter that quotes the invalid one."""
    parsed = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"invalid setting {pair!r}: expected key=value")
        parsed[name] = value
    return parsed


_output_option = click.option(
    "-o", "--output", type=click.Choice(FORMATS), help="Output format. [default: table]"
)


def shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, or to the group before the command's name."""
    return connection_options(_output_option(function))


def connection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --bootstrap, --timeout, --command-config and --profile."""
    for option in (
        click.option(
            "--profile",
            metavar="NAME",
            help="Saved address and credentials (`mqctl profile`). [env: MQCTL_PROFILE; default: "
            "the profile of `mqctl profile use`]",
        ),
        click.option(
            "--command-config",
            metavar="FILE",
            help="Properties file with Kafka's client properties, such as security.protocol. "
            "[env: MQCTL_COMMAND_CONFIG]",
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS",
            help="Timeout of the requests to the cluster. [default: 15]",
        ),
        click.option(
            "-b",
            "--bootstrap",
            metavar="HOST:PORT,..",
            help=f"Bootstrap servers. [env: MQCTL_BOOTSTRAP; default: {DEFAULT_BOOTSTRAP}]",
        ),
    ):
        function = option(function)
    return function


# -- running


def run(settings: Settings, work: Callable[[ClusterClient], Awaitable[ResultT]]) -> ResultT:
    """Connect, call `work`, and turn a ClientError into a Failure."""
    return run_timed(settings, lambda client, _: work(client))


def run_admin(settings: Settings, work: Callable[[Admin], Awaitable[ResultT]]) -> ResultT:
    """Connect, call `work` with an admin client whose calls take at most --timeout, and turn a
    ClientError into a Failure.
    """

    async def with_admin(client: ClusterClient) -> ResultT:
        from mqd.client.admin import Admin

        return await work(Admin(client, timeout_s=settings.timeout_s))

    return run(settings, with_admin)


def run_timed(
    settings: Settings, work: Callable[[ClusterClient, float], Awaitable[ResultT]]
) -> ResultT:
    """Like `run`. `work` also receives the deadline of --timeout (Trio's clock), and must apply
    it itself.
    """
    import trio

    from mqd.client.bootstrap import parse_bootstrap
    from mqd.client.cluster import connect
    from mqd.client.errors import ClientCrashed, ClientError

    try:
        parse_bootstrap(settings.bootstrap)
        security = _security(settings.properties)
    except ClientError as error:
        raise Failure(error.message, remedy=error.remedy, exit_code=USAGE) from None

    async def main() -> ResultT:
        timeout_s = settings.timeout_s
        deadline = trio.current_time() + timeout_s
        with in_time(
            deadline, f"no response from {settings.bootstrap} within {timeout_s:g} s"
        ) as scope:
            async with connect(
                settings.bootstrap,
                client_id="mqctl",
                request_timeout_s=timeout_s,
                connect_timeout_s=CONNECT_TIMEOUT_S,
                security=security,
            ) as client:
                scope.deadline = math.inf
                result = await work(client, deadline)
        return result

    try:
        return trio.run(main)
    except ClientCrashed:
        raise  # a bug: show the traceback
    except ClientError as error:
        raise failure_of(error) from None
    except BaseExceptionGroup as group:
        # Ctrl-C was pressed twice, or reached both this process and its process group
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from None
        raise _only(group) from None


def _security(properties: Mapping[str, str]) -> Security | None:
    """TLS and login; None without any. Raises InvalidValue."""
    if not properties:
        return None
    from mqd.client.client_properties import security_of

    return security_of(properties)


@contextmanager
def in_time(deadline: float, message: str) -> Iterator[CancelScope]:
    """Cancels the block at `deadline`, and raises DeadlineExceeded with `message`."""
    import trio

    from mqd.client.errors import DeadlineExceeded

    with trio.CancelScope(deadline=deadline) as scope:
        yield scope
    if scope.cancelled_caught:
        raise DeadlineExceeded(message)


def failure_of(error: Exception) -> Failure:
    """The Failure for a ClientError: its message, its remedy and the exit code."""
    from mqd.client.errors import ClientError
    from mqd.errors import ErrorCode

    assert isinstance(error, ClientError)
    timed_out = error.code is ErrorCode.REQUEST_TIMED_OUT
    remedy = error.remedy or ("check the cluster with `mqctl cluster health`" if timed_out else "")
    return Failure(
        error.message or error.code.name,
        remedy=remedy,
        exit_code=TIMED_OUT if timed_out else FAILED,
    )


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception in a group of one; otherwise the group itself."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def confirm(plan: str, *, yes: bool) -> None:
    """Show what will happen and ask for confirmation, unless `yes`. Fails without a terminal."""
    if yes:
        return
    print_message(plan)
    if not sys.stdin.isatty():
        raise Failure(
            "this command asks for confirmation, and standard input is not a terminal",
            remedy="check what it would change (above), then re-run with --yes",
            exit_code=USAGE,
        )
    if not click.confirm("Continue?", err=True):
        raise Failure("cancelled: nothing was changed")


# -- writing


def write(data: str | bytes) -> None:
    """Write data to standard output. Raises ReaderGone if its reader has closed it."""
    _run.written = True
    try:
        if isinstance(data, bytes):
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
        else:
            sys.stdout.write(data)
    except BrokenPipeError:
        raise ReaderGone from None


def flush() -> None:
    """Flush standard output. Raises ReaderGone if its reader has closed it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None


def print_message(text: str) -> None:
    """Print a message to standard error."""
    print(render.printable(text, keep="\n"), file=sys.stderr)


def print_error(failure: Failure) -> None:
    """Print what happened and why, then what to do, to standard error."""
    _run.failures.append(failure)
    label = "\x1b[31merror:\x1b[0m" if wants_colour(sys.stderr) else "error:"
    print(f"{label} {render.printable(failure.message)}", file=sys.stderr)
    if failure.remedy:
        print(f"  {render.printable(failure.remedy)}", file=sys.stderr)


def wants_colour(stream: Any) -> bool:
    """Whether to colour output: only on a terminal, unless NO_COLOR is set (no-color.org)."""
    return (
        bool(stream.isatty())
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def _output_in(arguments: Sequence[str]) -> str:
    """The value of -o or --output. Needed for usage errors, which click reports before it has
    parsed all arguments.
    """
    for name, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if name == "--":
            break
        if name in ("-o", "--output") and value in FORMATS:
            return value
        for prefix in ("--output=", "-o"):
            if name.startswith(prefix) and name.removeprefix(prefix) in FORMATS:
                return name.removeprefix(prefix)
    return "table"


def suggesting(error: click.ClickException) -> click.ClickException:
    """The error of an unknown option suggests the most similar one, or none. click compares the
    dashes too, which makes all options similar.
    """
    if not isinstance(error, click.NoSuchOption):
        return error
    names = {each.lstrip("-"): each for each in error.possibilities or ()}
    close = difflib.get_close_matches(error.option_name.lstrip("-"), names, n=1)
    hint = f" Did you mean '{names[close[0]]}'?" if close else ""
    return click.NoSuchOption(error.option_name, f"{error.message}{hint}", ctx=error.ctx)


def guarded(main: Callable[[], Any]) -> NoReturn:
    """Run the command line, print its errors, and exit with the exit code of the outcome."""
    global _run
    _run = _Run(output=_output_in(sys.argv[1:]))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    code: int | str | None = OK
    try:
        try:
            main()
        except SystemExit as end:
            code = end.code
        except Failure as failure:
            print_error(failure)
            code = failure.exit_code
        except click.ClickException as caught:
            error = suggesting(caught)
            error.show()
            _run.failures.append(Failure(error.format_message()))
            code = error.exit_code
        _run.write_rest(code if isinstance(code, int) else FAILED)
        flush()
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except ReaderGone:
        # the interpreter flushes at its end, and would report an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = READER_GONE
    raise SystemExit(code)
