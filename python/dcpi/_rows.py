"""Columns of the tables, and how they are read from dcpi's JSON.

In the JSON of ``dcpi prof`` the event's name is a field's name; here it is the value of the column
``event``, so that a script runs unchanged on a host with other events. ``seconds`` is None where
the event counts no time. ``share_low`` and ``share_high`` are the interval of ``share``.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Type, TypedDict, TypeVar

from ._program import Json

R = TypeVar("R")


class Measure(TypedDict):
    """Columns of every table of times."""

    event: str
    share: Optional[float]
    share_low: Optional[float]
    share_high: Optional[float]
    seconds: Optional[float]
    samples: Optional[int]


class Code(Measure):
    """Columns of tables with a procedure in each row."""

    procedure: Optional[str]
    image: Optional[str]
    image_id: Optional[str]
    address: Optional[str]
    inlined: Optional[bool]


class ProfRow(Code):
    """A procedure, image, source line, or what ``by`` names."""

    path: Optional[str]
    file: Optional[str]
    line: Optional[int]
    kind: Optional[str]
    language: Optional[str]
    command: Optional[str]
    thread: Optional[str]
    pid: Optional[int]
    label: Optional[str]
    unit: Optional[str]
    container: Optional[str]
    pod: Optional[str]
    namespace: Optional[str]
    inclusive: Optional[float]
    inclusive_low: Optional[float]
    inclusive_high: Optional[float]
    cumulative: Optional[float]


class WhyRow(Measure):
    """A finding of ``dcpi why``; ``gain`` is the share of the time that could be gained."""

    procedure: Optional[str]
    image: Optional[str]
    address: Optional[str]
    file: Optional[str]
    line: Optional[int]
    mechanism: str
    mechanism_class: str
    certainty: str
    probability: float
    gain: float
    gain_low: float
    gain_high: float
    evidence: List[str]
    advice: List[str]


class CallRow(Code):
    """A caller or callee; ``stacks`` is the number of call stacks that tell of the row."""

    stacks: int


class TreeRow(Code):
    """A call; ``parent`` is the index of the row of the call above, ``own`` the share itself."""

    depth: int
    parent: Optional[int]
    own: Optional[float]


class StackRow(Measure):
    """A call stack, the command first and the procedure that took the time last."""

    stack: List[str]


class TimelineRow(Measure):
    """A key in a slice of time; ``share`` and its interval are of the key in all slices."""

    key: Optional[str]
    image: Optional[str]
    pid: Optional[int]
    start: str
    end: str
    covered_s: float
    occurrences: Optional[float]


class DiffRow(TypedDict):
    """A procedure or image before (a) and after (b), in the unit that ``measure`` names."""

    event: str
    measure: str
    procedure: Optional[str]
    image: Optional[str]
    path: Optional[str]
    a: float
    b: float
    change: float
    change_low: Optional[float]
    change_high: Optional[float]
    relative: Optional[float]
    samples_a: Optional[int]
    samples_b: Optional[int]
    p: Optional[float]
    p_corrected: Optional[float]
    significant: Optional[bool]


class EpochRow(TypedDict):
    """An event of an epoch; ``samples`` are those in profiles, ``taken`` all."""

    event: Optional[str]
    samples: Optional[int]
    taken: Optional[int]
    host: str
    epoch: str
    label: Optional[str]
    back: int
    open: bool
    started_unix_s: Optional[float]
    ended_unix_s: Optional[float]
    duration_s: Optional[float]
    images: Optional[int]
    size_bytes: Optional[int]


def row(kind: Type[R], /, **values: Any) -> R:
    """A row with every column of its kind; a field that the JSON does not have is None."""
    # The key order of all rows is that of the class, so that rows of one table print alike.
    return {name: values.get(name) for name in kind.__annotations__}  # type: ignore[return-value]


def interval(name: str, estimate: Optional[Json]) -> Dict[str, Any]:
    """An estimate of the JSON as three columns."""
    estimate = estimate or {}
    ends = {f"{name}_{end}": estimate.get(end) for end in ("low", "high")}
    return {name: estimate.get("value"), **ends}


def event_seconds(event: Json, share: Optional[float], samples: Optional[int]) -> Optional[float]:
    """The time of a row; None where the event counts no time.

    A report of call stacks has no period: there, the row's share of the whole time is used.
    """
    if event.get("unit") != "ns":
        return None
    if event.get("period") and samples is not None:
        return float(samples * event["period"]) / 1e9
    total = (event.get("count") or {}).get("value")
    return None if total is None or share is None else float(total * share) / 1e9


def event_named(raw: Json, name: Optional[str]) -> Json:
    """The event of that name in the report's head, else the first."""
    events: List[Json] = raw.get("events") or []
    return next((one for one in events if one.get("name") == name), events[0] if events else {})


