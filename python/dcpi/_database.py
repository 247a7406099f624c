"""A profile database, and its reports."""

from __future__ import annotations

import datetime
import os
from typing import TYPE_CHECKING, Any, List, Optional, Type, TypedDict, Union

from . import _rows as rows
from ._program import DcpiError, Json, directory, option, program, read_json, run
from ._table import Row, Table

if TYPE_CHECKING:
    from typing_extensions import Unpack

Path = Union[str, "os.PathLike[str]"]
Time = Union[str, datetime.datetime]


class Selection(TypedDict, total=False):
    """Which samples a report is of: the options of dcpi of these names, None for its default."""

    since: Optional[Time]
    until: Optional[Time]
    epoch: Union[str, int, None]
    epoch_label: Optional[str]
    host: Optional[str]
    label: Optional[str]
    unit: Optional[str]
    container: Optional[str]
    pod: Optional[str]
    namespace: Optional[str]
    pid: Optional[int]
    command: Optional[str]
    thread: Optional[str]
    tid: Optional[int]
    event: Optional[str]
    idle: bool
    all: bool
    confidence: Optional[float]
    debug_root: Optional[str]


class Database:
    """Reports of a database; each method runs the command of dcpi of its name."""

    def __init__(self, db: Optional[Path] = None, dcpi: Optional[str] = None) -> None:
        self.path = directory(db)
        self.dcpi = program(dcpi)
        # A recording holds one epoch of a directory that may have others.
        self._defaults: Selection = {}

    def __repr__(self) -> str:
        return f"dcpi.open({self.path!r})"

    def prof(
        self,
        image: Optional[str] = None,
        by: Optional[str] = None,
        inclusive: bool = False,
        lines: bool = False,
        n: int = 0,
        images: bool = False,
        **options: Unpack[Selection],
    ) -> Table[rows.ProfRow]:
        """Samples of each procedure, source line (``lines``), image (``images``), or ``by``."""
        words = self._words(options, n=n, by=by, inclusive=inclusive, lines=lines, images=images)
        raw = self._read("prof", words, image)
        return Table(rows.ProfRow, rows.prof_rows(raw), raw)

    def why(
        self,
        image: Optional[str] = None,
        procedure: Optional[str] = None,
        n: int = 8,
        **options: Unpack[Selection],
    ) -> Table[rows.WhyRow]:
        """What takes the time and why, with evidence, gain and advice."""
        if procedure is not None and image is None:
            raise ValueError("why(procedure=...) needs the image, too")
        raw = self._read("why", self._words(options, n=n), image, procedure)
        return Table(rows.WhyRow, rows.why_rows(raw), raw)

    def callers(
        self, procedure: str, image: Optional[str] = None, n: int = 0, **options: Unpack[Selection]
    ) -> Table[rows.CallRow]:
        """Callers of a procedure, each with its share of the procedure's inclusive time."""
        return self._calls("callers", procedure, image, self._words(options, n=n))

    def callees(
        self, procedure: str, image: Optional[str] = None, n: int = 0, **options: Unpack[Selection]
    ) -> Table[rows.CallRow]:
        """Callees of a procedure, each with its share of the procedure's inclusive time."""
        return self._calls("callees", procedure, image, self._words(options, n=n))

    def tree(
        self,
        bottom_up: bool = False,
        min_percent: float = 1.0,
        depth: Optional[int] = None,
        **options: Unpack[Selection],
    ) -> Table[rows.TreeRow]:
        """The tree of calls, each before the calls below it."""
        least = f"{min_percent:f}%"
        words = self._words(options, bottom_up=bottom_up, min=least, depth=depth)
        raw = self._read("tree", words)
        return Table(rows.TreeRow, rows.call_rows(raw, rows.TreeRow), raw)

    def stacks(
        self, image: Optional[str] = None, lines: bool = False, **options: Unpack[Selection]
    ) -> Table[rows.StackRow]:
        """Every call stack with its samples: the lines of folded stacks, as rows."""
        # Folded lines name neither the event nor its period; the head of the same report does.
        head = self._read("prof", self._words(options, n=1), image)
        options["event"] = name = head["sorted_by"]
        words = self._words(options, to="folded", output="-", lines=lines)
        out, _, _ = run([self.dcpi, "export", *words, *behind(image)])
        event = rows.event_named(head, name)
        table: List[rows.StackRow] = []
        # Only the newline ends a line: str.splitlines also breaks at characters of hostile names.
        counted = [line.rpartition(" ") for line in out.split("\n") if line]
        total = sum(int(count) for _, _, count in counted)
        for stack, _, count in counted:
            samples = int(count)
            share = samples / total if total else None
            seconds = rows.event_seconds(event, share, samples)
            values = {"event": name, "samples": samples, "share": share, "seconds": seconds}
            table.append(rows.row(rows.StackRow, **values, stack=stack.split(";")))
        return Table(rows.StackRow, table, head)

    def timeline(
        self,
        image: Optional[str] = None,
        by: str = "procedure",
        slices: int = 48,
        n: int = 0,
        **options: Unpack[Selection],
    ) -> Table[rows.TimelineRow]:
        """The time of each procedure, or of ``by``, in slices of time: a row per key and slice."""
        raw = self._read("timeline", self._words(options, n=n, by=by, slices=slices), image)
        return Table(rows.TimelineRow, rows.timeline_rows(raw), raw)

    def diff(
        self,
        a: Union[Path, Database],
        b: Union[Path, Database],
        image: Optional[str] = None,
        images: bool = False,
        n: int = 0,
        **options: Unpack[Selection],
    ) -> Table[rows.DiffRow]:
        """Changes from the set a to the set b: SETs of ``dcpi diff``, databases or their paths.

        ``raw["totals"]`` has the verdict on the sum.
        """
        words = self._words(options, n=n, images=images, image=image)
        raw = self._read("diff", words, set_of(a), set_of(b))
        return Table(rows.DiffRow, rows.diff_rows(raw), raw)

    def epochs(self, **options: Unpack[Selection]) -> Table[rows.EpochRow]:
        """Epochs of the database, oldest first."""
        raw = self._read("epochs", self._words(options))
        return Table(rows.EpochRow, rows.epoch_rows(raw), raw)

    def _calls(
        self, report: str, procedure: str, image: Optional[str], words: List[str]
    ) -> Table[rows.CallRow]:
        named = [procedure] if image is None else [image, procedure]
        raw = self._read(report, words, *named)
        return Table(rows.CallRow, rows.call_rows(raw, rows.CallRow), raw)

    def _words(self, selection: Selection, n: Optional[int] = None, **others: object) -> List[str]:
        """Options of the command line."""
        unknown = set(selection) - set(Selection.__annotations__)
        if unknown:
            raise TypeError(f"unexpected argument {sorted(unknown)[0]!r}")
        values: dict[str, Any] = {**self._defaults, **selection, "db": self.path, **others}
        words = [] if n is None else ["-n", str(int(n))]
        for name, value in values.items():
            if isinstance(value, datetime.datetime):
                value = time_word(value)
            words += option(name.replace("_", "-"), value)
        return words

    def _read(self, report: str, words: List[str], *names: Optional[str]) -> Json:
        operands = behind(*names)
        if report == "why":
            # Behind "--" dcpi why has a command that it runs, so names stand before it.
            operands = operands[1:]
            if any(name.startswith("-") for name in operands):
                raise DcpiError(f"{operands}: a name must not begin with '-'")
        return read_json([self.dcpi, report, "--format=json", *words, *operands], report)


