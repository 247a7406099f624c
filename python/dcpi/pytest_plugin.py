"""pytest's fixture ``dcpi_time``: fails a test where a command became slower.

pytest finds the plugin by the entry point ``pytest11`` of the installed package.
"""

from __future__ import annotations

from typing import Any, Callable

import pytest

from ._time import Command, TimeResult, time

Compare = Callable[..., TimeResult]


@pytest.fixture
def dcpi_time() -> Compare:
    """``dcpi_time(baseline, new)`` fails if ``dcpi time`` finds new slower than baseline.

    The failure's message is the line of dcpi. Further arguments are those of ``dcpi.time``; the
    answer is returned, since 'too few layouts' is no regression but may matter to the test.
    """

    def compare(baseline: Command, new: Command, **options: Any) -> TimeResult:
        result = time(baseline, new, **options)
        if result.verdict == "slower":
            pytest.fail(result.says, pytrace=False)
        return result

    return compare
