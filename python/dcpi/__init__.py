"""Profiles of DCPI for Linux as tables: runs ``dcpi`` and reads its JSON.

``dcpi.open(db).prof()`` is a table of procedures; ``dcpi.record()`` records a block of code;
``dcpi.time(a, b)`` says whether the command b is faster than the command a.
"""

from ._database import Database, open
from ._program import DcpiError
from ._record import Run, record
from ._table import Table
from ._time import TimeResult, time

__all__ = ["Database", "DcpiError", "Run", "Table", "TimeResult", "open", "record", "time"]