def behind(*names: Optional[str]) -> List[str]:
    """Names behind ``--``, where none of them can be an option."""
    given = [name for name in names if name is not None]
    return ["--", *given] if given else []


def time_word(time: datetime.datetime) -> str:
    """A time as dcpi reads it; a time without zone is of this host, as everywhere in Python."""
    utc = time.astimezone(datetime.timezone.utc)
    return utc.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def set_of(which: Union[Path, Database]) -> str:
    """A SET of ``dcpi diff``: text as it is, a path or a database as ``db:DIR``."""
    if isinstance(which, str):
        return which
    path = which.path if isinstance(which, Database) else directory(which)
    if path is None:
        raise ValueError("diff needs a database with a path: dcpi.open(DIR)")
    if "," in path:
        raise ValueError(f"{path!r}: a comma in a path would begin the next part of the SET")
    epoch = which._defaults.get("epoch") if isinstance(which, Database) else None
    return f"db:{path}" if epoch is None else f"db:{path},epoch:{epoch}"


def open(db: Optional[Path] = None, dcpi: Optional[str] = None) -> Database:
    """The database in the directory ``db``: without it ``$DCPIDB``, else ``/var/lib/dcpi``.

    ``dcpi`` is the program to run: without it ``$DCPI``, else ``dcpi`` in ``$PATH``.
    """
    return Database(db, dcpi)
