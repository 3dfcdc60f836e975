"""mqd starts only with the PySyncObj version that it supports, and cannot reach pickle in it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pysyncobj.journal
import pysyncobj.pickle
import pysyncobj.syncobj as core
import pysyncobj.version
import pytest

from mqd.raft import pysyncobj_pinned as pinned


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pysyncobj.version, "VERSION", "0.3.18")
    with pytest.raises(
        ImportError, match=r"mqd needs pysyncobj 0\.3\.17, found 0\.3\.18: run pip install"
    ):
        pinned.check_pysyncobj()


def test_another_source_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    changed = tmp_path / "syncobj.py"
    changed.write_bytes(Path(core.__file__).read_bytes() + b"# patched\n")
    module = ModuleType("syncobj")
    module.__file__ = str(changed)
    monkeypatch.setattr(pinned, "_SOURCES", {module: pinned._SOURCES[core]})
    with pytest.raises(
        ImportError, match=r"syncobj\.py is not that of pysyncobj 0\.3\.17.*reinstall"
    ):
        pinned.check_pysyncobj()
    changed.unlink()
    with pytest.raises(ImportError, match="cannot read"):
        pinned.check_pysyncobj()


def test_missing_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(core.SyncObj, "_SyncObj__tryLogCompaction")
    with pytest.raises(ImportError, match="lacks _SyncObj__tryLogCompaction"):
        pinned.check_pysyncobj()


def test_pickle_raises() -> None:
    for call in (
        pysyncobj.pickle.loads,
        pysyncobj.pickle.load,
        pysyncobj.pickle.dumps,
        pysyncobj.pickle.dump,
        pysyncobj.journal.loads,
    ):
        with pytest.raises(AssertionError, match="nothing in mqd is ever pickled"):
            call(b"")


def test_time_is_read_at_the_call() -> None:
    with pinned.at(5.0):
        assert core.monotonicTime() == 5.0
        with pinned.at(7.0):
            assert core.monotonicTime() == 7.0
        assert core.monotonicTime() == 5.0
    assert core.monotonicTime() > 7.0
