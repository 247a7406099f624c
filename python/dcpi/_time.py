"""``dcpi time``: whether a command is faster than another."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import List, Optional, Sequence, Union

from ._program import Json, option, program, read_json

Command = Union[str, Sequence[str]]


@dataclass(frozen=True)
class TimeResult:
    """The answer of ``dcpi time``: ``says`` is its first line."""

    verdict: Optional[str]
    says: str
    change: Optional[float]
    change_low: Optional[float]
    change_high: Optional[float]
    raw: Json = field(repr=False)

    def __str__(self) -> str:
        return self.says


def words_of(command: Command) -> List[str]:
    """The words of a command; text is parted as a shell does it, but no shell runs it."""
    words = shlex.split(command) if isinstance(command, str) else [str(one) for one in command]
    if not words:
        raise ValueError("a command needs at least one word")
    if "--" in words:
        raise ValueError("'--' ends the first command of dcpi time: use ['sh', '-c', '...']")
    return words


def time(
    a: Command,
    b: Command,
    *,
    runs: Optional[int] = None,
    layouts: Optional[int] = None,
    effect: Optional[float] = None,
    clock: Optional[str] = None,
    confidence: Optional[float] = None,
    timeout: Optional[str] = None,
    seed: Optional[int] = None,
    dcpi: Optional[str] = None,
) -> TimeResult:
    """Runs the commands a and b in turn: is b faster than a? ``effect`` is in percent."""
    options = {
        "runs": runs,
        "layouts": layouts,
        "effect": None if effect is None else f"{effect:f}%",
        "clock": clock,
        "confidence": confidence,
        "timeout": timeout,
        "seed": seed,
    }
    words = [word for name, value in options.items() for word in option(name, value)]
    sides = ["--", *words_of(a), "--", *words_of(b)]
    raw = read_json([program(dcpi), "time", "--format=json", *words, *sides], "time")
    change = raw.get("change") or {}
    return TimeResult(
        verdict=raw.get("verdict"),
        says=str(raw.get("says")),
        change=change.get("value"),
        change_low=change.get("low"),
        change_high=change.get("high"),
        raw=raw,
    )
