"""How a defect is planted: a few methods of the product are replaced while `Bug.planted` is
entered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

Patches = Iterator[tuple[Any, str, Any]]


@dataclass(frozen=True, slots=True)
class Bug:
    """`patches` yields (object, attribute, replacement)."""

    meaning: str
    patches: Callable[[], Patches]
    load: str = "plain"
    """The load of the runs that must find it (mqd/testing/settings.py)."""
    nodes: int = 3
    """How many nodes these runs have."""
    security: str = "PLAINTEXT"
    """The security of these runs."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The product has this defect inside the block."""
        entered = []
        try:
            for owner, name, replacement in self.patches():
                planted = patch.object(owner, name, replacement)
                planted.start()
                entered.append(planted)
            yield
        finally:
            for planted in reversed(entered):
                planted.stop()


BUGS: dict[str, Bug] = {}
"""Name -> defect."""


def bug(
    meaning: str, *, load: str = "plain", nodes: int = 3, security: str = "PLAINTEXT"
) -> Callable[[Callable[[], Patches]], Callable[[], Patches]]:
    """Register the decorated generator of patches under its name."""

    def note(patches: Callable[[], Patches]) -> Callable[[], Patches]:
        BUGS[patches.__name__.replace("_", "-")] = Bug(meaning, patches, load, nodes, security)
        return patches

    return note
