"""et_cffi._capsule: who owns a managed tensor, before and after each call."""

from __future__ import annotations

import gc

import pytest

from et_cffi import _capsule, ffi

STRUCTS = {False: "DLManagedTensor", True: "DLManagedTensorVersioned"}


class Managed:
    """A managed tensor that counts the calls of its deleter."""

    def __init__(self, versioned: bool) -> None:
        self.deleted = 0
        self.versioned = versioned
        self.callback = ffi.callback(f"void({STRUCTS[versioned]} *)", self.count)
        self.struct = ffi.new(f"{STRUCTS[versioned]} *", {"deleter": self.callback})
        self.address = int(ffi.cast("uintptr_t", self.struct))

    def count(self, managed: object) -> None:
        assert managed == self.struct
        self.deleted += 1

    def wrap(self) -> object:
        return _capsule.wrap(self.address, self.versioned)


def collect() -> None:
    for _ in range(3):
        gc.collect()


@pytest.fixture(params=[False, True], ids=["legacy", "versioned"])
def managed(request):
    return Managed(request.param)


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


@pytest.mark.parametrize("thing", [None, 3, "dltensor", object()])
def test_other_objects_are_refused(thing):
    with pytest.raises(TypeError, match="DLPack capsule"):
        _capsule.claim(thing)


def test_a_capsule_of_something_else_is_refused():
    datetime_api = pytest.importorskip("datetime").datetime_CAPI
    with pytest.raises(TypeError, match=r"datetime\.datetime_CAPI"):
        _capsule.claim(datetime_api)


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
