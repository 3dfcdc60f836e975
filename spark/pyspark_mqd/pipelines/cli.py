"""What all commands of `mqd-spark` share: options, failures and exit codes, and the lazy group.

A command is a module `pyspark_mqd/pipelines/<name>.py` with a click command object `command`. It is
imported when it is called, so that `mqd-spark --help` needs neither Spark nor Java.

    @click.command()
    @options(spark=True, stream=True)
    @click.option("--topics", required=True)
    def command(settings: Settings, topics: str) -> None: ...

Data goes to standard output, everything else to standard error. Exit codes: 0 ok, 1 failed or
violations found, 2 wrong usage; 130 after Ctrl-C, 143 after SIGTERM.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

import click

OK, FAILED, USAGE = range(3)
INTERRUPTED = 130
TERMINATED = 143
READER_GONE = 141

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_MASTER = "local[*]"
HELP_NAMES = {"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 100}

_INTERVAL = re.compile(r"\d+ *(millisecond|second|minute|hour|day)s?")

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class Failure(Exception):
    """Ends the command: what happened and why, what to do, and the exit code."""

    def __init__(self, message: str, *, remedy: str = "", exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.exit_code = exit_code


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported when they are called."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        """`lazy`: command name -> ("module:attribute", one line of help)."""
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, attribute = self._lazy[cmd_name][0].split(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        command.context_settings = {**HELP_NAMES, **command.context_settings}
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._lazy.items()])


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a streaming query starts its next micro-batch. `available_now`: it reads all that is
    available, then ends. `interval`: one micro-batch in each. Neither: as soon as the previous one
    is done."""

    available_now: bool = False
    interval: str | None = None

    def arguments(self) -> dict[str, Any]:
        """Arguments for `DataStreamWriter.trigger`; empty for Spark's default."""
        if self.available_now:
            return {"availableNow": True}
        return {} if self.interval is None else {"processingTime": self.interval}


@dataclass(frozen=True, slots=True)
class Settings:
    """The options that commands share. Those that a command does not take have their defaults."""

    bootstrap: str = DEFAULT_BOOTSTRAP
    output: str = "table"
    client: Mapping[str, str] = field(default_factory=dict)
    """Options of the client, with the prefix `kafka.`, for the format `mqd`."""
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    verbose: bool = False
    """Show the errors that Spark logs, with their Java stack traces."""
    checkpoint: str = ""
    trigger: Trigger = Trigger()

    def source_options(self) -> dict[str, str]:
        """Options of the format `mqd` that name the cluster."""
        return {**self.client, "kafka.bootstrap.servers": self.bootstrap}


def options(*, spark: bool = False, stream: bool = False) -> Callable[[FunctionT], FunctionT]:
    """--bootstrap, --client and --output; with `spark` --master, --conf and --verbose; with
    `stream` --checkpoint, --trigger and --available-now. The command takes them as one `settings`.
    """
    shared = [*_CLUSTER, *(_SPARK if spark else ()), *(_STREAM if stream else ())]

    def decorate(function: FunctionT) -> FunctionT:
        def gather(**given: Any) -> Any:
            settings = settings_of(given)
            return function(settings, **given)

        gather.__doc__ = function.__doc__
        gather.__name__ = function.__name__
        gather.__dict__.update(function.__dict__)
        decorated: Any = gather
        for option in reversed(shared):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


def settings_of(given: dict[str, Any]) -> Settings:
    """The shared options out of `given`, from which they are removed."""
    interval, available_now = given.pop("trigger", None), given.pop("available_now", False)
    if available_now and interval is not None:
        raise click.UsageError("--trigger and --available-now exclude each other. Drop one of them")
    if interval is not None and _INTERVAL.fullmatch(interval) is None:
        raise click.BadParameter(
            f"{interval!r} is not an interval. Write, for example, '10 seconds'",
            param_hint="--trigger",
        )
    return Settings(
        bootstrap=given.pop("bootstrap", DEFAULT_BOOTSTRAP),
        output=given.pop("output", "table"),
        client={
            **client_of_file(given.pop("command_config", None)),
            **_client_of(given.pop("client", ())),
        },
        master=given.pop("master", None),
        conf=parse_pairs(given.pop("conf", ()), "--conf"),
        verbose=given.pop("verbose", False),
        checkpoint=given.pop("checkpoint", ""),
        trigger=Trigger(available_now, interval),
    )


