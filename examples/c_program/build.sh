#!/bin/sh
# build.sh [PROGRAM]: compiles digits.c against the et_cffi of `python` ($PYTHON). The kernels and
# the backend register themselves as they are loaded; nothing in the program refers to them, hence --no-as-needed.
set -eu
python=${PYTHON:-python}
include=$("$python" -c 'import et_cffi; print(et_cffi.get_include())')
libraries=$("$python" -c 'import et_cffi; print(et_cffi.get_library_dir())')
${CC:-cc} -std=c11 -O2 -Wall -Wextra -Wpedantic -Werror "$(dirname "$0")/digits.c" "-I$include" \
  "-L$libraries" "-Wl,-rpath,$libraries" -Wl,--no-as-needed -let_cffi -lexecutorch_kernels_optimized \
  -lexecutorch_backend_xnnpack -o "${1:-digits}"
