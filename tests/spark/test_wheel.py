"""The wheel, in a virtual environment outside of the checkout: what is in it, and that it
starts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ("mqd", "mqctl", "spark")
FILES = ("pyproject.toml", "README.md", "LICENSE")
PROGRAM_SECONDS = 100
READ = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
reader = spark.read.format("mqd").option("kafka.bootstrap.servers", "127.0.0.1:1")
print("columns:", *reader.option("subscribe", "t").load().columns)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def _run(command: list[str], folder: Path, **environment: str) -> str:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYSPARK"))}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "tests" / "spark", source / "tests" / "spark")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    _run([*command, "--no-build-isolation", "--wheel-dir", str(folder), str(source)], folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def binaries(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel. Its other packages are those of this
    environment: the path to them leads to no editable install, since only a site folder's own .pth
    files count.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    _run([*command, "--no-deps", "--no-index", str(wheel)], folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def test_every_package_is_in_the_wheel_and_no_test(wheel: Path) -> None:
    names = [PurePosixPath(name) for name in zipfile.ZipFile(wheel).namelist()]
    packed = {str(name) for name in names if name.suffix == ".py"}
    expected = {
        str(path.relative_to(base))
        for base, package in ((ROOT, "mqd"), (ROOT, "mqctl"), (ROOT / "spark", "pyspark_mqd"))
        for path in (base / package).rglob("*.py")
    }
    assert packed == expected
    assert PurePosixPath("mqd/py.typed") in names
    roots = {name.parts[0] for name in names if not name.parts[0].endswith(".dist-info")}
    assert roots == {"mqd", "mqctl", "pyspark_mqd"}


@pytest.mark.parametrize("program", ["mqd", "mqctl", "mqd-spark"])
def test_a_program_starts(binaries: Path, tmp_path: Path, program: str) -> None:
    assert _run([str(binaries / program), "--help"], tmp_path).lower().startswith("usage: ")


def test_the_packages_are_those_of_the_wheel(binaries: Path, tmp_path: Path) -> None:
    text = (
        "import mqd, mqctl, pyspark_mqd; print(mqd.__file__, mqctl.__file__, pyspark_mqd.__file__)"
    )
    for path in _run([str(binaries / "python"), "-c", text], tmp_path).split():
        assert Path(path).is_relative_to(binaries.parent)


@pytest.mark.spark
def test_spark_finds_the_format(binaries: Path, tmp_path: Path) -> None:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, and this machine has none")
    program = tmp_path / "read.py"
    program.write_text(READ)
    python = str(binaries / "python")
    found = _run(
        [python, str(program)], tmp_path, PYSPARK_PYTHON=python, SPARK_LOCAL_IP="127.0.0.1"
    )
    assert "columns: key value topic partition offset timestamp timestampType" in found
