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
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import click

from mqctl import render

if TYPE_CHECKING:
    from trio import CancelScope

    from mqd.client.cluster import ClusterClient
    from mqd.client.errors import ClientError

OK, FAILED, USAGE, PARTIAL, TIMED_OUT = range(5)
INTERRUPTED = 130
READER_GONE = 141

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 3.0
"""For one node to accept a connection and respond: a frozen node delays the others no longer."""
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
        """Raises UsageError with the command that was probably meant."""
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing:
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


class Failure(Exception):
    """Ends the command: a message, what to do, and the exit code."""

    def __init__(self, message: str, *, remedy: str = "", exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.exit_code = exit_code


class ReaderGone(Exception):
    """The reader of standard output closed it (`| head`): stop, without a message."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options that every command has."""

    bootstrap: str
    output: str
    timeout_s: float

    def show(self, columns: Sequence[render.Column], rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a list of things."""
        if self.output == "table":
            write(render.table(columns, rows, bold=wants_colour(sys.stdout)))
        elif self.output == "jsonl":
            write("".join(render.to_json(row, indent=None) for row in rows))
        else:
            self.show_data(list(rows))

    def show_data(self, data: Any) -> None:
        """Write one thing as JSON or YAML."""
        write(
            render.to_yaml(data)
            if self.output == "yaml"
            else render.to_json(data, indent=None if self.output == "jsonl" else 2)
        )


@dataclass(slots=True)
class _Run:
    """One run of a command: what `guarded` needs to write errors as data."""

    output: str = "table"
    written: bool = False
    """Whether anything went to standard output."""
    failures: list[Failure] = field(default_factory=list)

    def write_errors(self, exit_code: int) -> None:
        """With -o json, jsonl or yaml, standard output gets a document also when a command
        fails before it has a result.
        """
        if self.written or self.output not in ("json", "jsonl", "yaml") or not self.failures:
            return
        errors = [
            {"message": each.message, "remedy": each.remedy or None} for each in self.failures
        ]
        Settings(DEFAULT_BOOTSTRAP, self.output, DEFAULT_TIMEOUT_S).show_data(
            {"errors": errors, "exit_code": exit_code}
        )


_run = _Run()


def options(function: FunctionT) -> FunctionT:
    """--bootstrap, --output and --timeout; the command takes them as one `settings`."""

    def gather(
        bootstrap: str | None, output: str | None, timeout: float | None, **rest: Any
    ) -> Any:
        return function(settings_of(bootstrap, output, timeout), **rest)

    gather.__doc__ = function.__doc__
    gather.__name__ = function.__name__
    gather.__dict__.update(function.__dict__)
    return shared_options(gather)  # type: ignore[return-value]


def offline_options(function: FunctionT) -> FunctionT:
    """--output alone, for commands that ask no node; the command takes it in `settings`."""

    def gather(output: str | None, **rest: Any) -> Any:
        return function(settings_of(None, output, None), **rest)

    gather.__doc__ = function.__doc__
    gather.__name__ = function.__name__
    gather.__dict__.update(function.__dict__)
    return _output_option(gather)  # type: ignore[return-value]


def settings_of(
    bootstrap: str | None,
    output: str | None,
    timeout: float | None,
    *,
    default_output: str = "table",
) -> Settings:
    """What was given to the command, else before its name, else in the environment, else
    the default.
    """
    above: dict[str, Any] = click.get_current_context().find_root().obj or {}
    _run.output = output or above.get("output") or default_output
    return Settings(
        bootstrap=bootstrap
        or above.get("bootstrap")
        or os.environ.get("MQCTL_BOOTSTRAP")
        or DEFAULT_BOOTSTRAP,
        output=_run.output,
        timeout_s=timeout or above.get("timeout") or DEFAULT_TIMEOUT_S,
    )


def parse_pairs(pairs: tuple[str, ...]) -> dict[str, str]:
    """`key=value` arguments as a dict; a usage error quotes what is not one."""
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
    """The three options themselves, also those before the command's name."""
    for option in (
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS",
            help="Timeout of each request to the cluster. [default: 15]",
        ),
        _output_option,
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
    """Connect, do the work, and turn what went wrong into a Failure."""
    return run_timed(settings, lambda client, _: work(client))


def run_timed(
    settings: Settings, work: Callable[[ClusterClient, float], Awaitable[ResultT]]
) -> ResultT:
    """As `run`; the work is told by when (Trio's clock) --timeout is over, and heeds it as
    far as it wants to.
    """
    import trio

    from mqd.client.cluster import connect, parse_bootstrap
    from mqd.client.errors import ClientCrashed, ClientError

    try:
        parse_bootstrap(settings.bootstrap)
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
            ) as client:
                scope.deadline = math.inf
                result = await work(client, deadline)
        return result

    try:
        return trio.run(main)
    except ClientCrashed:
        raise  # a defect: its traceback is wanted
    except ClientError as error:
        raise failure_of(error) from None
    except BaseExceptionGroup as group:
        # Ctrl-C pressed twice, or sent to us and to our group
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from None
        raise _only(group) from None


@contextmanager
def in_time(deadline: float, message: str) -> Iterator[CancelScope]:
    """Raises DeadlineExceeded with this message where the block has not ended by then."""
    import trio

    from mqd.client.errors import DeadlineExceeded

    with trio.CancelScope(deadline=deadline) as scope:
        yield scope
    if scope.cancelled_caught:
        raise DeadlineExceeded(message)


def failure_of(error: Exception) -> Failure:
    """A ClientError as the end of a command."""
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
    """The one exception of a group of one; the group itself otherwise."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def finish(results: Mapping[Any, object]) -> None:
    """Report the errors among results for several things, and end the command accordingly:
    some failed 3, all failed 1.
    """
    from mqd.client.errors import ClientError
    from mqd.errors import some_of

    failures = {
        key: failure_of(error) for key, error in results.items() if isinstance(error, ClientError)
    }
    if not failures:
        return
    told: dict[tuple[str, str], list[str]] = {}
    for key, failure in failures.items():
        told.setdefault((failure.message, failure.remedy), []).append(str(key))
    for (message, remedy), keys in told.items():
        if not all(key in message for key in keys):
            message = f"{some_of(keys, 5)}: {message}"
        complain(Failure(message, remedy=remedy))
    raise SystemExit(
        PARTIAL
        if len(failures) < len(results)
        else max(failure.exit_code for failure in failures.values())
    )


class Told(Generic[ResultT]):
    """What the nodes have of a list: `rows` in order, and for `finish` the `results` by
    node; `silent` are those that did not say.
    """

    def __init__(self, told: Mapping[int, list[ResultT] | ClientError]) -> None:
        self.results = {f"node {node}": outcome for node, outcome in told.items()}
        self.rows = sorted(
            each for outcome in told.values() if isinstance(outcome, list) for each in outcome
        )  # type: ignore[type-var]
        self.silent = [
            name for name, outcome in self.results.items() if not isinstance(outcome, list)
        ]

    def beside(self, results: Mapping[str, object]) -> Mapping[str, object]:
        """Results for things that were looked for in this list: with the nodes, if not all
        of them said what they have.
        """
        return {**results, **self.results} if self.silent else results


def confirm(plan: str, *, yes: bool) -> None:
    """Show what will happen and ask for confirmation, unless `yes`. Fails without a terminal."""
    if yes:
        return
    say(plan)
    if not sys.stdin.isatty():
        raise Failure(
            "this command asks for confirmation, and standard input is not a terminal",
            remedy="check the plan above, then re-run with --yes to confirm",
            exit_code=USAGE,
        )
    if not click.confirm("Continue?", err=True):
        raise Failure("cancelled: nothing was changed")


# -- writing


def write(data: str | bytes) -> None:
    """Data, to standard output. Raises ReaderGone when nobody reads it any more."""
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
    """What was written goes out now."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None


def say(text: str) -> None:
    """A line for people, to standard error."""
    print(render.printable(text, keep="\n"), file=sys.stderr)


def complain(failure: Failure) -> None:
    """What happened and why, then what to do, to standard error."""
    _run.failures.append(failure)
    label = "\x1b[31merror:\x1b[0m" if wants_colour(sys.stderr) else "error:"
    print(f"{label} {render.printable(failure.message)}", file=sys.stderr)
    if failure.remedy:
        print(f"  {render.printable(failure.remedy)}", file=sys.stderr)


def wants_colour(stream: Any) -> bool:
    """Colour only on a terminal, and not against the user's wish (no-color.org)."""
    return (
        bool(stream.isatty())
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def _output_in(arguments: Sequence[str]) -> str:
    """The value of -o or --output, for errors in the arguments themselves: click reports
    those before it has read them all.
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


def guarded(main: Callable[[], Any]) -> NoReturn:
    """Run the command line and exit with the right code, whatever happens."""
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
            complain(failure)
            code = failure.exit_code
        except click.ClickException as error:
            error.show()
            _run.failures.append(Failure(error.format_message()))
            code = error.exit_code
        _run.write_errors(code if isinstance(code, int) else FAILED)
        flush()
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except ReaderGone:
        # or the interpreter complains when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = READER_GONE
    raise SystemExit(code)
