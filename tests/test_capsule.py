"""et_cffi._capsule: who owns a managed tensor, before and after each call."""

from __future__ import annotations

import ctypes
import datetime
import gc
import subprocess
import sys

import pytest

from et_cffi import _capsule, ffi

STRUCTS = {False: "DLManagedTensor", True: "DLManagedTensorVersioned"}


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    """A deleter in C that counts: deleters get no interpreter (PyPy would wait for itself for ever)."""
    directory = tmp_path_factory.mktemp("native")
    source, library = directory / "count.c", directory / "count.so"
    source.write_text(
        "static int calls; static void *last;\n"
        "void deleter(void *managed) { calls++; last = managed; }\n"
        "int count(void) { return calls; }\n"
        "void *argument(void) { return last; }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    native = ctypes.CDLL(str(library))
    native.argument.restype = ctypes.c_void_p
    return native


class Managed:
    """A managed tensor whose deleter counts its calls."""

    def __init__(self, versioned: bool, native: ctypes.CDLL) -> None:
        self.versioned = versioned
        self.native = native
        self.before = native.count()
        deleter = ctypes.cast(native.deleter, ctypes.c_void_p).value
        self.struct = ffi.new(f"{STRUCTS[versioned]} *")
        self.struct.deleter = ffi.cast(ffi.typeof(self.struct.deleter), deleter)
        self.address = int(ffi.cast("uintptr_t", self.struct))

    @property
    def deleted(self) -> int:
        calls = self.native.count() - self.before
        assert not calls or self.native.argument() == self.address
        return calls

    def wrap(self) -> object:
        return _capsule.wrap(self.address, self.versioned)


def collect() -> None:
    for _ in range(3):
        gc.collect()


@pytest.fixture(params=[False, True], ids=["legacy", "versioned"])
def managed(request, native):
    return Managed(request.param, native)


def test_an_unclaimed_tensor_is_deleted_once(managed):
    capsule = managed.wrap()
    assert f'"{"dltensor_versioned" if managed.versioned else "dltensor"}"' in repr(capsule)
    assert managed.deleted == 0
    del capsule
    collect()
    assert managed.deleted == 1


def test_a_claimed_tensor_is_the_callers(managed):
    capsule = managed.wrap()
    assert _capsule.claim(capsule) == (managed.address, managed.versioned)
    assert '"used_dltensor' in repr(capsule)
    del capsule
    collect()
    assert managed.deleted == 0


def test_a_second_claim_is_refused(managed):
    capsule = managed.wrap()
    _capsule.claim(capsule)
    with pytest.raises(ValueError, match="already consumed"):
        _capsule.claim(capsule)


def test_a_tensor_without_a_deleter(managed):
    managed.struct.deleter = ffi.NULL
    capsule = managed.wrap()
    del capsule
    collect()
    assert managed.deleted == 0


def test_an_exception_in_flight_survives(managed):
    def fail() -> None:
        capsule = managed.wrap()  # goes away as the exception passes
        raise KeyError(type(capsule))

    with pytest.raises(KeyError):
        fail()
    collect()
    assert managed.deleted == 1


@pytest.mark.skipif(not hasattr(sys, "getrefcount"), reason="counts references")
def test_no_references_are_lost(managed):
    def both() -> None:
        capsule = managed.wrap()
        with pytest.raises(TypeError):
            _capsule.claim(None)
        _capsule.claim(capsule)
        with pytest.raises(ValueError):
            _capsule.claim(capsule)
        assert sys.getrefcount(capsule) <= 2

    if sys.version_info >= (3, 12):
        # None and the bools are immortal: their counts say nothing of an extension built for an older Python.
        for _ in range(200):
            both()
        return
    before = sys.getrefcount(None), sys.getrefcount(True), sys.getrefcount(False)
    for _ in range(200):
        both()
    after = sys.getrefcount(None), sys.getrefcount(True), sys.getrefcount(False)
    assert all(abs(one - other) < 100 for one, other in zip(before, after))


@pytest.mark.parametrize("thing", [None, 3, "dltensor", object()])
def test_other_objects_are_refused(thing):
    with pytest.raises(TypeError, match="DLPack capsule"):
        _capsule.claim(thing)


def test_capsules_of_something_else_are_refused():
    pytest.importorskip("numpy")
    module = sys.modules.get("numpy._core._multiarray_umath") or sys.modules["numpy.core._multiarray_umath"]
    with pytest.raises(TypeError, match="not one without a name"):
        _capsule.claim(module._ARRAY_API)
    if sys.implementation.name == "cpython":
        with pytest.raises(TypeError, match=r"not one named 'datetime\.datetime_CAPI'"):
            _capsule.claim(datetime.datetime_CAPI)


@pytest.mark.parametrize("address", [0, -1 << 70, 1 << 70])
def test_wrap_refuses_what_is_no_address(address):
    with pytest.raises((ValueError, OverflowError)):
        _capsule.wrap(address, False)


def test_wrap_refuses_what_is_no_int():
    with pytest.raises(TypeError):
        _capsule.wrap("1", False)


def test_a_capsule_of_numpy():
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(6.0).reshape(2, 3)
    address, versioned = _capsule.claim(array.__dlpack__())
    assert not versioned
    managed = ffi.cast("DLManagedTensor *", address)
    assert managed.dl_tensor.ndim == 2
    assert [managed.dl_tensor.shape[i] for i in range(2)] == [2, 3]
    assert int(ffi.cast("uintptr_t", managed.dl_tensor.data)) == array.ctypes.data
    managed.deleter(managed)
