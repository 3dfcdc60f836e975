"""Subscriptions of consumer groups: the topics that regular expressions match, and a hash that
changes with any topic.

Expressions are those of RE2, as in Apache Kafka's coordinator. RE2 has no backreferences and no
lookaround. Its time grows only with the length of the name and the size of the expression. That
size is bounded, and a `Resolution` works in slices, so no expression blocks the node (I41).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from typing import Any
from uuid import UUID

import re2

from mqd.coordinator.shard import TopicsView
from mqd.errors import ErrorCode, MqError
from mqd.limits import SUBSCRIPTION_REGEX_MEMORY, SUBSCRIPTION_REGEX_STEPS

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = SUBSCRIPTION_REGEX_MEMORY
_COMPILATION_STEPS = 20_000
"""The time to compile an expression, 30 to 200 microseconds, in steps of matching."""


def compile_expression(text: str) -> Any:
    """Raises MqError INVALID_REGULAR_EXPRESSION if the text is not valid, or is too large."""
    try:
        return re2.compile(text, _OPTIONS)
    except re2.error as error:
        [cause] = error.args or ("invalid",)
        cause = cause.decode("utf-8", "replace") if isinstance(cause, bytes) else str(cause)
        raise MqError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{text}` is not a valid regular expression: {cause}.",
        ) from None


class Resolution:
    """A search for the topics that expressions match, among those that existed at its start.

    A topic matches when the expression matches its whole name.
    """

    def __init__(self, expressions: Iterable[str], topics: TopicsView) -> None:
        """All expressions are valid: others were refused when a member sent them."""
        self.version = topics.version
        self.matched: dict[str, list[str]] = {text: [] for text in sorted(set(expressions))}
        self._names = sorted(topics.names())
        self._texts = list(self.matched)
        self._pattern: Any = None
        """Of the expression that is matched now. The others take no memory."""
        self._next = 0

    @property
    def done(self) -> bool:
        return self._next >= len(self._names) * len(self._texts)

    def advance(self, steps: int = SUBSCRIPTION_REGEX_STEPS) -> bool:
        """Match at least one name, and more for so many steps. True when all names are matched."""
        while not self.done and steps > 0:
            which, position = divmod(self._next, len(self._names))
            text, name = self._texts[which], self._names[position]
            if position == 0:
                self._pattern = compile_expression(text)
                steps -= _COMPILATION_STEPS
            if self._pattern.fullmatch(name) is not None:
                self.matched[text].append(name)
            steps -= len(name) * self._pattern.programsize
            self._next += 1
        return self.done


def topic_digest(topic_id: UUID, name: str, racks: Iterable[frozenset[str]]) -> bytes:
    """It changes with the topic's id, its name, the number of partitions, or the racks of the
    replicas of any partition."""
    texts: dict[frozenset[str], str] = {}
    written = []
    for of_partition in racks:
        text = texts.get(of_partition)
        if text is None:
            text = texts[of_partition] = repr(sorted(of_partition))
        written.append(text)
    return blake2b(
        f"({topic_id.hex!r}, {name!r}, [{', '.join(written)}])".encode(), digest_size=16
    ).digest()


def topics_hash(topics: TopicsView, names: Collection[str]) -> int:
    """A signed 64-bit hash of the existing topics of these names; 0 for none. Every node computes
    the same (KIP-1101)."""
    existing = [found for name in sorted(names) if (found := topics.digest(name))]
    if not existing:
        return 0
    return int.from_bytes(blake2b(b"".join(existing), digest_size=8).digest(), "big", signed=True)


def subscribed_topics(
    names: Iterable[str], expression: str, resolved: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    """The topics of a member's subscription. An unresolved expression matches none."""
    return frozenset(names) | (resolved.get(expression, frozenset()) if expression else frozenset())
