"""Passwords: from a file, the environment or a prompt, never from an argument, which other users of
the machine could read. A file that they can read causes a warning.
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from mqctl.app import USAGE, Failure, print_message

VARIABLE = "MQCTL_USER_PASSWORD"

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def password_option(whose: str = "") -> Callable[[FunctionT], FunctionT]:
    """Add --password-file. `whose`: the owner of the password, in the help."""
    return click.option(
        "--password-file",
        type=click.File("r", encoding="utf-8"),
        metavar="FILE",
        help=f"Read the password {whose and f'of {whose} '}from the first line of FILE; - is "
        f"standard input. [env: {VARIABLE}; default: a prompt]",
    )


def read_password(user: str, file: Any | None, *, new: bool = True) -> str:
    """The password of a user. The prompt asks for a `new` one twice. Raises Failure."""
    if file is not None:
        warn_if_readable(file.name, os.fstat(file.fileno()).st_mode)
        password = file.readline().rstrip("\r\n")
    elif VARIABLE in os.environ:
        password = os.environ[VARIABLE]
    elif sys.stdin.isatty():
        password = click.prompt(
            f"Password of user '{user}'", hide_input=True, confirmation_prompt=new, err=True
        )
    else:
        raise Failure(
            f"no password for user '{user}': standard input is not a terminal",
            remedy=f"give it with --password-file FILE, or in {VARIABLE}",
            exit_code=USAGE,
        )
    if not password:
        raise Failure(f"the password of user '{user}' is empty", exit_code=USAGE)
    return str(password)


def warn_if_readable(path: str, mode: int) -> None:
    """Warn if other users can read a file with a password. `mode`: its st_mode."""
    if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH):
        print_message(
            f"other users can read '{path}', which has a password: run chmod 600 "
            f"{shlex.quote(path)}"
        )
