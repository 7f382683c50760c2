"""Settings: a flag or an environment variable becomes a field of a frozen dataclass, once, at a command's entry.

A command declares its settings as a dataclass whose fields are made by :func:`setting`. ``--token-budget`` and
``HIDDENSTREAM_TOKEN_BUDGET`` set the field ``token_budget``; the flag wins. Unknown names are errors.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from hiddenstream.contracts.errors import UsageError
from hiddenstream.contracts.queue import RUN_NAME

PREFIX = "HIDDENSTREAM_"
NOT_SETTINGS = frozenset({"HIDDENSTREAM_CACHE"})  # the demo's cache folder, read by its script
Settings = TypeVar("Settings")


def setting(
    default: Any = dataclasses.MISSING,
    *,
    means: str,
    parse: Callable[[str], Any] = str,
    is_argument: bool = False,
    is_repeated: bool = False,
) -> Any:
    """Declare one setting.

    Args:
        default: its value where none is given; without it the setting is required.
        means: what it is, its unit, and how to choose it; shown by ``--help``.
        parse: makes the value from text; raises ValueError, whose text the user sees.
        is_argument: a positional argument rather than a flag.
        is_repeated: a flag that may be given several times; in the environment, values are separated by ``,``.
    """
    metadata = {"means": means, "parse": parse, "is_argument": is_argument, "is_repeated": is_repeated}
    return dataclasses.field(default=default, metadata=metadata)


def read_settings(
    kind: type[Settings], arguments: Sequence[str], environment: Mapping[str, str], *, command: str
) -> Settings:
    """Build *kind* from a command line and an environment.

    Raises:
        UsageError: an unknown, malformed or missing setting; the message names it.
        SystemExit: ``--help`` was asked for and printed.
    """
    parser = _parser(kind, command)
    given = vars(parser.parse_args(_switches_spelled_out(kind, arguments)))
    values: dict[str, Any] = {}
    for field in _fields(kind):
        text = given.get(field.name)
        variable = PREFIX + field.name.upper()
        source = _flag(field)
        if text in (None, []) and environment.get(variable):  # an empty one is one that was left out
            text, source = environment[variable], variable
            if field.metadata["is_repeated"]:
                text = text.split(",")
        if text in (None, []):
            if field.default is dataclasses.MISSING:
                raise UsageError(f"{_flag(field)} is required (or set {variable}); try {command} --help")
            values[field.name] = field.default
            continue
        values[field.name] = _parsed(field, text, source)
    return kind(**values)


def refuse_unknown_environment(environment: Mapping[str, str], known: Sequence[type[Any]]) -> None:
    """Refuse variables that begin like ours and are no setting of any command in *known*.

    Raises:
        UsageError: names the variables.
    """
    names = {PREFIX + field.name.upper() for kind in known for field in _fields(kind)} | NOT_SETTINGS
    unknown = sorted(name for name in environment if name.startswith(PREFIX) and name not in names)
    if unknown:
        raise UsageError(f"unknown environment variable: {', '.join(unknown)}; see docs/operations.md for all settings")


def describe(kind: type[Any]) -> list[tuple[str, str, str]]:
    """Return (flag, default, meaning) of each setting of *kind*, for documents and their test."""
    return [
        (_flag(f), "required" if f.default is dataclasses.MISSING else _shown(f.default), f.metadata["means"])
        for f in _fields(kind)
    ]


def _shown(default: Any) -> str:
    """Return a default as a user would write it."""
    if isinstance(default, tuple) and len(default) == 2:  # an address
        return f"{default[0]}:{default[1]}"
    return str(default)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(f"{message}; try {self.prog} --help")


def _parser(kind: type[Any], command: str) -> argparse.ArgumentParser:
    parser = _Parser(prog=command, description=kind.__doc__, allow_abbrev=False)
    for field in _fields(kind):
        default = "" if field.default in (None, dataclasses.MISSING, ()) else f" (default: {_shown(field.default)})"
        about = (field.metadata["means"] + default).replace("%", "%%")
        if field.metadata["is_argument"]:
            parser.add_argument(field.name, help=about, metavar=field.name.upper(), nargs="?")
        elif field.metadata["parse"] is is_on:
            parser.add_argument(_flag(field), dest=field.name, help=about, nargs="?", const="yes")
        else:
            action = "append" if field.metadata["is_repeated"] else "store"
            parser.add_argument(_flag(field), dest=field.name, help=about, action=action)
    return parser


def _switches_spelled_out(kind: type[Any], arguments: Sequence[str]) -> list[str]:
    """Give a bare switch its "yes", or argparse would take the argument after it for its value."""
    switches = {_flag(field) for field in _fields(kind) if field.metadata["parse"] is is_on}
    words = ("1", "yes", "true", "on", "0", "no", "false", "off")
    return [
        f"{argument}=yes" if argument in switches and following.lower() not in words else argument
        for argument, following in zip_longest(arguments, arguments[1:], fillvalue="")
    ]


def _fields(kind: type[Any]) -> tuple[dataclasses.Field[Any], ...]:
    return tuple(field for field in dataclasses.fields(kind) if "means" in field.metadata)


def _flag(field: dataclasses.Field[Any]) -> str:
    if field.metadata["is_argument"]:
        return field.name.upper()
    return "--" + field.name.replace("_", "-")


def _parsed(field: dataclasses.Field[Any], text: Any, source: str) -> Any:
    try:
        if field.metadata["is_repeated"]:
            return tuple(field.metadata["parse"](part) for part in text)
        return field.metadata["parse"](text)
    except ValueError as error:
        raise UsageError(f"{source}: {text!r} will not do: {error}") from error


def is_on(text: str) -> bool:
    """Parse a switch."""
    if text.lower() in ("1", "yes", "true", "on"):
        return True
    if text.lower() in ("0", "no", "false", "off", ""):
        return False
    raise ValueError("say yes or no")


def whole_number(*, least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a parser of whole numbers from *least* to *most*, with an optional unit K, M or G (powers of 1024)."""

    def parse(text: str) -> int:
        digits, unit = text.strip(), 1
        if digits[-1:].upper() in ("K", "M", "G"):
            unit = 1024 ** ("KMG".index(digits[-1].upper()) + 1)
            digits = digits[:-1]
        try:
            number = int(digits) * unit
        except ValueError:
            raise ValueError("give a whole number") from None
        if number < least or (most is not None and number > most):
            limit = f"at least {least}" if most is None else f"from {least} to {most}"
            raise ValueError(f"give a number {limit}")
        return number

    return parse


