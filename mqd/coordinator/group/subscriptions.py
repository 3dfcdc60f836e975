"""Subscriptions of consumer groups: the topics that regular expressions match, and a hash that
changes with any topic.

The size of an expression is bounded (expressions.py), and a `Resolution` works in slices, so no
expression blocks the node (I41).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from typing import Any, Protocol
from uuid import UUID

from mqd.coordinator.expressions import compilation_steps, compiled, matching_steps
from mqd.coordinator.shard import TopicsView
from mqd.errors import ErrorCode, MqError
from mqd.limits import EXPRESSION_CHARS_MAX, EXPRESSION_STEPS


def compile_expression(text: str) -> Any:
    """Raises MqError INVALID_REGULAR_EXPRESSION if the text is not valid, or is too large."""
    try:
        return compiled(text)
    except ValueError as cause:
        raise MqError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{text[:EXPRESSION_CHARS_MAX]}` is not a valid regular "
            f"expression: {cause}.",
        ) from None


class Resolution:
    """A search for the topics that expressions match, among those that existed at its start.

    A topic matches when the expression matches its whole name.
    """

    def __init__(self, expressions: Iterable[str], topics: TopicsView) -> None:
        """Others than valid expressions were refused when a member sent them. An earlier release
        may have accepted one: it matches no topic.
        """
        self.version = topics.version
        self.matched: dict[str, list[str]] = {text: [] for text in sorted(set(expressions))}
        self._names = sorted(topics.names())
        self._texts = list(self.matched)
        self._pattern: Any = None
        """The compiled expression that is matched now. The others take no memory."""
        self._next = 0

    @property
    def done(self) -> bool:
        return self._next >= len(self._names) * len(self._texts)

    def advance(self, steps: int = EXPRESSION_STEPS) -> bool:
        """Match at least one name, and more for so many steps. True when all names are matched."""
        while not self.done and steps > 0:
            which, position = divmod(self._next, len(self._names))
            text, name = self._texts[which], self._names[position]
            if position == 0:
                try:
                    self._pattern = compile_expression(text)
                except MqError:
                    self._next += len(self._names)
                    continue
                steps -= compilation_steps(text)
            if self._pattern.fullmatch(name) is not None:
                self.matched[text].append(name)
            steps -= matching_steps(self._pattern, name)
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


class _Named(Protocol):
    @property
    def topic_names(self) -> tuple[str, ...]: ...


def subscribed_names(
    names: Counter[str],
    known: Collection[str],
    leaving: Iterable[_Named] = (),
    joining: _Named | None = None,
) -> set[str]:
    """The `known` topics that a member subscribes to by name, as if some members had left and
    one had joined. `names`: how many members name a topic; they may name many other topics.
    """
    added = frozenset(() if joining is None else joining.topic_names)
    removed = Counter(name for member in leaving for name in member.topic_names if name in known)
    if len(known) > len(names):
        return {
            name
            for name in names.keys() | added
            if name in known and (name in added or names[name] > removed[name])
        }
    return {
        name for name in known if name in added or (name in names and names[name] > removed[name])
    }


def count_names(counter: Counter[str], names: Iterable[str], by: int) -> None:
    """Add 1 or -1 for each name. A name with the count 0 is not kept."""
    if by == 1:
        counter.update(names)
        return
    pop = counter.pop  # `Counter.__delitem__` takes as long as all else here
    for name in names:
        count = counter[name]
        if count > 1:
            counter[name] = count - 1
        else:
            pop(name)
