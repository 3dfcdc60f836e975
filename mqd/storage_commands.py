"""`mqd storage`: the first user of a new cluster, and hashed passwords of PLAIN."""

from __future__ import annotations

import sys

from mqd.command_line import PASSWORD_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace


def add_user(options: Namespace) -> None:
    """Write a SCRAM user into the data directory of a new cluster. Raises StartError."""
    from pathlib import Path
    from secrets import randbits

    from mqd.io.disk import OsDisk
    from mqd.logs import write_line
    from mqd.node.first_users import add_first_user
    from mqd.options import StartError
    from mqd.security.scram import BY_NAME, NONCE_BITS, check_iterations, text_of_bits

    try:
        check_iterations(options.iterations)
    except ValueError as error:
        raise StartError(f"--iterations: {error}") from None
    if not options.user:
        raise StartError("the name of the user is empty")
    add_first_user(
        OsDisk(),
        Path(options.data),
        options.user,
        _new_password(options.user, options.password_file),
        mechanism=BY_NAME[options.mechanism],
        iterations=options.iterations,
        # same format as the salts of mqctl and of unknown users
        salt=text_of_bits(randbits(NONCE_BITS)).encode(),
    )
    write_line(
        f"Added user '{options.user}' for {options.mechanism}. The first start of the new cluster "
        "creates it.",
        sys.stdout,
    )


def hash_password(options: Namespace) -> None:
    """Print the line of a PLAIN user, or write it to a file. Raises StartError."""
    from pathlib import Path
    from secrets import randbits

    from mqd.io.disk import OsDisk
    from mqd.logs import write_line
    from mqd.options import StartError
    from mqd.security.hashed_users import line_of, with_line
    from mqd.security.scram import NONCE_BITS, text_of_bits

    salt = text_of_bits(randbits(NONCE_BITS)).encode()
    password = _new_password(options.user, options.password_file)
    try:
        line = line_of(options.user, password, salt, options.iterations)
    except ValueError as error:
        raise StartError(str(error)) from None
    if options.file is None:
        write_line(line, sys.stdout)
        return
    path = Path(options.file)
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        OsDisk().write_atomic(path, with_line(text, line).encode())
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"cannot change {path}: {error}") from None
    write_line(f"Wrote user '{options.user}' to {path}.", sys.stdout)


def _new_password(user: str, file: str | None) -> str:
    """From a file, the environment or a prompt. Raises StartError."""
    import os
    from getpass import getpass
    from pathlib import Path

    from mqd.file_modes import others_can_read, remedy_for
    from mqd.logs import write_line
    from mqd.options import StartError

    if file == "-":
        password = sys.stdin.readline().rstrip("\r\n")
    elif file is not None:
        try:
            password = Path(file).read_text(encoding="utf-8").split("\n", 1)[0].rstrip("\r")
            if others_can_read(Path(file)):
                write_line(
                    f"mqd: warning: users other than the owner can read the password in '{file}': "
                    f"{remedy_for(Path(file))}",
                    sys.stderr,
                )
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise StartError(
                f"--password-file '{file}' cannot be read ({reason}); specify a readable file"
            ) from None
    elif PASSWORD_VARIABLE in os.environ:
        password = os.environ[PASSWORD_VARIABLE]
    elif sys.stdin.isatty():
        password = getpass(f"Password of user '{user}': ")
        if getpass("Repeat it: ") != password:
            raise StartError("the passwords differ: nothing was changed")
    else:
        raise StartError(
            f"no password for user '{user}': standard input is not a terminal; give it with "
            f"--password-file FILE, or in {PASSWORD_VARIABLE}"
        )
    if not password:
        raise StartError(f"the password of user '{user}' is empty")
    return password
