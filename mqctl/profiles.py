"""How mqctl connects: client properties from a profile, the environment and a file. Each overrides
the ones before it.

A profile is a properties file with Kafka's client properties, in the user's configuration folder.
It may contain passwords: its mode is 0600, and mqctl refuses a file that others can read. Its paths
of files are absolute, so that it works in every directory.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from mqctl.failure import USAGE, Failure
from mqd.config_file import parse_properties
from mqd.options import ConfigError

PROFILE_VARIABLE = "MQCTL_PROFILE"
CONFIG_VARIABLE = "MQCTL_COMMAND_CONFIG"
_PREFIXES = ("MQCTL_SASL_", "MQCTL_SSL_", "MQCTL_SECURITY_")
"""MQCTL_SASL_PASSWORD sets sasl.password."""
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_CURRENT = "current"
_KEY_FILES = ("ssl.keystore.location", "ssl.key.location")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def folder() -> Path:
    """Where the profiles are."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "mqctl"


def properties(
    profile: str | None,
    command_config: str | None,
    *,
    warn: Callable[[str], object] = lambda text: None,
) -> dict[str, str]:
    """The client properties of a command. `profile` and `command_config`: from its options. `warn`
    receives a text if others can read passwords or private keys in files. Raises Failure.
    """
    name = profile or os.environ.get(PROFILE_VARIABLE) or current()
    found = {} if name is None else read(name)
    for variable, value in sorted(os.environ.items()):
        if variable.startswith(_PREFIXES):
            found[variable.removeprefix("MQCTL_").lower().replace("_", ".")] = value
    path = command_config or os.environ.get(CONFIG_VARIABLE)
    _read_config(path, found, warn)
    for key in _KEY_FILES:
        with suppress(OSError, RuntimeError):  # reported when the client reads it
            file = found.get(key, "")
            mode = Path(file).expanduser().stat().st_mode
            if file and (warning := exposure(file, mode, "private key")):
                warn(warning)
    return found


def _read_config(path: str | None, found: dict[str, str], warn: Callable[[str], object]) -> None:
    """Add the properties of a file to `found`."""
    if path:
        from mqd.client.client_properties import SECRET_KEYS

        of_file = read_file(Path(path), "--command-config")
        found.update(of_file)
        warning = exposure(path, Path(path).expanduser().stat().st_mode)
        if warning and not SECRET_KEYS.isdisjoint(of_file):
            warn(warning)


def exposure(path: str, mode: int, secret: str = "password") -> str:
    """A warning if other users can read a file with a secret; else empty. `mode`: its st_mode."""
    if not stat.S_ISREG(mode) or not mode & (stat.S_IRGRP | stat.S_IROTH):
        return ""
    return f"other users can read '{path}', which has a {secret}: run chmod 600 {shlex.quote(path)}"


def current() -> str | None:
    """The profile that `mqctl profile use` chose; None without one."""
    try:
        return (folder() / _CURRENT).read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{folder() / _CURRENT} cannot be read: {error}") from None


def use(name: str | None) -> None:
    """Make it the profile of later commands; None: none."""
    if name is None:
        (folder() / _CURRENT).unlink(missing_ok=True)
        return
    _write(folder() / _CURRENT, f"{name}\n")


def names() -> list[str]:
    return sorted(path.name.removesuffix(".properties") for path in folder().glob("*.properties"))


def read(name: str) -> dict[str, str]:
    """The properties of a profile. Raises Failure, also if others may read the file."""
    path = path_of(name)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        known = ", ".join(names())
        raise Failure(
            f"profile '{name}' does not exist",
            remedy=f"use one of {known}" if known else f"create it: mqctl profile create {name}",
            exit_code=USAGE,
        ) from None
    if mode & _OTHERS:
        raise Failure(
            f"other users can access {path}, which may contain a password",
            remedy=f"run chmod 600 {path}, and change the password",
            exit_code=USAGE,
        )
    return read_file(path, "profile")


def with_absolute_paths(values: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Client properties whose paths of files do not depend on the working directory. Relative ones
    are relative to `directory`.
    """
    from mqd.client.client_properties import FILE_KEYS

    return {
        key: str(directory.absolute() / Path(value).expanduser())
        if key in FILE_KEYS and value
        else value
        for key, value in values.items()
    }


def write(name: str, values: Mapping[str, str]) -> None:
    """Create or replace a profile, with mode 0600."""
    lines = [f"{_escaped(key)}={_escaped(value)}\n" for key, value in sorted(values.items())]
    _write(path_of(name), "".join(lines))


def delete(names: Iterable[str]) -> None:
    """Delete all, or none: raises Failure if one does not exist."""
    paths = {name: path_of(name) for name in names}
    for name, path in paths.items():
        if not path.exists():
            raise Failure(
                f"profile '{name}' does not exist",
                remedy="list the profiles with `mqctl profile list`",
                exit_code=USAGE,
            )
    chosen = current()
    for name, path in paths.items():
        path.unlink(missing_ok=True)
        if chosen == name:
            use(None)


def path_of(name: str) -> Path:
    """The file of a profile. Raises Failure for an invalid name."""
    if not _NAME.fullmatch(name):
        raise Failure(
            f"'{name}' is not the name of a profile",
            remedy="use 1 to 64 characters of a-z A-Z 0-9 . _ -",
            exit_code=USAGE,
        )
    return folder() / f"{name}.properties"


def read_file(path: Path, what: str) -> dict[str, str]:
    """The properties of a file. Raises Failure."""
    try:
        text = path.expanduser().read_text(encoding="utf-8")
        return {one.key: one.value for one in parse_properties(text, str(path))}
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise Failure(
            f"{what} {path} cannot be read: {reason}",
            remedy="specify a readable file with lines of the form key=value",
            exit_code=USAGE,
        ) from None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)


def _escaped(text: str) -> str:
    """A key or value as a properties file has it."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    escaped = escaped.replace("\t", "\\t").replace("=", "\\=").replace(":", "\\:")
    return "\\" + escaped if escaped[:1] in (" ", "#", "!") else escaped
