"""Files, names and commands in the documents exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mqctl.__main__ import cli
from mqd.option_table import NODE_OPTIONS
from mqd.options import Status
from tests.test_tidy import ROOT, python_files, tree

ARCHITECTURE = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
PAPERS = (
    "README.md",
    "CHANGELOG.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
)

_PAIR = re.compile(r"`([\w/]+\.py)`\s+`((?!\w+\.py`)[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?)`")


def pairs() -> list[tuple[str, str]]:
    """Every `file.py` `name` of ARCHITECTURE.md."""
    return sorted({(found[1], found[2]) for found in _PAIR.finditer(ARCHITECTURE)})


def defined(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """(name, node) of everything that a module or class defines itself."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield ast.unparse(target), node
        elif isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target), node


def names(module: ast.Module) -> set[str]:
    """Everything that a file defines: `function`, `Class`, `Class.method`, `Class.attribute`."""
    found = set()
    for name, node in defined(module.body):
        found.add(name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{name}.{inner}" for inner, _ in defined(node.body)}
            attributes = {
                target
                for method in node.body
                for target, _ in defined(list(statements(method)))
                if target.startswith("self.")
            }
            found |= {f"{name}.{attribute.removeprefix('self.')}" for attribute in attributes}
    return found


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    return (inner for inner in ast.walk(node) if isinstance(inner, ast.stmt))


def test_there_is_something_to_check() -> None:
    assert len(pairs()) > 40


def test_names_in_the_architecture_exist() -> None:
    wanted: dict[str, set[str]] = {}
    for file, name in pairs():
        wanted.setdefault(file, set()).add(name)
    paths = {file: f"mqd/{file}" if (ROOT / "mqd" / file).is_file() else file for file in wanted}
    assert [file for file in wanted if not (ROOT / paths[file]).is_file()] == []
    missing = {file: sorted(wanted[file] - names(tree(paths[file]))) for file in wanted}
    assert {file: undefined for file, undefined in missing.items() if undefined} == {}


def file_map() -> dict[str, set[str]]:
    """Folder -> the files in its rows of the map."""
    found: dict[str, set[str]] = {}
    for line in ARCHITECTURE.split("## File map")[1].split("\n## ")[0].splitlines():
        if line.startswith("| `"):
            folder, what = line.strip("|").split("|", 1)
            found.setdefault(folder.strip().strip("`").rstrip("/"), set()).update(
                re.findall(r"`([\w*/]+\.py)`", what)
            )
    return found


def test_the_map_has_exactly_the_files_of_the_repository() -> None:
    known = file_map()
    files = {
        name for name in python_files("mqd", "mqctl", "spark") if not name.endswith("__init__.py")
    }
    on_the_map = {
        f"{folder}/{name}"
        for folder in known
        if folder.split("/")[0] in ("mqd", "mqctl", "spark")
        for name in known[folder]
    }
    patterns = {path.removesuffix("*.py") for path in on_the_map if path.endswith("*.py")}
    missing = [
        name for name in sorted(files - on_the_map) if str(Path(name).parent) + "/" not in patterns
    ]
    assert missing == [], "not on the file map of docs/ARCHITECTURE.md"
    assert sorted(path for path in on_the_map - files if not path.endswith("*.py")) == [], (
        "on the map, and not in the repository"
    )


@pytest.mark.parametrize("paper", PAPERS)
def test_links_have_targets(paper: str) -> None:
    text = (ROOT / paper).read_text(encoding="utf-8")
    targets = [
        target.split("#")[0]
        for target in re.findall(r"\]\(([^)\s]+)\)", text)
        if "://" not in target
    ]
    assert [
        target for target in targets if target and not ((ROOT / paper).parent / target).exists()
    ] == []


def commands_named(text: str) -> Iterator[str]:
    """Every `mqctl ...` of a document: in backticks, or as an indented line; two spaces start a
    comment.
    """
    for found in re.finditer(r"`mqctl ([a-z][^`]*)`", text):
        yield " ".join(found[1].split())
    for found in re.finditer(r"^    (?:[^#\n]*\| )?mqctl ([a-z].*)$", text, re.MULTILINE):
        yield found[1].split("  ")[0]


def wrong_part(words: list[str]) -> str | None:
    """The first word that is not a command, or the first option that the command does not have."""
    command: click.Command = cli
    for at, word in enumerate(words):
        if not isinstance(command, click.Group):
            options = {name for option in command.params for name in option.opts}
            options |= {name for option in command.params for name in option.secondary_opts}
            named = (rest.split("=")[0] for rest in words[at:] if rest.startswith("--"))
            return next((name for name in named if name not in options), None)
        inner = command.get_command(click.Context(command), word)
        if inner is None:
            return word if re.fullmatch(r"[a-z-]+", word) else None
        command = inner
    return None


@pytest.mark.parametrize("paper", PAPERS)
def test_mqctl_commands_exist(paper: str) -> None:
    named = set(commands_named((ROOT / paper).read_text(encoding="utf-8")))
    words = {text: re.sub(r"[\[\],]|\.\.\.", " ", text).split() for text in named}
    assert {text: part for text in named if (part := wrong_part(words[text]))} == {}


@pytest.mark.parametrize("paper", PAPERS)
def test_make_targets_exist(paper: str) -> None:
    targets = set(
        re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    text = (ROOT / paper).read_text(encoding="utf-8")
    requested = {
        word
        for spoken in re.findall(r"(?:`|^    )make ([a-z-]+)", text, re.MULTILINE)
        for word in [spoken]
    }
    assert sorted(requested - targets) == []


def test_tests_named_in_hacking_exist() -> None:
    text = (ROOT / "docs" / "HACKING.md").read_text(encoding="utf-8")
    named = re.findall(r"pytest (tests/\S+\.py)::(\w+)", text)
    assert named
    for file, test in named:
        assert test in names(tree(file)), f"{file} has no {test}"


def test_the_glossary_is_in_alphabetical_order() -> None:
    text = (ROOT / "docs" / "GLOSSARY.md").read_text(encoding="utf-8")
    terms = [row.split(" |")[0] for row in re.findall(r"^\| (.*)", text, re.MULTILINE)][1:]
    assert len(terms) > 100
    assert terms == sorted(set(terms), key=lambda term: term.lower().replace("-", " "))


def test_security_lists_the_node_options_that_clients_can_change() -> None:
    security = (ROOT / "docs" / "SECURITY.md").read_text(encoding="utf-8")
    section = security.split("## What clients can change\n")[1].split("\n## ")[0]
    listed = set(
        re.findall(
            r"`([a-z]+(?:\.[a-z0-9]+)+)`", section.split("Options of nodes")[1].split("\n\n")[0]
        )
    )
    options = [
        option for option in NODE_OPTIONS.values() if "node" in option.scopes and option.dynamic
    ]
    assert listed == {option.name for option in options if option.status is Status.IMPLEMENTED}


INVARIANTS = (ROOT / "docs" / "INVARIANTS.md").read_text(encoding="utf-8")
_SECTIONS = re.split(r"^\*\*I(\d+)\. ", INVARIANTS, flags=re.MULTILINE)
KEPT_BY = {
    f"I{number}": re.findall(
        r"`((?:mqd|spark)/[\w/]+\.py)",
        text.partition("- asserted: ")[2].partition("- guarded: ")[0],
    )
    for number, text in zip(_SECTIONS[1::2], _SECTIONS[2::2])
}
"""Number of an invariant -> the files in its row *Asserted*."""
_CITED = re.compile(r"[(,;] ?(I\d+)(?=[,)])")


def cited(path: Path) -> set[str]:
    """The numbers of invariants that a file cites: `(I5)`, `(I5, I22, KIP-497)`."""
    text = path.read_text(encoding="utf-8")
    return {
        number
        for brackets in re.findall(r"\([^()]*\)", text)
        for number in _CITED.findall(brackets)
    }


@pytest.mark.parametrize("number", KEPT_BY)
def test_an_invariant_is_cited_where_the_code_keeps_it(number: str) -> None:
    files = [name for name in KEPT_BY[number] if not name.startswith("mqd/testing/probes")]
    assert any(number in cited(ROOT / name) for name in files), (
        f"none of {files} cites ({number}) at the line that asserts it"
    )


def test_the_source_and_the_transcripts_cite_invariants_that_exist() -> None:
    files = [ROOT / name for name in python_files("mqd", "mqctl", "spark", "tests")]
    files += (ROOT / "tests" / "golden").glob("*/*.txt")
    wrong = {
        str(path.relative_to(ROOT)): sorted(unknown)
        for path in files
        if (unknown := cited(path) - KEPT_BY.keys())
    }
    assert wrong == {}


def test_an_invariant_names_the_transcripts_that_cite_it() -> None:
    """A row *Shown* has every transcript whose first comment cites the invariant."""
    missing = []
    for path in sorted((ROOT / "tests" / "golden").glob("*/*.txt")):
        name = path.relative_to(ROOT).as_posix()
        introduction = path.read_text(encoding="utf-8").split("\n\n")[0]
        for number in re.findall(r"\bI\d+\b", introduction):
            row = INVARIANTS.split(f"**{number}. ")[1].split("\n**I")[0]
            if f"`{name}`" not in row:
                missing.append((number, name))
    assert missing == []
