"""A pytest plug-in that runs the official binding's own tests with et_cffi in its place.

    PYTHONPATH=tests/official python -m pytest -c tests/official/pytest.ini --import-mode=importlib \
        -p official_tests $(python tests/official/official_tests.py)

and the same with --quantized. The test files come unmodified from the installed wheel. What they import as
`executorch.runtime` and as `executorch.extension.pybindings.portable_lib` is et_cffi. The run fails unless as
many tests pass as do upstream, exactly those of EXPECTED_SKIPS are skipped, and the official extension was
never loaded.

Two tests need `executorch.kernels.quantized`, whose library links the official extension's file, so that
importing it maps that file. They are the ones that --quantized runs, in a process of their own, where only
the extension's import is looked for.
"""

from __future__ import annotations

import importlib
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
QUANTIZED = {"test_quantized_ops", "test_method_quantized_ops"}
# Needs a build with the CUDA backend linked in, here as upstream.
EXPECTED_SKIPS = {"test_device_planned_method_allocates_on_the_device"}
EXPECTED_PASSES = {False: 55, True: 2}  # by --quantized
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


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--quantized", action="store_true", help="run the tests that need quantized kernels")


def pytest_configure(config: Any) -> None:
    if config.option.quantized:
        importlib.import_module("executorch.kernels.quantized")
    et_cffi = importlib.import_module("et_cffi")
    portable_lib = importlib.import_module("et_cffi.portable_lib")
    sys.modules["executorch.runtime"] = et_cffi
    sys.modules["executorch.extension.pybindings.portable_lib"] = portable_lib
    # `from executorch.extension.pybindings import portable_lib` asks the package first.
    vars(importlib.import_module("executorch"))["runtime"] = et_cffi
    vars(importlib.import_module("executorch.extension.pybindings"))["portable_lib"] = portable_lib


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    kept = [item for item in items if (item.name in QUANTIZED) == config.option.quantized]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def pytest_runtest_logreport(report: Any) -> None:
    if report.skipped:
        _skipped.add(report.nodeid.rpartition("::")[2])
    elif report.when == "call" and report.passed:
        _passed.add(report.nodeid)


def official_extension_loaded(quantized: bool) -> list[str]:
    """Where the official extension is in this process: as a module, or as a mapped file."""
    found = [OFFICIAL_EXTENSION] if OFFICIAL_EXTENSION in sys.modules else []
    if quantized:
        return found
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    return found + sorted({line.split()[-1] for line in maps.splitlines() if "/pybindings/_C." in line})


def pytest_sessionfinish(session: Any) -> None:
    quantized = session.config.option.quantized
    problems = []
    if _skipped != (set() if quantized else EXPECTED_SKIPS):
        problems.append(f"skipped: {sorted(_skipped)}, and expected: {sorted(EXPECTED_SKIPS)}")
    if len(_passed) != EXPECTED_PASSES[quantized]:
        problems.append(f"{len(_passed)} tests passed, and {EXPECTED_PASSES[quantized]} should")
    loaded = official_extension_loaded(quantized)
    if loaded:
        problems.append(f"the official extension was loaded: {loaded}")
    if problems:
        print("\n" + "\n".join(f"OFFICIAL TESTS: {problem}" for problem in problems))
        session.exitstatus = 1


if __name__ == "__main__":
    print("\n".join(files()))
