"""How many threads kernels and backends use."""

from __future__ import annotations

from et_cffi._lib import ffi, lib
from et_cffi._log import forward_log
from et_cffi.errors import check


def num_threads() -> int:
    """How many threads a run may use, the calling one included.

    It begins as the number of processors that the runtime finds, whatever the process may use of them (a
    container's limit, an affinity mask): set it where that is less.
    """
    count = ffi.new("size_t *")
    check(lib.etcffi_num_threads(count))
    return int(count[0])


def set_num_threads(count: int) -> None:
    """Sets how many threads a run may use, for all methods of this process, from the next run on.

    It waits for the loads and runs that are under way on other threads and holds back new ones meanwhile.
    `executorch.runtime` in the same process uses the same threads and is not waited for.

    Args:
        count: 1 or more.

    Raises:
        ValueError: fewer than 1.
        ThreadError: another number than 1 and the one that was set before any of them was loaded, while
            methods that delegate to a backend are loaded, which hold the present threads; or called from
            within a run.
    """
    if count < 1:
        raise ValueError(f"the number of threads is 1 or more, not {count}")
    check(lib.etcffi_set_num_threads(count))
    forward_log()
