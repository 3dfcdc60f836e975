"""Rules of the source: which layer may import which, which modules a core may use, and conventions.

The layers are those of docs/ARCHITECTURE.md. Change a rule here and there in the same commit.
"""

from __future__ import annotations

import ast
import gc
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

LAYERS: tuple[frozenset[str], ...] = (
    frozenset(
        {
            *("__init__", "types", "errors", "limits", "usage", "peers", "logs", "file_modes"),
            *("memory_plan", "topic_names", "client_metrics", "java_pattern", "java_translation"),
            *("config", "config_file", "config_sources", "resource_configs"),
            *("options", "option_table", "option_listing", "back_off", "delay_names"),
            "header_numbers",
        }
    ),
    frozenset({"protocol"}),
    frozenset({"security"}),
    frozenset({"io"}),
    frozenset({"log", "client"}),
    frozenset({"replica", "raft"}),
    frozenset({"relay"}),
    frozenset({"share"}),
    frozenset({"coordinator", "controller"}),
    frozenset({"server", "http"}),
    frozenset({"node"}),
    frozenset({"daemon"}),
    frozenset({"testing"}),
    frozenset({"dev_security"}),
    frozenset({"dev"}),
    frozenset({"command_line"}),
    frozenset({"storage_commands"}),
    frozenset({"__main__"}),
)
"""Parts of `mqd`, lowest layer first. A part imports only from layers below it. Parts of one layer
do not import each other, except in the lowest layer.
"""

BASE_MODULES = LAYERS[0]
EXTERNAL_PACKAGES = ("mqctl", "spark", "chaos", "bench")
"""Packages that use `mqd` from outside: only `mqd.client`, `mqd.protocol`, `mqd.testing` and the
base modules, no module of a broker.
"""
EXTERNAL_MAY_USE = BASE_MODULES | {"client", "protocol", "testing"}
EXTERNAL_OFFLINE_PARTS = {"mqctl": frozenset({"log", "io", "relay"}), "chaos": frozenset({"io"})}
"""`mqctl log dump|verify` reads a data directory while no broker does. `mqctl delay list` computes
when records are due, as the relay does. `chaos` makes certificates
(io/certificates.py), and counts the connections that a client opens (io/net.py).
"""

IO_MODULES = frozenset(
    {
        "trio",
        "os",
        "time",
        "random",
        "socket",
        "threading",
        "asyncio",
        "select",
        "signal",
        "subprocess",
        "secrets",
    }
)
"""Modules that only a shell imports."""
DISK_CALLS = frozenset(
    {
        "boot_id",
        "free_bytes",
        "make_directory",
        "offload",
        "read_bytes",
        "remove_tree",
        "sync_directory",
        "total_bytes",
        "write_atomic",
    }
)
"""Methods of `mqd.io.disk.Disk` whose names nothing else has."""
FILE_CALLS = frozenset({"append", "fileno", "read_at", "sync", "truncate", "write_at"})
"""Methods of `mqd.io.disk.File`, called on something that is named `file` or `_file`."""

SHELL_FOLDERS = (
    "mqd/client/",
    "mqd/http/",
    "mqd/io/",
    "mqd/log/disk/",
    "mqd/log/manager/",
    "mqd/node/",
    "mqd/raft/",
    "mqd/server/",
    "mqd/testing/",
)
"""Any file in these may be a shell, unless its docstring declares it a core."""
SHELLS = frozenset(
    {
        *("mqd/__main__.py", "mqd/daemon.py", "mqd/dev.py", "mqd/logs.py"),
        "mqd/storage_commands.py",
        "mqd/dev_security.py",
        *("mqd/controller/channel.py", "mqd/controller/lifecycle.py"),
        *("mqd/controller/operations.py", "mqd/controller/producer_id_manager.py"),
        *("mqd/controller/replica_reports.py", "mqd/controller/session_watch.py"),
        *("mqd/controller/topic_creation.py",),
        *("mqd/coordinator/context.py", "mqd/coordinator/deadlines.py"),
        *("mqd/coordinator/loader.py", "mqd/coordinator/results.py"),
        *("mqd/coordinator/txn/marker_sender.py",),
        *("mqd/relay/delay_relay.py", "mqd/relay/producer.py", "mqd/relay/reading.py"),
        *("mqd/relay/sharing.py",),
        *("mqd/replica/assignments.py",),
        *("mqd/replica/fetchers.py", "mqd/replica/isr_changes.py"),
        *("mqd/replica/offline.py", "mqd/replica/ports.py"),
        *("mqd/relay/timer_files.py", "mqd/relay/timer_index.py", "mqd/relay/timer_run.py"),
        *("mqd/share/acquiring.py", "mqd/share/dead_letter_writer.py"),
        *("mqd/share/ending_timer.py", "mqd/share/led_partitions.py"),
        *("mqd/share/loading.py", "mqd/share/partition_letters.py"),
        *("mqd/share/state_writer.py", "mqd/share/unaccepted_log.py", "mqd/share/waiting.py"),
    }
)
"""The shells elsewhere, beside the `service.py` of each part. Only ever remove from this."""
DECLARES_A_CORE = re.compile(r"\bA core\b|\b[Pp]ure\b")

