"""`from mqd.client import ...`: the public names, and what they cost."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

import mqd.client

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ast.parse((ROOT / "mqd" / "client" / "__init__.py").read_text(encoding="utf-8"))
NEED_ARROW = {"ArrowProducer", "open_arrow_producer"}
HEAVY = ("trio", "construct", "cramjam", "pyarrow", "numpy", "mqd.protocol", "mqd.client.cluster")


def checked_names() -> dict[str, str]:
    """The imports for type checkers: name -> module."""
    blocks = [node for node in SOURCE.body if isinstance(node, ast.If)]
    assert len(blocks) == 1 and ast.unparse(blocks[0].test) == "TYPE_CHECKING"
    found = {}
    for node in blocks[0].body:
        assert isinstance(node, ast.ImportFrom) and node.module is not None
        found.update({alias.name: node.module for alias in node.names})
    return found


def test_a_type_checker_and_python_have_the_same_names() -> None:
    assert checked_names() == mqd.client._MODULES
    assert sorted(mqd.client.__all__) == sorted(mqd.client._MODULES)
    assert set(mqd.client.__all__) <= set(dir(mqd.client))


@pytest.mark.parametrize("name", mqd.client.__all__)
def test_every_public_name_exists(name: str) -> None:
    if name in NEED_ARROW:
        pytest.importorskip("pyarrow")
    found = getattr(mqd.client, name)
    assert found is getattr(mqd.client, name)
    if isinstance(found, type | FunctionType):
        assert found.__doc__, "a public name without a docstring"


def test_no_public_name_is_also_a_module() -> None:
    """`from mqd.client import producer` must have one meaning."""
    modules = {path.stem for path in (ROOT / "mqd" / "client").glob("*.py")}
    assert modules & set(mqd.client.__all__) == set()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'mqd\.client' has no attribute 'open_sesame'"):
        mqd.client.open_sesame  # noqa: B018
    with pytest.raises(ImportError, match="open_sesame"):
        from mqd.client import open_sesame  # noqa: F401


def test_importing_the_package_alone_imports_nothing_heavy() -> None:
    """Brokers import single modules of the package."""
    program = (
        "import sys, mqd.client;"
        f"print([name for name in {HEAVY!r} if name in sys.modules]);"
        "from mqd.client import TopicPartition, ErrorCode;"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["[]", "[]"]


def test_the_package_is_typed() -> None:
    assert (ROOT / "mqd" / "py.typed").is_file()