def parse_pairs(pairs: Sequence[str], option: str) -> dict[str, str]:
    """`key=value` arguments as a dict; a usage error quotes what is not one."""
    parsed = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{pair!r} is not of the form key=value", param_hint=option)
        parsed[name] = value
    return parsed


def split_list(text: str) -> list[str]:
    """Parts of a comma-separated option, without blanks."""
    return [part.strip() for part in text.split(",") if part.strip()]


def topics_of(topics: str | None, pattern: str | None) -> list[str]:
    """`--topics` as names; empty with `--topics-pattern`. A usage error unless one is given."""
    if topics is not None and pattern is not None:
        raise click.UsageError("Specify only one of --topics and --topics-pattern")
    if topics is None and pattern is None:
        raise click.UsageError("Specify the topics: --topics NAME,.. or --topics-pattern REGEX")
    return split_list(topics or "")


def check_source(source: Mapping[str, str]) -> None:
    """Find mistakes in the options of a streaming source before Spark starts: a usage error."""
    from pyspark_mqd.errors import OptionError
    from pyspark_mqd.options import parse_options

    try:
        parse_options(source, streaming=True)
    except OptionError as error:
        raise click.UsageError(str(error)) from None


def _client_of(given: Sequence[str]) -> dict[str, str]:
    """`--client` as options of the format `mqd`; a usage error names an unknown property."""
    if not given:
        return {}
    from pyspark_mqd.errors import OptionError
    from pyspark_mqd.option_names import refuse_unknown_client

    pairs = {
        name.removeprefix("kafka."): value for name, value in parse_pairs(given, "--client").items()
    }
    try:
        refuse_unknown_client(pairs)
    except OptionError as error:
        raise click.BadParameter(str(error), param_hint="--client") from None
    return {f"kafka.{name}": value for name, value in pairs.items()}


def is_security_option(name: str) -> bool:
    """Whether an option of the format `mqd` is for TLS or login."""
    from mqd.client.client_properties import is_security_key

    return is_security_key(name.removeprefix("kafka."))


def client_of_file(path: str | None, hint: str = "--command-config") -> dict[str, str]:
    """The properties for TLS and login of a file, as options of the format `mqd`."""
    if path is None:
        return {}
    from mqd.client.client_properties import is_security_key, read_client_properties
    from mqd.client.errors import ClientError

    try:
        found = read_client_properties(Path(path))
    except ClientError as error:
        raise click.BadParameter(error.message, param_hint=hint) from None
    return {f"kafka.{name}": value for name, value in found.items() if is_security_key(name)}


output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    help="Format of the result.",
)
_CLUSTER = (
    click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT,..",
        default=DEFAULT_BOOTSTRAP,
        help="Bootstrap servers.",
    ),
    click.option(
        "--client",
        metavar="KEY=VALUE",
        multiple=True,
        help="Set a client option, such as request.timeout.ms=10000. Repeat it for more.",
    ),
    click.option(
        "--command-config",
        metavar="FILE",
        help="Properties file with Kafka's client properties for TLS and login.",
    ),
    output_option,
)
_SPARK = (
    click.option(
        "--master",
        metavar="URL",
        help=f"Spark master  [default: {DEFAULT_MASTER}, or that of spark-submit]",
    ),
    click.option(
        "--conf",
        metavar="KEY=VALUE",
        multiple=True,
        help="Set a Spark setting. Repeat it for more.",
    ),
    click.option(
        "--verbose", is_flag=True, help="Show the errors that Spark logs, with stack traces."
    ),
)
_STREAM = (
    click.option(
        "--checkpoint",
        metavar="DIR",
        required=True,
        help="Store the query's progress in DIR; a restart with the same DIR resumes.",
    ),
    click.option(
        "--trigger",
        metavar="INTERVAL",
        help="Start a micro-batch every INTERVAL, such as '10 seconds'"
        "  [default: as soon as the last one is done]",
    ),
    click.option(
        "--available-now",
        is_flag=True,
        help="Process the records that are available now, then exit.",
    ),
)


accept_option = click.option(
    "--accept-missing-markers", is_flag=True,
    help="Write the next micro-batch although its markers may have expired. Use it for one start.",
)  # fmt: skip


def confirm(plan: str, *, yes: bool) -> None:
    """Print the plan and require a confirmation, unless `yes`.

    Raises Failure without a terminal.
    """
    if yes:
        return
    print(plan, file=sys.stderr)
    if not sys.stdin.isatty():
        raise Failure(
            "The command needs a confirmation, and standard input is not a terminal.",
            remedy="Re-run with --yes to confirm.",
            exit_code=USAGE,
        )
    if not click.confirm("Continue?", err=True):
        raise Failure("Nothing was done.")


