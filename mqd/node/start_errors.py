"""Errors of the operating system, as the one line with which a start fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mqd.config import StartError
from mqd.errors import StorageError


@contextmanager
def start_errors(what: str, path: Path) -> Iterator[None]:
    """Convert storage errors of the block to StartError, which says what the operator can do."""
    try:
        yield
    except StorageError as error:  # its text contains the remedy
        raise StartError(f"{what} cannot be used: {error}") from error
    except (FileExistsError, NotADirectoryError) as error:
        raise StartError(
            f"{what} cannot be used: {error.filename or path} is not a directory; choose "
            "another one"
        ) from error
    except OSError as error:
        raise StartError(
            f"{what} cannot be used: {error}; check {error.filename or path}, its owner, and "
            "the space on its disk"
        ) from error
