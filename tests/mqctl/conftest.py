"""Runs mqctl like a user, with a fake broker on loopback."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqctl.__main__ import main
from tests.client.loopback import Loopback, loopback
from tests.ran import Ran


@pytest.fixture
def served() -> Iterator[Loopback]:
    with loopback() as broker:
        yield broker


@pytest.fixture
def mqctl(
    served: Loopback,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Callable[..., Ran]:
    monkeypatch.setenv("MQCTL_BOOTSTRAP", served.address)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["mqctl", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capfd.readouterr()
        return Ran(int(caught.value.code or 0), out, err)

    return run