# -- running


class Terminated(BaseException):
    """SIGTERM arrived: the command ends as after Ctrl-C, and leaves no process behind."""


class Signals:
    """Ctrl-C and SIGTERM, held back while a call to the JVM is under way.

    An exception in the middle of such a call breaks its connection. So a loop that polls makes its
    calls in `held`, and sleeps outside of it.
    """

    def __init__(self) -> None:
        self.arrived: type[BaseException] | None = None
        """The first signal of this process. It ends the JVM, too, if it goes to the whole group."""
        self._is_held = False
        self._pending: type[BaseException] | None = None
        self._on_arrival: Callable[[], None] | None = None

    def install(self) -> None:
        """Take both signals. PySpark takes SIGINT for itself, so call this again after that."""
        signal.signal(signal.SIGINT, self._arrived)
        signal.signal(signal.SIGTERM, self._arrived)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        kind = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        self.arrived = self.arrived or kind
        if not self._is_held:
            raise kind
        self._pending = kind
        if self._on_arrival is not None:
            self._on_arrival()

    @contextmanager
    def held(self, on_arrival: Callable[[], None] | None = None) -> Iterator[None]:
        """A signal that arrives in the block rises at its end, in place of an error of the block.

        `on_arrival` is called in the signal handler: it makes the block end soon.
        """
        self._is_held, self._on_arrival = True, on_arrival
        try:
            yield
        except Exception:
            if self._pending is None:
                raise
        finally:
            self._is_held, self._on_arrival = False, None
            kind, self._pending = self._pending, None
        if kind is not None:
            raise kind


signals = Signals()


def guarded(main: Callable[[], Any]) -> NoReturn:
    """Run the command line and exit with the right code, whatever happens."""
    signals.install()
    code: int | str | None = OK
    try:
        try:
            main()
        except SystemExit as end:
            code = end.code
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except Terminated:
        code = TERMINATED
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains
        code = READER_GONE
    except Exception as error:
        if signals.arrived is not None:  # for example: the signal has ended the JVM, too
            raise SystemExit(code_after(signals.arrived)) from None
        failure = failure_of(error)
        if failure is None:
            raise
        complain(failure)
        code = failure.exit_code
    raise SystemExit(code)


def code_after(kind: type[BaseException]) -> int:
    """The exit code after a signal."""
    return TERMINATED if kind is Terminated else INTERRUPTED


def failure_of(error: Exception) -> Failure | None:
    """An expected error as the end of a command; None for an error of our own."""
    from mqd.client.errors import ClientError
    from pyspark_mqd.errors import ConnectorError

    if isinstance(error, Failure):
        return error
    if isinstance(error, ConnectorError):
        return Failure(str(error))
    if isinstance(error, ClientError):
        return Failure(error.message or error.code.name, remedy=error.remedy)
    if type(error).__name__ == "JavaMissing":
        return Failure(str(error))
    if "pyspark.errors" in sys.modules:
        from pyspark.errors import PySparkException

        if isinstance(error, PySparkException):
            return Failure(spark_message(str(error)))
    if isinstance(error, OSError) and error.filename is not None:
        return Failure(f"'{error.filename}': {error.strerror or error}.")
    return None


_PYTHON_ERROR = re.compile(r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Failure|Loss|Missing)): (.+)$")


_FLAGS = (
    (
        "set option 'acceptMissingMarkers' to 'true' for one start to write the batch",
        "re-run once with --accept-missing-markers to write the batch",
    ),
)
"""What a user of `mqd-spark` does in place of setting an option of the sink."""


def spark_message(text: str) -> str:
    """The sentence that matters in an error of Spark: the connector's own, else the last one of
    Python's, else the first line."""
    lines = [line.strip() for line in text.splitlines()]
    own = [line.partition(": ")[2] for line in lines if line.startswith("pyspark_mqd.")]
    if own and own[-1]:
        message = own[-1]
        for option, flag in _FLAGS:
            message = message.replace(option, flag)
        return message
    python = [found[1] for line in lines if (found := _PYTHON_ERROR.match(line))]
    if python:
        return python[-1]
    return next((line for line in lines if line), "Spark failed without a message.")


def complain(failure: Failure) -> None:
    """What happened and why, then what to do, to standard error."""
    print(f"error: {failure.message}", file=sys.stderr)
    if failure.remedy:
        print(f"  {failure.remedy}", file=sys.stderr)
