"""Records a block of code of this process."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from types import TracebackType
from typing import Optional, Type

from ._database import Database, Path
from ._program import DcpiError, directory, last_line, missing

# Becomes dcpi record after the parent's end. A child of this process would be recorded with it:
# dcpi record follows children, and its own work would be in the profile. A session of its own
# keeps Ctrl-C of the terminal from ending the recording before the block ends.
BECOME = """
import os, signal, sys, time
parent = os.getpid()
if os.fork():
    os._exit(0)
os.setsid()
while os.getppid() == parent:
    time.sleep(0.001)
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.write(1, b"%d\\n" % os.getpid())
os.execvp(sys.argv[1], sys.argv[1:])
"""

# dcpi prints a line that ends with this when the recording has begun.
BEGUN = b"; Ctrl-C ends the recording\n"
# dcpi prints it when the recording is written.
RECORDED = b"recorded "
# Longest time from the start of dcpi to its first sample; loading its programs into the kernel of
# a busy machine takes several seconds.
START_S_MAX = 60.0
# Longest time to write the recording and its report after the end.
END_S_MAX = 120.0


class Run(Database):
    """A recording: a database whose reports are of the recorded block."""

    def __init__(self, db: Optional[Path], seconds: Optional[float], dcpi: Optional[str]) -> None:
        super().__init__(db, dcpi)
        self._seconds = seconds
        self._started: Optional[subprocess.Popen[bytes]] = None
        self._log = b""
        self._process = -1
        self._timer: Optional[threading.Timer] = None
        if self.path is None:
            # Removed with this object: a recording without a name is of no use after it.
            folder = tempfile.mkdtemp(prefix="dcpi-python-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self.path = os.path.join(folder, "db")

    def __enter__(self) -> Run:
        if self._started is not None:
            raise ValueError("a recording records one block: call dcpi.record() for each")
        # The process that becomes dcpi cannot raise an error here: look for the program first.
        if shutil.which(self.dcpi) is None:
            raise missing(self.dcpi)
        # Without --duration, with which dcpi does not say when the recording has begun.
        command = [self.dcpi, "record", f"--db={self.path}", f"--pid={os.getpid()}", "-n", "1"]
        self._started = subprocess.Popen(
            [sys.executable, "-I", "-c", BECOME, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._started.wait()
        begun = self._listen(START_S_MAX, BEGUN)
        # Unlike a number, a descriptor never names another process after the end of dcpi.
        with contextlib.suppress(ProcessLookupError, ValueError):
            if not self._listen(0.0):
                self._process = os.pidfd_open(int(self._log.partition(b"\n")[0]))
        if not begun:
            self._end()
            raise DcpiError(self._said())
        if self._seconds is not None:
            self._timer = threading.Timer(self._seconds, self._interrupt)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            self._end()
            if RECORDED not in self._log:
                raise DcpiError(self._said())
            self._defaults["epoch"] = self.epochs()[-1]["epoch"]
        except DcpiError:
            # The block's own error says more than that of its recording.
            if error is None:
                raise

    def _listen(self, seconds: float, until: Optional[bytes] = None) -> bool:
        """Reads what dcpi says until it says ``until`` or ends; whether that came in time."""
        assert self._started is not None and self._started.stdout is not None
        pipe = self._started.stdout
        deadline = time.monotonic() + seconds
        while not pipe.closed:
            left = max(0.0, deadline - time.monotonic())
            # poll takes descriptors above 1023, which select does not.
            ready = select.poll()
            ready.register(pipe, select.POLLIN)
            if not ready.poll(left * 1e3):
                return False
            read = os.read(pipe.fileno(), 65536)
            self._log += read
            if until is not None and until in self._log:
                return True
            if not read:
                pipe.close()
        return until is None

    def _interrupt(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGINT)

    def _end(self) -> None:
        """Ends the recording, if it still runs, and waits until it is written."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._process < 0:
            return
        self._interrupt()
        ended = self._listen(END_S_MAX)
        os.close(self._process)
        if not ended:
            raise DcpiError(f"the recording did not end in {END_S_MAX:.0f} s")

    def _said(self) -> str:
        return last_line(self._log.decode("utf-8", "replace"))


def record(
    db: Optional[Path] = None, seconds: Optional[float] = None, dcpi: Optional[str] = None
) -> Run:
    """``with dcpi.record() as run:`` records this process and its children; needs root.

    After the block, ``run.prof()`` and the other reports are of it. ``db`` keeps the recording,
    as an epoch of that database; ``seconds`` ends the recording even if the block still runs. A
    dcpid that already runs goes on, and its database is not used: it keeps processes apart only
    in call stacks, and its slices of time are longer than most blocks.
    """
    return Run(db, seconds, dcpi)