def prof_rows(raw: Json) -> List[ProfRow]:
    """Rows of ``dcpi prof``, of the event that they are sorted by."""
    name = raw.get("sorted_by")
    event = event_named(raw, name)
    rows = []
    for one in raw["rows"]:
        share, samples = one["share"].get(name) or {}, one["counts"].get(name)
        inclusive = (one.get("inclusive") or {}).get(name)
        seconds = event_seconds(event, share.get("value"), samples)
        own = {"event": name, "samples": samples, "seconds": seconds}
        values = {**one, **interval("share", share), **interval("inclusive", inclusive), **own}
        rows.append(row(ProfRow, **values))
    return rows


def why_rows(raw: Json) -> List[WhyRow]:
    """Findings of ``dcpi why``."""
    event = event_named(raw, None)
    # The head's count is of the whole machine, also where samples were selected.
    total = event_seconds(event, None, raw["samples"])
    rows = []
    for one in raw["findings"]:
        source = one.get("source") or {}
        values = {
            **one,
            **interval("share", one["share"]),
            **interval("gain", one["gain"]),
            "event": event.get("name"),
            "seconds": None if total is None else total * one["share"]["value"],
            "file": source.get("file"),
            "line": source.get("line"),
            "mechanism_class": one["class"],
            "evidence": [evidence["text"] for evidence in one["evidence"]],
        }
        rows.append(row(WhyRow, **values))
    return rows


def call_rows(raw: Json, kind: Type[R]) -> List[R]:
    """Rows of ``dcpi callers``, ``callees`` and ``tree``."""
    event = raw["event"]
    is_time = event["unit"] == "ns"
    rows = []
    for one in raw["rows"]:
        seconds = one["time"] / 1e9 if is_time else None
        values = {**one, **interval("share", one["share"]), "seconds": seconds}
        rows.append(row(kind, **{**values, "event": event["name"]}))
    return rows


def timeline_rows(raw: Json) -> List[TimelineRow]:
    """A row for each row and slice of ``dcpi timeline``."""
    rows = []
    for one in raw["rows"]:
        of_key = {**one, **interval("share", one["share"]), "event": raw["event"]}
        rows += [row(TimelineRow, **{**of_key, **part}) for part in one["slices"]]
    return rows


def diff_rows(raw: Json) -> List[DiffRow]:
    """Rows of ``dcpi diff`` of two sets."""
    event = event_named(raw, None).get("name")
    rows = []
    for one in raw["rows"]:
        samples = one.get("samples") or [None, None]
        values = {**one, "event": event, "measure": raw["measure"]}
        values.update(change_low=one.get("low"), change_high=one.get("high"))
        values.update(samples_a=samples[0], samples_b=samples[1])
        rows.append(row(DiffRow, **values))
    return rows


def epoch_rows(raw: Json) -> List[EpochRow]:
    """A row for each epoch and event of ``dcpi epochs``; an epoch without events has one, too."""
    rows = []
    for one in raw["rows"]:
        for event in one.get("events") or [{}]:
            of_event = {"event": event.get("name"), "samples": event.get("merged")}
            rows.append(row(EpochRow, **{**one, **of_event, "taken": event.get("taken")}))
    return rows