HOLD_A_FILE = frozenset({"mqd/log/log_directory.py", "mqd/log/segment.py"})
"""Cores with an attribute of the type `mqd.io.disk.File`, which only shells use."""

PYSYNCOBJ_FILES = frozenset({"mqd/raft/pysyncobj_node.py", "mqd/raft/pysyncobj_pinned.py"})


@cache
def tracked() -> tuple[str, ...]:
    """Files of the project: what git tracks or would track; in an archive without git,
    everything outside hidden folders.
    """
    with suppress(FileNotFoundError):  # no git on this machine
        listing = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        if listing.returncode == 0:
            return tuple(
                sorted(name for name in listing.stdout.splitlines() if (ROOT / name).is_file())
            )
    files = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return tuple(
        sorted(
            str(path)
            for path in files
            if not any(part.startswith(".") and part != ".ci" for part in path.parts)
        )
    )


@pytest.fixture(scope="module", autouse=True)
def _forget() -> Iterator[None]:
    """Trees of the whole source are a million objects, which every collection of garbage during
    and after these tests would visit.
    """
    gc.disable()
    try:
        yield
    finally:
        for known in (source, tree, nodes, imports, shell_signs):
            known.cache_clear()
        gc.enable()


def python_files(*folders: str) -> list[str]:
    return [name for name in tracked() if name.endswith(".py") and name.split("/")[0] in folders]


