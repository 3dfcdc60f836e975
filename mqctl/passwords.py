"""Passwords: from a file, the environment or a prompt, never from an argument, which other users of
the machine could read.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from mqctl.app import USAGE, Failure

VARIABLE = "MQCTL_USER_PASSWORD"

password_option = click.option(
    "--password-file",
    type=click.File("r", encoding="utf-8"),
    metavar="FILE",
    help="Read the password from the first line of FILE; - is standard input. "
    f"[env: {VARIABLE}; default: a prompt]",
)


def read_password(user: str, file: Any | None) -> str:
    """The new password of a user. Raises Failure."""
    if file is not None:
        password = file.readline().rstrip("\r\n")
    elif VARIABLE in os.environ:
        password = os.environ[VARIABLE]
    elif sys.stdin.isatty():
        password = click.prompt(
            f"Password of user '{user}'", hide_input=True, confirmation_prompt=True, err=True
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
