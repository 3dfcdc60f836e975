"""Outcomes of commands about several things: some may succeed while others fail.

`finish` reports the failures and sets the exit code. `ListsByBroker` merges lists that come from
several brokers. Some of them may not respond.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mqctl.app import PARTIAL, Failure, failure_of, print_error
from mqd.errors import some_of

if TYPE_CHECKING:
    from mqd.client.errors import ClientError

ItemT = TypeVar("ItemT")
_NAMED_MAX = 5


def is_pattern(name: str) -> bool:
    """Whether an argument is a pattern (* and ?) and not a name."""
    return "*" in name or "?" in name


def without_match(
    kind: str, arguments: Iterable[str], names: Collection[str]
) -> dict[str, ClientError]:
    """For `finish`: the patterns among `arguments` that match none of `names`. `kind`: "topic" or
    "group".
    """
    from mqd.client.errors import ClientError
    from mqd.errors import ErrorCode

    remedy = f"list the {kind}s with `mqctl {kind} list`"
    return {
        pattern: ClientError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if kind == "topic"
            else ErrorCode.GROUP_ID_NOT_FOUND,
            f"no {kind} matches {pattern!r}",
            remedy=remedy,
        )
        for pattern in dict.fromkeys(arguments)
        if is_pattern(pattern) and not any(fnmatchcase(name, pattern) for name in names)
    }


def finish(results: Mapping[Any, object]) -> None:
    """Print each ClientError among `results` once, with the keys that have it. Then exit with
    code 3 if some results failed, 1 or 4 if all did; return if none did.
    """
    from mqd.client.errors import ClientError

    failures = {
        key: failure_of(error) for key, error in results.items() if isinstance(error, ClientError)
    }
    if not failures:
        return
    keys_by_text: dict[tuple[str, str], list[str]] = {}
    for key, failure in failures.items():
        keys_by_text.setdefault((failure.message, failure.remedy), []).append(str(key))
    for (message, remedy), keys in keys_by_text.items():
        if not all(key in message for key in keys):
            message = f"{some_of(keys, _NAMED_MAX)}: {message}"
        print_error(Failure(message, remedy=remedy))
    raise SystemExit(
        PARTIAL
        if len(failures) < len(results)
        else max(failure.exit_code for failure in failures.values())
    )


class ListsByBroker(Generic[ItemT]):
    """A list whose items come from several brokers, such as the groups of a cluster."""

    def __init__(self, outcomes: Mapping[int, list[ItemT] | ClientError]) -> None:
        self.results = {f"broker {broker}": outcome for broker, outcome in outcomes.items()}
        """The list of each broker, or its error, for `finish`."""
        self.rows = sorted(
            each for outcome in outcomes.values() if isinstance(outcome, list) for each in outcome
        )  # type: ignore[type-var]
        """The items of all brokers, in order."""
        self.failed = [
            name for name, outcome in self.results.items() if not isinstance(outcome, list)
        ]
        """The brokers that did not return a list."""

    def with_failures(self, results: Mapping[str, object]) -> Mapping[str, object]:
        """`results` of items chosen from this list. If a broker failed, the choice is incomplete:
        then also the brokers, so that `finish` reports it.
        """
        return {**results, **self.results} if self.failed else results
