"""python -m et_cffi"""

import sys

from et_cffi.cli import console

if __name__ == "__main__":
    sys.exit(console())
