"""A pytest plug-in that runs the official binding's own tests with et_cffi in its place.

    PYTHONPATH=tests/official python -m pytest -c tests/official/pytest.ini --import-mode=importlib \
        -p official_tests $(python tests/official/official_tests.py)

The test files come unmodified from the installed wheel. What they import as `executorch.runtime` and as
`executorch.extension.pybindings.portable_lib` is et_cffi; a test that is skipped and is not in
EXPECTED_SKIPS, or the official extension in the process, fails the run.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

FILES = (
    "extension/pybindings/test/test_pybindings.py",
    "extension/pybindings/test/test_backend_pybinding.py",
    "runtime/test/test_runtime.py",
    "runtime/test/test_runtime_etdump_gen.py",
    "runtime/test/test_runtime_xnnpack.py",
)
# Needs a build with the CUDA backend linked in, here as upstream.
EXPECTED_SKIPS = {"test_device_planned_method_allocates_on_the_device"}
EXPECTED_PASSES = 57
OFFICIAL_EXTENSION = "executorch.extension.pybindings._C"

_skipped: set[str] = set()
_passed: set[str] = set()


def files() -> list[str]:
    """The official test files, in the installed wheel."""
    spec = importlib.util.find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the official tests come with the wheel executorch==1.5.1, which is not installed")
    roots = [Path(location) for location in spec.submodule_search_locations]
    return [str(next(root / name for root in roots if (root / name).is_file())) for name in FILES]


def _take_the_place_of_the_official_modules() -> None:
    import executorch.extension.pybindings

    # The quantized kernels of the export-time plug-in: two of the tests need them in the process.
    import executorch.kernels.quantized

    import et_cffi.portable_lib

    sys.modules["executorch.runtime"] = et_cffi
    sys.modules["executorch.extension.pybindings.portable_lib"] = et_cffi.portable_lib
    executorch.runtime = et_cffi
    executorch.extension.pybindings.portable_lib = et_cffi.portable_lib


def pytest_configure(config: Any) -> None:
    _take_the_place_of_the_official_modules()


def pytest_runtest_logreport(report: Any) -> None:
    name = report.nodeid.rpartition("::")[2]
    if report.skipped:
        _skipped.add(name)
    elif report.when == "call" and report.passed:
        _passed.add(report.nodeid)


def official_extension_loaded() -> list[str]:
    """Where the official extension is in this process: as a module, or as a mapped file."""
    found = [OFFICIAL_EXTENSION] if OFFICIAL_EXTENSION in sys.modules else []
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    return found + [line for line in maps.splitlines() if "/extension/pybindings/_C." in line]


def pytest_sessionfinish(session: Any, exitstatus: int) -> None:
    problems = []
    if _skipped != EXPECTED_SKIPS:
        problems.append(f"skipped: {sorted(_skipped)}, and expected: {sorted(EXPECTED_SKIPS)}")
    if len(_passed) != EXPECTED_PASSES:
        problems.append(f"{len(_passed)} tests passed, and {EXPECTED_PASSES} should")
    loaded = official_extension_loaded()
    if loaded:
        problems.append(f"the official extension was loaded: {loaded}")
    if problems and not session.config.option.collectonly:
        print("\n" + "\n".join(f"OFFICIAL TESTS: {problem}" for problem in problems))
        session.exitstatus = 1


if __name__ == "__main__":
    print("\n".join(files()))