def seconds(text: str) -> float:
    """Parse a time in seconds, above 0."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError("give a number of seconds") from None
    if not 0 < number < 1e9:
        raise ValueError("give a number of seconds above 0")
    return number


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser that takes one of *choices*."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"choose from {', '.join(choices)}")
        return text

    return parse


def short_name(text: str) -> str:
    """Parse the name of a run, a worker or a sink; it becomes part of keys, URLs and file names."""
    if not RUN_NAME.fullmatch(text):
        raise ValueError("give 1 to 64 letters, digits, '_' or '-', beginning with a letter or digit")
    return text


def device_name(text: str) -> str:
    """Parse a device."""
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", text):
        raise ValueError("choose cpu, cuda, cuda:N or auto")
    return text


def address(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("give HOST:PORT, for example 127.0.0.1:8760")
    return host.strip("[]"), int(port)


def secret(value: str | None, file: Path | None) -> str | None:
    """Return a secret given as text or in a file, without surrounding white space.

    Raises:
        UsageError: the file cannot be read or is empty.
    """
    if file is None:
        return value
    try:
        text = file.read_text().strip()
    except OSError as error:
        raise UsageError(f"the token file cannot be read: {error}") from error
    if not text:
        raise UsageError(f"the token file {file} is empty")
    return text


def from_process(kind: type[Settings], *, command: str, arguments: Sequence[str] | None = None) -> Settings:
    """Read the settings of the running process."""
    return read_settings(kind, sys.argv[1:] if arguments is None else arguments, os.environ, command=command)