@cache
def source(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(source(name), name)


@cache
def nodes(name: str) -> tuple[ast.AST, ...]:
    """The nodes of `ast.walk`, in its order. Its generators take longer than a parse."""
    found: list[ast.AST] = [tree(name)]
    for node in found:
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found += [one for one in value if isinstance(one, ast.AST)]
    return tuple(found)


@cache
def imports(name: str) -> frozenset[str]:
    """Every module that a file imports, wherever in the file, as full dotted names; `from a
    import b` gives `a.b`.
    """
    found: set[str] = set()
    package = name.removesuffix(".py").split("/")[:-1]
    for node in nodes(name):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def part_of(name: str) -> str:
    """The part of `mqd` that a file belongs to: its folder, or its own name on the top level."""
    return name.split("/")[1].removesuffix(".py")


def parts_imported(name: str) -> set[str]:
    known = frozenset().union(*LAYERS)
    parts = {module.split(".")[1] for module in imports(name) if module.startswith("mqd.")}
    return parts & known  # `from mqd import __version__` names no part


def _calls(node: ast.AST) -> str:
    """The call of a disk or a file, if `node` is one."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return ""
    method, receiver = node.func.attr, node.func.value
    named = receiver.attr if isinstance(receiver, ast.Attribute) else ""
    named = receiver.id if isinstance(receiver, ast.Name) else named
    is_disk = method in DISK_CALLS
    is_file = method in FILE_CALLS and named in ("file", "_file")
    return f"{named}.{method}()" if is_disk or is_file else ""


@cache
def shell_signs(name: str) -> frozenset[str]:
    """Why a file is a shell: it waits, imports `mqd.io` or one of IO_MODULES, or calls a disk or a
    file. Empty for a core.
    """
    signs = {module for module in imports(name) if module.split(".")[0] in IO_MODULES}
    signs |= {module for module in imports(name) if module.startswith("mqd.io.")}
    if name in HOLD_A_FILE:
        signs -= {"mqd.io.disk.File"}
    waits = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    if any(isinstance(node, waits) for node in nodes(name)):
        signs.add("async")
    signs |= {call for node in nodes(name) if (call := _calls(node))}
    return frozenset(signs)


def may_be_shell(name: str) -> bool:
    if name.startswith(SHELL_FOLDERS):
        return not DECLARES_A_CORE.search(ast.get_docstring(tree(name)) or "")
    return name in SHELLS or name.endswith("/service.py")


def test_every_part_has_a_layer() -> None:
    known = frozenset().union(*LAYERS)
    assert sorted({part_of(name) for name in python_files("mqd")} - known) == []


def test_imports_only_go_down() -> None:
    layer_of = {part: layer for layer, parts in enumerate(LAYERS) for part in parts}
    wrong = [
        f"{name} ({part_of(name)}) imports mqd.{part}"
        for name in python_files("mqd")
        for part in sorted(parts_imported(name))
        if part != part_of(name)
        and not (
            layer_of[part] < layer_of[part_of(name)]
            or (part in BASE_MODULES and part_of(name) in BASE_MODULES)
        )
    ]
    assert wrong == []


CYCLES_LEFT: frozenset[frozenset[str]] = frozenset()
"""Files that still import one another in a circle. Only ever remove from this."""


def modules_imported(name: str) -> frozenset[str]:
    """The files of this project that a file imports, also under TYPE_CHECKING and inside
    functions.
    """
    files = frozenset(tracked())
    found = set()
    for module in imports(name):
        # `from a import b`: the module a.b, or a name in a
        for dotted in (module, module.rpartition(".")[0]):
            path = dotted.replace(".", "/")
            path = f"spark/{path}" if path.startswith("pyspark_mqd/") else path
            candidates = {f"{path}.py", f"{path}/__init__.py"} & files
            if candidates:
                found |= candidates
                break
    return frozenset(found - {name})


def cycles(edges: Mapping[str, frozenset[str]]) -> frozenset[frozenset[str]]:
    """The strongly connected components of more than one file."""

    def reachable(start: str) -> frozenset[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = edges.get(waiting.pop(), frozenset()) - seen
            seen |= new
            waiting.extend(new)
        return frozenset(seen)

    reached = {name: reachable(name) for name in edges}
    groups = {
        name: frozenset({name} | {other for other in found if name in reached.get(other, ())})
        for name, found in reached.items()
    }
    return frozenset(group for group in groups.values() if len(group) > 1)


def test_cycles_are_found() -> None:
    def of(**edges: str) -> frozenset[frozenset[str]]:
        return cycles({name: frozenset(targets) for name, targets in edges.items()})

    assert of(a="b", b="c", c="") == frozenset()
    assert of(a="b", b="a", c="a") == {frozenset("ab")}
    assert of(a="b", b="c", c="ad", d="e", e="d") == {frozenset("abc"), frozenset("de")}


def test_no_files_import_one_another_in_a_circle() -> None:
    edges = {name: modules_imported(name) for name in python_files("mqd", *EXTERNAL_PACKAGES)}
    assert "spark/pyspark_mqd/offsets.py" in edges["spark/pyspark_mqd/stream_reader.py"]
    assert cycles(edges) == CYCLES_LEFT


def test_external_packages_use_the_client_and_the_protocol_only() -> None:
    wrong = [
        f"{name} imports mqd.{part}"
        for name in python_files(*EXTERNAL_PACKAGES)
        for part in sorted(
            parts_imported(name)
            - EXTERNAL_MAY_USE
            - EXTERNAL_OFFLINE_PARTS.get(name.split("/")[0], frozenset())
        )
    ]
    assert wrong == []


def test_shells_are_in_known_places() -> None:
    """A core takes `now` and returns values. It does not wait, and has no clock and no disk."""
    wrong = [
        f"{name}: {sign}"
        for name in python_files("mqd")
        if not may_be_shell(name)
        for sign in sorted(shell_signs(name))
    ]
    assert wrong == []


def test_the_list_of_shells_has_only_shells() -> None:
    assert sorted(name for name in SHELLS if not shell_signs(name)) == []
    assert sorted(name for name in HOLD_A_FILE if "mqd.io.disk.File" not in imports(name)) == []


def test_cores_import_no_service() -> None:
    wrong = [
        f"{name} imports {module}"
        for name in python_files("mqd")
        if not may_be_shell(name)
        for module in sorted(imports(name))
        if module.startswith("mqd.") and module.split(".")[2:3] == ["service"]
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("async def run() -> None: ...", "async"),
        ("import os.path", "os.path"),
        ("from mqd.io.disk import Disk", "mqd.io.disk.Disk"),
        ("def f(one): return one.file.read_at(0, 1)", "file.read_at()"),
        ("def f(segment): segment.disk.write_atomic(b'')", "disk.write_atomic()"),
        ("def f(rows, file): rows.append(file); return 1", None),
    ],
)
def test_signs_of_a_shell(monkeypatch: pytest.MonkeyPatch, text: str, sign: str | None) -> None:
    module = ast.parse(text)
    monkeypatch.setitem(globals(), "nodes", lambda name: tuple(ast.walk(module)))
    for known in (imports, shell_signs):
        known.cache_clear()
    assert shell_signs("mqd/log/example.py") == ({sign} if sign else frozenset())
    for known in (imports, shell_signs):
        known.cache_clear()


def test_pysyncobjs_private_names_stay_in_one_place() -> None:
    wrong = []
    for name in python_files("mqd", *EXTERNAL_PACKAGES):
        if name in PYSYNCOBJ_FILES:
            continue
        wrong += [
            f"{name} imports {module}"
            for module in sorted(imports(name))
            if module.split(".")[0] == "pysyncobj"
        ]
        wrong += [
            f"{name}:{node.lineno} uses {node.attr}"
            for node in (nodes(name) if "_SyncObj__" in source(name) else ())
            if isinstance(node, ast.Attribute) and node.attr.startswith("_SyncObj__")
        ]
    assert wrong == []


THREAD_WORDS = {
    "to_thread": ("mqd/io/",),
    "start_thread_soon": ("mqd/io/",),
    "from_thread": ("mqd/client/blocking_loop.py",),
    "run_sync_soon": ("mqd/client/blocking_loop.py", "mqd/node/signals.py"),
}
"""Names of Trio for work between threads or from signal handlers, and where they may stand.

Elsewhere `Disk.offload` is the way, which the simulation has too.
"""


def test_threads_are_started_only_where_the_simulation_can_replace_them() -> None:
    wrong = [
        f"{name}:{node.lineno} uses {word}"
        for name in python_files("mqd")
        if any(word in source(name) for word in THREAD_WORDS)
        for node in nodes(name)
        if isinstance(node, (ast.Attribute, ast.alias))
        and (word := node.attr if isinstance(node, ast.Attribute) else node.name.rpartition(".")[2])
        in THREAD_WORDS
        and not name.startswith(THREAD_WORDS[word])
    ]
    assert wrong == []


def test_construct_stays_inside_the_protocol() -> None:
    wrong = [
        name
        for name in python_files("mqd", *EXTERNAL_PACKAGES)
        if not name.startswith("mqd/protocol/")
        and any(module.split(".")[0] == "construct" for module in imports(name))
    ]
    assert wrong == []


def test_every_file_has_a_subject() -> None:
    silent = [
        name
        for name in python_files("mqd", *EXTERNAL_PACKAGES)
        if (ROOT / name).stat().st_size and not ast.get_docstring(tree(name))
    ]
    assert silent == []


LOG_METHODS = frozenset({"critical", "debug", "error", "exception", "info", "log", "warning"})
EVENT_LINE = re.compile(r"""[a-z][^=%]*(?:[ ][\w.]+=(?:'[^']+'|[^\s'",]+))+(?:[ ]%s)?""")
"""An event and pairs. A value with a space is in quotes; `logs.py` quotes that of `key=%s`. A `%s`
at the end has more pairs."""
LOGS_WITHOUT_KEYS = frozenset({"mqd/server/handlers/admin.py"})
"""The key of its line is the kind of the resource, `topic` or `broker`."""


def log_formats(name: str) -> Iterator[tuple[int, str]]:
    """The line and the format of each call of a logger."""
    for node in nodes(name):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr in LOG_METHODS and "logger" in ast.unparse(node.func.value).lower():
            text = node.args[1 if node.func.attr == "log" else 0]
            yield node.lineno, str(text.value) if isinstance(text, ast.Constant) else ""


BEGINS_WITHOUT_A_NOUN = re.compile(r"\s*(Of|Those|That of)\b")
_OLDER = {"mqd/security/sasl_options.py"}


def test_docstrings_begin_with_their_noun() -> None:
    """`The schema of every batch.`, and not `Of every batch.`: the name above is only a hint."""
    found = [
        f"{name}:{node.lineno}"
        for name in python_files("mqd", "mqctl", "spark", "chaos", "bench", "tests")
        if name not in _OLDER
        for node in nodes(name)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and BEGINS_WITHOUT_A_NOUN.match(node.value.value)
    ]
    assert found == []


def test_log_lines_are_an_event_and_key_value_pairs() -> None:
    formats = [
        (name, line, text)
        for name in python_files("mqd")
        if name not in LOGS_WITHOUT_KEYS
        for line, text in log_formats(name)
    ]
    assert len(formats) > 100, "few log calls were found: the rule looks at nothing"
    assert [
        f"{name}:{line}: {text!r}" for name, line, text in formats if not EVENT_LINE.fullmatch(text)
    ] == []


BANNED = {
    "unfinished work (write it, or say in words why it is not here)": re.compile(
        r"\b(TODO|FIXME|XXX|HACK)\b"
    ),
    "a path of some machine": re.compile(r"(?<![\w.])/(work|root|tmp/r|Users)/|/home/(?!runner)\w"),
}


@pytest.mark.parametrize("what", BANNED)
def test_nothing_is_left_lying_about(what: str) -> None:
    wrong = []
    for name in tracked():
        if name == "tests/test_tidy.py" or not name.endswith(
            (".py", ".md", ".toml", ".sh", "Makefile", "run", ".txt")
        ):
            continue
        for number, line in enumerate(source(name).splitlines(), start=1):
            if BANNED[what].search(line):
                wrong.append(f"{name}:{number}: {line.strip()}")
    assert wrong == []


def test_no_stubs_and_nothing_swallowed_whole() -> None:
    wrong = []
    for name in python_files("mqd", *EXTERNAL_PACKAGES):
        for node in nodes(name):
            if (
                isinstance(node, ast.Raise)
                and node.exc is not None
                and "NotImplementedError" in ast.unparse(node.exc)
            ):
                wrong.append(f"{name}:{node.lineno}: a stub")
            if isinstance(node, ast.ExceptHandler) and all(
                isinstance(statement, ast.Pass) for statement in node.body
            ):
                caught = "BaseException" if node.type is None else ast.unparse(node.type)
                wrong += (
                    [f"{name}:{node.lineno}: swallows everything"]
                    if caught in ("Exception", "BaseException")
                    else []
                )
    assert wrong == []


def test_the_default_suite_does_not_sleep() -> None:
    """A wait is in virtual time (`autojump_clock` or a `MockClock` in the same file), or polls for
    a condition in a loop.

    In tests/spark real processes run, in real time: there a loop that polls may use `time.sleep`.
    """
    wrong = []
    for name in python_files("tests"):
        if name.startswith(("tests/conformance/", "tests/hostile/")):
            continue
        if "sleep" not in source(name):
            continue
        is_virtual = any(
            clock in source(name) for clock in ("autojump", "MockClock", "mqd.testing")
        )
        forbidden = {"time.sleep"} if is_virtual else {"time.sleep", "trio.sleep"}
        loops = [
            node for node in nodes(name) if isinstance(node, ast.While | ast.For | ast.AsyncFor)
        ]
        polling = {id(inner) for loop in loops for inner in ast.walk(loop)}
        for node in nodes(name):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            call = ast.unparse(node.func)
            may_poll = call == "trio.sleep" or name.startswith("tests/spark/")
            if (
                call in forbidden
                and not (may_poll and id(node) in polling)
                and ast.unparse(node) != "trio.sleep(0)"
            ):
                wrong.append(f"{name}:{node.lineno}: {call}")
    assert wrong == []


def test_what_the_default_suite_leaves_out_runs_in_ci() -> None:
    recipe = r"^%s: \$\(STAMP\)\n\t@\$\(SUITE\) -m '%s'$"
    for target, marks in (("unit", "not spark and not slow"), ("slow", "slow and not spark")):
        assert re.search(recipe % (target, marks), source("Makefile"), re.MULTILINE), target
    assert re.search(r"^with_deadline \d+ make slow$", source(".ci/run"), re.MULTILINE)


def test_tests_stand_where_the_code_does() -> None:
    """A folder of tests mirrors a folder of the project, but for the rings that have none."""
    rings = {Path(), Path("conformance"), Path("sim"), Path("hostile"), Path("golden")}
    folders = {Path(name).parent.relative_to("tests") for name in python_files("tests")} - rings
    assert [
        str(folder)
        for folder in sorted(folders)
        if not (ROOT / "mqd" / folder).is_dir() and not (ROOT / folder).is_dir()
    ] == []


def test_a_handler_has_the_name_of_its_declaration() -> None:
    def handles(name: str) -> bool:
        return any(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "handle"
            for node in tree(name).body
        )

    handlers = {
        Path(name).stem
        for name in python_files("mqd")
        if name.startswith("mqd/server/handlers/") and handles(name)
    }
    apis = {
        Path(name).stem for name in python_files("mqd") if name.startswith("mqd/protocol/apis/")
    }
    assert handlers, "no handlers were found: the rule looks at nothing"
    assert sorted(handlers - apis) == []


def test_every_part_of_the_broker_has_tests() -> None:
    folders = {
        part_of(name)
        for name in python_files("mqd")
        if name.count("/") >= 2 and (ROOT / name).stat().st_size
    }
    tested = {
        name.split("/")[1] for name in python_files("tests") if Path(name).name.startswith("test_")
    }
    assert sorted(folders - tested - {"testing"}) == []


def test_the_changelog_has_its_shape() -> None:
    """https://keepachangelog.com; a change is one line."""
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# Changelog"
    first = next(number for number, line in enumerate(lines) if line.startswith("## "))
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Known issues"}
    for line in filter(None, lines[first:]):
        release = r"## \[\d+\.\d+\.\d+\] - (Unreleased|\d{4}-\d\d-\d\d)"
        assert line.startswith("- ") or line[4:] in kinds or re.fullmatch(release, line), line
        assert len(line) <= 120, line
    assert sum(line.endswith("] - Unreleased") for line in lines) <= 1


def test_constraints_pin_and_name_no_registry() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [
        pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+!-]+", pin)
    ] == []
    pinned = {re.sub(r"[-_.]+", "-", pin.split("==")[0]).lower() for pin in pins}
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for extra in project["project"]["optional-dependencies"].values():
        wanted += extra
    for requirement in wanted:
        name = re.match(r"[A-Za-z0-9_.-]+", requirement)
        assert name is not None
        assert re.sub(r"[-_.]+", "-", name[0]).lower() in pinned, requirement
        assert ">=" in requirement or "==" in requirement, f"{requirement} has no lower bound"


