"""Work done in a forked child, whose end says how it went."""

from __future__ import annotations

import faulthandler
import os
import signal
import traceback
import warnings
from collections.abc import Callable


def in_a_child(work: Callable[[], bool], seconds: int = 60) -> int:
    """0 where the work is done and answers true; minus the signal that ended the child, where one did."""
    with warnings.catch_warnings():
        # Python 3.12 warns of forking where there are threads, which is what some of these tests are about.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 77
        try:
            faulthandler.disable()
            signal.alarm(seconds)
            status = 0 if work() else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
