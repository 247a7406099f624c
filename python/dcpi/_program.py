"""Runs the program ``dcpi`` and reads the JSON that it prints."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

Json = Dict[str, Any]

# dcpi increments the version of a schema when a field goes away or changes its meaning: a table
# made from another version could have wrong numbers under the right names.
SCHEMA_VERSION = 1


class DcpiError(Exception):
    """dcpi could not do its work; the message is the line that dcpi said."""

    def __init__(
        self, message: str, command: Sequence[str] = (), exit_code: Optional[int] = None
    ) -> None:
        super().__init__(message)
        self.command: Tuple[str, ...] = tuple(command)
        self.exit_code = exit_code


def program(dcpi: Optional[str]) -> str:
    """The program to run: the given one, else ``$DCPI``, else ``dcpi`` in ``$PATH``."""
    return dcpi or os.environ.get("DCPI") or "dcpi"


def missing(name: str, reason: str = "No such file or directory") -> DcpiError:
    """The error for a program that cannot be started, with how to name it."""
    return DcpiError(
        f"cannot run {name!r}: {reason}; "
        "name the program dcpi with the argument dcpi=PATH, $DCPI, or $PATH",
        [name],
    )


def last_line(stderr: str) -> str:
    """The error of dcpi without its prefix; notes of dcpi may stand before the error."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("dcpi: ")]
    line = (said or lines or [""])[-1]
    return line[len("dcpi: ") :] if line.startswith("dcpi: ") else line


def run(command: Sequence[str]) -> Tuple[str, str, int]:
    """Runs the command: what it wrote to standard output and to standard error, its exit code."""
    try:
        # Names in a profile are bytes of other programs' choice: they need not be UTF-8.
        done = subprocess.run(
            list(command), stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError as error:
        raise missing(command[0], error.strerror or str(error)) from None
    out = done.stdout.decode("utf-8", "replace")
    err = done.stderr.decode("utf-8", "replace")
    if done.returncode not in (0, 1):
        ended = f"{command[0]} ended with exit code {done.returncode}"
        raise DcpiError(last_line(err) or ended, command, done.returncode)
    return out, err, done.returncode


def read_json(command: Sequence[str], report: str) -> Json:
    """Runs the command and reads its report, which must have the schema ``dcpi.REPORT``.

    Exit code 1 is a report with problems, which its field ``problems`` has.
    """
    out, err, code = run(command)
    try:
        raw = json.loads(out)
    except (ValueError, RecursionError):
        raw = None
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(schema, dict):
        said = last_line(err)
        why = f": {said}" if said else "; is it the program dcpi?"
        raise DcpiError(f"{command[0]} printed no JSON of dcpi{why}", command, code)
    if schema.get("name") != f"dcpi.{report}" or schema.get("version") != SCHEMA_VERSION:
        found = f"{schema.get('name')} {schema.get('version')}"
        raise DcpiError(
            f"this package reads dcpi.{report} {SCHEMA_VERSION}; {command[0]} printed {found}",
            command,
            code,
        )
    return raw


def option(name: str, value: object) -> List[str]:
    """An option in one word: a value that begins with ``-`` must not become an option."""
    if value is None or value is False:
        return []
    return [f"--{name}"] if value is True else [f"--{name}={value}"]


def directory(db: "Optional[str | os.PathLike[str]]") -> Optional[str]:
    """The path of a database with ``~`` expanded, as no shell does it here."""
    return None if db is None else str(Path(db).expanduser())