def test_options_that_are_implemented_are_those_that_are_read() -> None:
    from mqd.option_table import OPTIONS, PEERS
    from mqd.options import Status

    of_clients = ("mqd/client/client_properties.py", "mqd/dev_security.py")
    text = "\n".join(
        source(name)
        for name in python_files("mqd")
        if "/option" not in name and name not in of_clients
    )
    implemented = [option for option in OPTIONS.values() if option.status is Status.IMPLEMENTED]
    read_by_topics = {synonym for option in implemented for synonym, _ in option.synonyms}
    read = {name for name in OPTIONS if f'"{name}"' in text}
    # a topic key is read as a field of LogConfig, which is made of all of them; naming the field
    # there is not reading it
    words = Counter(re.findall(r"\w+", text))
    fields = {
        option.name
        for option in implemented
        if "topic" in option.scopes and words[option.name.replace(".", "_")] > 1
    }
    unread = {option.name for option in implemented} - read - read_by_topics - fields
    assert sorted(unread) == [], "marked as implemented, and nothing reads them"
    # read with the prefix of a listener and a mechanism, or in a JAAS string
    only_of_listeners = {"sasl.jaas.config", "ssl.endpoint.identification.algorithm"}
    read_and_ignored = {
        name
        for name in read - only_of_listeners
        if OPTIONS[name].status is Status.IGNORED and OPTIONS[name].note != PEERS.note
    }
    assert sorted(read_and_ignored) == [], "read, and marked as ignored"
