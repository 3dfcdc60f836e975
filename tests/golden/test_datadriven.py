"""The runner of the transcripts: what it refuses, what it shows, and what it leaves as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqd.errors import ErrorCode, MqError
from tests.golden.datadriven import BadTranscript, compare, run
from tests.golden.test_golden import DRIVERS, FOLDER, TRANSCRIPTS


class Sums:
    def __init__(self) -> None:
        self._sum = 0

    def add(self, *numbers: int, twice: bool = False, to: tuple[str, ...] = ()) -> None:
        self._sum += sum(numbers) * (2 if twice else 1)

    def show(self) -> str:
        return f"sum={self._sum}"

    def refuse(self) -> None:
        raise MqError(ErrorCode.INVALID_REQUEST, "no")


def transcript(folder: Path, text: str) -> Path:
    path = folder / "sums.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_output_of_each_block_replaces_the_recorded_one(tmp_path: Path) -> None:
    text = (
        "# Sums.\n\nadd 1 2 twice\nshow\n----\nold\n\n# No output.\nadd 1\n----\n\nrefuse\n----\n"
    )
    assert run(transcript(tmp_path, text), Sums()) == (
        "# Sums.\n\nadd 1 2 twice\nshow\n----\nsum=6\n\n# No output.\nadd 1\n----\nok\n\n"
        "refuse\n----\nrefused: INVALID_REQUEST\n"
    )


def test_a_difference_names_the_file_and_shows_both_outputs(tmp_path: Path) -> None:
    path = transcript(tmp_path, "add 2\nshow\n----\nsum=3\n")
    difference = compare(path, Sums())
    assert difference is not None
    lines = difference.splitlines()
    assert lines[0].startswith(str(path)) and "-sum=3" in lines and "+sum=2" in lines
    path.write_text(run(path, Sums()), encoding="utf-8")
    assert compare(path, Sums()) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# x\nsubtract 1\n----\n", ":2: unknown command 'subtract'"),
        ("_sum\n----\n", ":1: unknown command '_sum'"),
        ("add 1 by=2\n----\n", ":1: unknown argument 'by=2'"),
        ("show 1\n----\n", ":1: unknown argument '1'"),
        ("add one\n----\n", ":1: argument 'numbers' cannot be 'one'"),
        ("add 1 twice=maybe\n----\n", ":1: argument 'twice' cannot be 'maybe'"),
        ("add 1 twice twice\n----\n", ":1: argument 'twice' is there twice"),
        ("add 1 to\n----\n", ":1: argument 'to' has no value"),
        ("add 1\n----\nok\n\nadd 2\n", ":5: no ---- behind 'add 2'"),
        ("# x\n----\n", ":2: ---- without a command before it"),
    ],
)
def test_a_transcript_that_cannot_be_run(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadTranscript) as refused:
        run(transcript(tmp_path, text), Sums())
    assert f"{tmp_path}/sums.txt{message}" in str(refused.value)


def test_a_required_argument_is_missed(tmp_path: Path) -> None:
    path = transcript(tmp_path, "append\n----\n")
    with pytest.raises(BadTranscript, match=r":1: missing a required argument: 'count'"):
        run(path, DRIVERS["replica"](tmp_path))


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_transcript_describes_itself(name: str) -> None:
    """It starts with a comment of one to three lines, and cites an invariant or a KIP."""
    first = (FOLDER / name).read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    assert 1 <= len(first) <= 3 and all(line.startswith("# ") for line in first)
    assert any(word in " ".join(first) for word in ("(I", "KIP-"))
    assert all(len(line) <= 100 for line in first)


def test_every_area_has_a_transcript() -> None:
    assert {name.split("/")[0] for name in TRANSCRIPTS} == set(DRIVERS)
