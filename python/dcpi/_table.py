"""The table that every report returns."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any, Dict, Generic, Iterator, List, Sequence, Type, TypeVar, Union

from ._program import DcpiError, Json

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped, unused-ignore]
    import polars

Row = TypeVar("Row")

# Rows of the text form; a table of all procedures of a machine has thousands.
TEXT_ROWS_MAX = 40
# Columns of a name's text form; names of templates have several hundred.
TEXT_NAME_MAX = 60


class Table(Sequence[Row], Generic[Row]):
    """Rows of a report: dicts that all have the same keys, in the order of ``columns``.

    The columns depend only on the kind of report, never on the host's event or on the rows:
    an empty table has them, too. ``raw`` is the JSON of dcpi, ``problems`` are its problems.
    """

    def __init__(self, kind: Type[Row], rows: Sequence[Row], raw: Json) -> None:
        # The annotations of a TypedDict keep the order in which the class states them.
        self._types: Dict[str, Any] = typing.get_type_hints(kind)
        self._rows: List[Row] = list(rows)
        self.raw = raw
        self.problems: List[Json] = list(raw.get("problems", []))

    @property
    def columns(self) -> List[str]:
        """Names of the columns."""
        return list(self._types)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    @typing.overload
    def __getitem__(self, index: int) -> Row: ...

    @typing.overload
    def __getitem__(self, index: slice) -> List[Row]: ...

    def __getitem__(self, index: Union[int, slice]) -> Union[Row, List[Row]]:
        return self._rows[index]

    def column(self, name: str) -> List[Any]:
        """All values of a column."""
        return [typing.cast(Any, row)[name] for row in self._rows]

    def to_pandas(self) -> "pandas.DataFrame":
        """A pandas data frame; whole numbers are ``Int64``, which has a missing value."""
        try:
            import pandas
        except ImportError:
            raise DcpiError("to_pandas needs the package pandas: pip install pandas") from None
        kinds = {int: "Int64", float: "float64", bool: "boolean"}
        frame = pandas.DataFrame({name: self.column(name) for name in self.columns}, dtype=object)
        return frame.astype(
            {n: kinds[base(t)] for n, t in self._types.items() if base(t) in kinds}
        )

    def to_polars(self) -> "polars.DataFrame":
        """A polars data frame; the columns' types do not depend on the rows."""
        try:
            import polars
        except ImportError:
            raise DcpiError("to_polars needs the package polars: pip install polars") from None
        kinds: Dict[Any, Any] = {
            int: polars.Int64,
            float: polars.Float64,
            bool: polars.Boolean,
            str: polars.String,
            List[str]: polars.List(polars.String),
        }
        schema = {name: kinds[base(kind)] for name, kind in self._types.items()}
        # JSON may have 0 where a column of floats has 0.0, which a strict reader refuses.
        data = {name: self.column(name) for name in self.columns}
        return polars.DataFrame(data, schema=schema, strict=False)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} rows: {', '.join(self.columns)}>"

    def __str__(self) -> str:
        names = [n for n in self.columns if any(v is not None for v in self.column(n))]
        shown = self._rows[:TEXT_ROWS_MAX]
        cells = [[text(n, typing.cast(Any, row)[n]) for n in names] for row in shown]
        widths = [max([len(n)] + [len(row[i]) for row in cells]) for i, n in enumerate(names)]
        right = [base(self._types[n]) in (int, float) for n in names]

        def line(words: Sequence[str]) -> str:
            pairs = zip(words, widths, right)
            return "  ".join(w.rjust(s) if r else w.ljust(s) for w, s, r in pairs).rstrip()

        lines = [line(names)] + [line(row) for row in cells] if names else ["no rows"]
        if len(self) > len(shown):
            lines.append(f"{len(self) - len(shown)} more rows")
        lines += [printable(str(problem.get("message"))) for problem in self.problems]
        return "\n".join(lines)


def base(kind: Any) -> Any:
    """The type without None: ``int`` of ``Optional[int]``."""
    if typing.get_origin(kind) is Union:
        return next(one for one in typing.get_args(kind) if one is not type(None))
    return kind


def printable(name: str) -> str:
    """The name without control characters, with which a program could forge rows."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def text(column: str, value: object) -> str:
    """A cell of the text form."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        # Stacks are cut at the left: the innermost frames tell rows apart.
        joined = printable(";".join(str(one) for one in value))
        return joined if len(joined) <= TEXT_NAME_MAX else "..." + joined[3 - TEXT_NAME_MAX :]
    name = printable(str(value))
    if column.endswith("_id"):
        return name[:8]
    return name if len(name) <= TEXT_NAME_MAX else name[: TEXT_NAME_MAX - 3] + "..."
