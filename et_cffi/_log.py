"""The runtime's log lines, on their way to `logging.getLogger("et_cffi")`."""

from __future__ import annotations

from et_cffi._lib import ffi, lib

_counter = lib.etcffi_log_counter()
_forwarded = 0
_BUFFER_SIZE = 1 << 16


def forward_log() -> None:
    """Hands every line that the runtime has logged since the last time to the logger "et_cffi"."""
    global _forwarded
    count = _counter[0]
    if count == _forwarded:
        return
    _forwarded = count
    import logging  # not needed, and not paid for, until the runtime says something

    levels = {"D": logging.DEBUG, "I": logging.INFO, "E": logging.ERROR, "F": logging.CRITICAL}
    logger = logging.getLogger("et_cffi")
    # A library does not write to stderr for an application that configured no logging.
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    buffer = ffi.new("char[]", _BUFFER_SIZE)
    while lib.etcffi_take_log(buffer, _BUFFER_SIZE):
        for line in ffi.string(buffer).decode("utf-8", "replace").splitlines():
            logger.log(levels.get(line[:1], logging.WARNING), "%s", line[2:])
