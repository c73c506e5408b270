"""The plug-in of the tests, built and loaded: a device, and the backend that the device models delegate to.

`python tests/device/device_plugin.py` builds it into a temporary directory and prints where it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import et_cffi
from et_cffi import _capsule

HERE = Path(__file__).resolve().parent
TREE = HERE.parent.parent
PACKAGE = Path(et_cffi.__file__).parent

# Where a built one is, for the processes that a test starts.
VARIABLE = "ET_CFFI_TEST_DEVICE"

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
READ_ONLY = 1


def build(directory: Path, device: str = "fake_device") -> Path:
    """Compiles plugin/`device`.cpp and the backend against the SDK's headers and the package's libraries."""
    sys.path.insert(0, str(TREE))
    try:
        import sdk
    finally:
        sys.path.remove(str(TREE))
    product = directory / f"{device}.so"
    sources = [str(HERE / "plugin" / f"{name}.cpp") for name in (device, "demo_backend")]
    flags = [*sdk.find(fetch=False).compile_flags, f"-I{et_cffi.get_include()}"]
    flags += ["-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations"]
    libraries = [f"-L{PACKAGE / 'lib'}", "-lexecutorch", f"-Wl,-rpath,{PACKAGE / 'lib'}", "-ldl"]
    done = subprocess.run(
        [*sdk.cxx(), *sources, *flags, *libraries, "-o", str(product)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return product


class Counters(NamedTuple):
    """What the device's allocator was asked for since the last `reset`, and what is alive."""

    allocations: int
    frees: int
    live_blocks: int
    live_bytes: int
    host_to_device: int
    host_to_device_bytes: int
    device_to_host: int
    device_to_host_bytes: int

    @property
    def copies(self) -> tuple[int, int]:
        """How many copies to the device there were, and how many from it."""
        return self.host_to_device, self.device_to_host


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


# DLPack's type code by numpy's kind.
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


class Device:
    """The loaded plug-in: two devices, "cuda:0" and "cuda:1"."""

    def __init__(self, path: str) -> None:
        self._library = library = ctypes.CDLL(path)
        for name, result in {
            "test_device_foreign": ctypes.c_void_p,
            "test_device_lend": ctypes.c_void_p,
            "test_device_leases": ctypes.c_int64,
            "test_device_faults": ctypes.c_size_t,
            "test_backend_runs": ctypes.c_int64,
            "test_backend_handles": ctypes.c_int64,
            "test_backend_seen": ctypes.c_void_p,
        }.items():
            getattr(library, name).restype = result

    def counters(self, index: int = 0) -> Counters:
        values = (ctypes.c_int64 * len(Counters._fields))()
        self._library.test_device_counters(index, values)
        return Counters(*values)

    def copies(self) -> tuple[int, int]:
        """How many copies to a device there were, and how many from one, on both together."""
        return (
            sum(self.counters(index).host_to_device for index in (0, 1)),
            sum(self.counters(index).device_to_host for index in (0, 1)),
        )

    def live(self) -> int:
        """How many blocks of the allocator are alive, on both devices."""
        return self.counters(0).live_blocks + self.counters(1).live_blocks

    def reset(self) -> None:
        self._library.test_device_reset()

    def watched(self) -> Iterator[Device]:
        """This device for one test, which is to leave nothing on it."""
        self.reset()
        yield self
        for _ in range(3):
            gc.collect()
        assert self.faults() == ""
        assert self.live() == 0, "a test left blocks on the device"
        assert self.leases == 0, "a test left DLPack tensors claimed"
        assert self.delegates == 0, "a test left methods loaded"

    def faults(self) -> str:
        """What the device was asked for and cannot be."""
        text = ctypes.create_string_buffer(1 << 12)
        return text.raw[: self._library.test_device_faults(text, ctypes.c_size_t(len(text)))].decode()

    def fail_next(self, what: str) -> None:
        """The next "allocation", "host to device" or "device to host" fails."""
        kinds = ("allocation", "host to device", "device to host")
        self._library.test_device_fail_next(1 + kinds.index(what))

    @property
    def leases(self) -> int:
        """How many DLPack tensors were lent by `lend` and are not given back."""
        return int(self._library.test_device_leases())

    @property
    def runs(self) -> int:
        """How many times the backend ran."""
        return int(self._library.test_backend_runs())

    @property
    def delegates(self) -> int:
        """How many delegates are loaded."""
        return int(self._library.test_backend_handles())

    def seen(self) -> list[int]:
        """The addresses of x, y and their sum in the backend's last run."""
        return [self._library.test_backend_seen(argument) or 0 for argument in range(3)]

    def read(self, address: int, nbytes: int, index: int = 0) -> bytes:
        """What is in the device's memory, uncounted."""
        data = ctypes.create_string_buffer(nbytes)
        read = self._library.test_device_read(index, ctypes.c_void_p(address), data, ctypes.c_size_t(nbytes))
        assert read, f"{nbytes} bytes at {address:#x} are not on cuda:{index}"
        return data.raw

    def write(self, address: int, data: bytes, index: int = 0) -> None:
        written = self._library.test_device_write(
            index, ctypes.c_void_p(address), data, ctypes.c_size_t(len(data))
        )
        assert written, f"{len(data)} bytes at {address:#x} are not on cuda:{index}"

    def foreign(self, nbytes: int, index: int = 0) -> Foreign:
        return Foreign(self, nbytes, index)

    def lend(
        self,
        address: int,
        array: Any,
        *,
        device: tuple[int, int],
        versioned: bool = False,
        flags: int = 0,
    ) -> Any:
        """A DLPack capsule over memory at `address` that is laid out as `array` is."""
        dimensions = ctypes.c_int64 * array.ndim
        tensor = _Tensor(
            address,
            *device,
            array.ndim,
            _CODES[array.dtype.kind],
            array.itemsize * 8,
            1,
            dimensions(*array.shape),
            dimensions(*(stride // array.itemsize for stride in array.strides)),
            0,
        )
        managed = self._library.test_device_lend(ctypes.byref(tensor), int(versioned), ctypes.c_uint64(flags))
        return _capsule.wrap(managed, versioned)


class Foreign:
    """Memory on the device that an array library allocated: freed with this object."""

    def __init__(self, device: Device, nbytes: int, index: int) -> None:
        self.device, self.nbytes, self.index = device, nbytes, index
        self.address: int = device._library.test_device_foreign(index, ctypes.c_size_t(nbytes))
        assert self.address

    def free(self) -> None:
        if self.address:
            self.device._library.test_device_foreign_free(self.index, ctypes.c_void_p(self.address))
            self.address = 0

    def __del__(self) -> None:
        self.free()


_loaded: list[Device] = []


def load(path: str) -> Device:
    """Loads the plug-in into this process, for ever: what is registered with the runtime stays."""
    if not _loaded:
        # Whatever script the stand-ins serve may have loaded it by itself.
        with contextlib.suppress(et_cffi.errors.AlreadyRegisteredError):
            et_cffi.Runtime.get().load_library(path)
        _loaded.append(Device(path))
    return current()


def current() -> Device:
    """The plug-in that this process has: for the stand-ins, which may be asked before a test loads it."""
    return _loaded[0] if _loaded else load(os.environ[VARIABLE])


if __name__ == "__main__":
    print(build(Path(tempfile.mkdtemp())))
