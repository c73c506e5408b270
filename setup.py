"""Builds libet_cffi (the C++ wrapper), bundles the runtime beside it, and builds the two extensions."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # a PEP 517 front end does not put it there

import sdk  # noqa: E402

MACOS = sys.platform == "darwin"
WRAPPER = f"libet_cffi{sdk.SUFFIX}"
# Of what the libraries hold (third_party/README.md), to be kept beside them.
LICENSES = {f"LICENSE.{path.parent.name}": path for path in sorted(HERE.glob("third_party/*/LICENSE"))}
WERROR = ["-Werror"] if os.environ.get("ET_CFFI_WERROR") == "1" else []
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Wsign-conversion", *WERROR]
# The runtime marks what it calls experimental as deprecated; its version is pinned, so nothing follows.
WARNINGS += ["-Wno-deprecated-declarations"]

LIMITED_API = (
    sys.implementation.name == "cpython"
    and not hasattr(sys, "gettotalrefcount")
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)
MACROS = [("Py_LIMITED_API", "0x03090000")] if LIMITED_API else []


def origin(*below: str) -> str:
    return "/".join(["@loader_path" if MACOS else "$ORIGIN", *below])


def run(command: list[str], what: str) -> None:
    print(shlex.join(command), flush=True)
    if subprocess.run(command).returncode != 0:
        raise SystemExit(f"error: could not {what}; the compiler's messages are above")


def out_of_date(product: Path, command: list[str]) -> bool:
    """Whether the product is older than a file it was made from, or was made by another command."""
    note, depends = product.with_suffix(".cmd"), product.with_suffix(".d")
    if not product.exists() or not note.exists() or note.read_text() != shlex.join(command):
        return True
    made = product.stat().st_mtime
    names = depends.read_text().replace("\\\n", " ").split()[1:]
    return any(not Path(name).exists() or Path(name).stat().st_mtime > made for name in names)


def compile_wrapper(found: sdk.SDK) -> Path:
    """libet_cffi. There is no Python in it, so every interpreter that is built for can share its objects."""
    objects = HERE / "build" / f"wrapper-{sysconfig.get_platform()}"
    extra = shlex.split(os.environ.get("CXXFLAGS", ""))
    link_extra = shlex.split(os.environ.get("LDFLAGS", ""))
    compiler = sdk.cxx()
    flags = [*found.compile_flags, f"-isystem{HERE / 'third_party/flatbuffers/include'}"]
    flags += [f"-I{HERE / 'include'}", f"-I{HERE / 'csrc'}"]
    flags += ["-O2", "-fPIC", "-pthread", "-fvisibility=hidden", *WARNINGS, *extra]
    objects.mkdir(parents=True, exist_ok=True)

    def compile_one(source: Path) -> Path:
        product = objects / f"{source.stem}.o"
        depends = product.with_suffix(".d")
        command = [*compiler, *flags, "-MMD", "-MF", str(depends), "-c", str(source), "-o", str(product)]
        if out_of_date(product, command):
            run(command, f"compile csrc/{source.name}")
            product.with_suffix(".cmd").write_text(shlex.join(command))
        return product

    sources = sorted((HERE / "csrc").glob("*.cpp"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        products = [str(product) for product in pool.map(compile_one, sources)]
    wrapper = objects / WRAPPER
    if MACOS:
        shared = ["-dynamiclib", f"-Wl,-install_name,@rpath/{WRAPPER}"]
    else:
        # A function that is declared and not written is found here, not by whoever imports the module.
        # (Clang's sanitizers leave theirs to be found in the executable.)
        shared = ["-shared", f"-Wl,-soname,{WRAPPER}", f"-Wl,--version-script={HERE / 'csrc/exports.map'}"]
        shared += [] if any("-fsanitize" in flag for flag in extra + link_extra) else ["-Wl,-z,defs"]
    command = [*compiler, *shared, *products, "-pthread", f"-L{found.lib}"]
    command += ["-lexecutorch", "-lexecutorch_etdump", "-lexecutorch_threadpool"]
    command += [f"-Wl,-rpath,{origin()}", *extra, *link_extra, "-o", str(wrapper)]
    run(command, f"link {WRAPPER}")
    return wrapper


def replace(source: Path, target: Path) -> None:
    # Never written in place: a running process may have the old file mapped.
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f"{target.name}.new")
    shutil.copyfile(source, new)
    new.chmod(0o644)
    new.replace(target)


class BuildExt(build_ext):
    """Puts et_cffi/lib/ and et_cffi/include/ in place first: the cffi extension links what is there."""

    def build_extensions(self) -> None:
        try:
            found = sdk.find()
            wrapper = compile_wrapper(found)
        except sdk.SDKError as error:
            raise SystemExit(f"error: {error}") from None
        package = Path(self.build_lib, "et_cffi")
        for name in sdk.LIBRARIES:
            replace(found.lib / name, package / "lib" / name)
        replace(wrapper, package / "lib" / WRAPPER)
        for name, source in LICENSES.items():
            replace(source, package / "lib" / name)
        (package / "lib" / "EXECUTORCH_VERSION").write_text(f"{sdk.VERSION}\n")
        replace(HERE / "include/et_cffi.h", package / "include/et_cffi.h")
        for extension in self.extensions:
            extension.extra_compile_args += ["-Wall", "-Wextra", *WERROR]
            extension.define_macros += MACROS
            if "et_cffi" in extension.libraries:
                extension.library_dirs.append(str(package / "lib"))
                extension.extra_link_args.append(f"-Wl,-rpath,{origin('lib')}")
        super().build_extensions()

    def staged(self) -> list[Path]:
        names = [*sdk.LIBRARIES, WRAPPER, *LICENSES, "EXECUTORCH_VERSION"]
        return [Path("et_cffi", "lib", name) for name in names] + [Path("et_cffi/include/et_cffi.h")]

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        for file in self.staged():
            replace(Path(self.build_lib, file), HERE / file)

    def get_outputs(self) -> list[str]:
        staged = {str(Path(self.build_lib, file)) for file in self.staged()}
        return sorted({*super().get_outputs(), *staged})

    def get_output_mapping(self) -> dict[str, str]:
        mapping = super().get_output_mapping()
        if self.inplace:
            mapping.update({str(Path(self.build_lib, file)): str(file) for file in self.staged()})
        return mapping


setup(
    packages=["et_cffi", "et_cffi._schema", "et_cffi.cli"],
    package_data={"et_cffi": ["py.typed", "selftest/*"]},
    ext_modules=[
        Extension(
            f"et_cffi._{name}",
            [f"csrc/{name}.c"],
            include_dirs=["include"],
            libraries=["et_cffi"] if name == "cpython" else [],
            depends=["include/et_cffi.h"],
            py_limited_api=LIMITED_API,
        )
        # PyPy's own memoryview is the faster one there.
        for name in (["capsule"] if sys.implementation.name == "pypy" else ["capsule", "cpython"])
    ],
    cffi_modules=["build_ffi.py:ffibuilder"],
    cmdclass={"build_ext": BuildExt},
    options={"bdist_wheel": {"py_limited_api": "cp39"}} if LIMITED_API else {},
)
