"""python -m et_cffi"""

import signal
import sys

from et_cffi.cli import main

if __name__ == "__main__":
    # As for any Unix tool: a reader that goes away, or Ctrl-C, ends the process at once and in silence.
    # Python would wait for a model to finish running before it raised KeyboardInterrupt.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored (nohup)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())
