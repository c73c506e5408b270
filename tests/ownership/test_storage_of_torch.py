"""A torch tensor can be resized, or its storage replaced, while the object stays alive: it is pointed at only
where its storage is torch's own, the storage is held too, and both are asked again before each run."""

from __future__ import annotations

import gc
import sys
import weakref

import numpy
import pytest
from holding import OTHER, X, Y
from support import case_of, load

from et_cffi.errors import MemoryMovedError, MethodStateError

pytestmark = pytest.mark.torch

MOVED = pytest.raises(MemoryMovedError, match="moved or resized after it was set")


@pytest.fixture
def torch():
    import torch

    return torch


def own(torch, values):
    """A tensor whose storage is torch's own."""
    tensor = torch.empty(values.shape)
    tensor.copy_(torch.from_numpy(values.copy()))
    assert tensor.untyped_storage().resizable()
    return tensor


def two(method):
    return numpy.asarray(method.execute()[0])


def test_its_own_storage_is_pointed_at(torch):
    """Fails where `pinned` does not ask the storage (_torch.py: `storage.resizable()`)."""
    method = load("add_unplanned")
    x = own(torch, X)
    method.set_inputs([x, Y])
    x.copy_(torch.from_numpy(OTHER))
    numpy.testing.assert_array_equal(two(method), OTHER + Y)


def test_a_view_is_pointed_at(torch):
    method = load("add_unplanned")
    base = torch.zeros(3, 2, 2)
    base[1] = own(torch, X)
    method.set_inputs([base[1], Y])
    numpy.testing.assert_array_equal(two(method), X + Y)
    base[1] = own(torch, OTHER)
    numpy.testing.assert_array_equal(two(method), OTHER + Y)


def borrowed(torch):
    array = X.copy()
    yield "from_numpy", torch.from_numpy(array), array
    memory = bytearray(X.tobytes())
    yield "frombuffer", torch.frombuffer(memory, dtype=torch.float32).reshape(2, 2), memory
    array = X.copy()
    yield "from_dlpack", torch.from_dlpack(array), array
    tensor = own(torch, X)
    yield "lent to numpy", tensor, tensor.numpy()


@pytest.mark.parametrize("which", range(4))
def test_a_storage_that_somebody_else_owns_is_copied(torch, which):
    """It may be freed under torch by whoever owns it. Fails where `pinned` does not ask (_torch.py)."""
    _, tensor, memory = list(borrowed(torch))[which]
    assert not tensor.untyped_storage().resizable()
    method = load("add_unplanned")
    method.set_inputs([tensor, Y])
    numpy.frombuffer(memory, numpy.float32)[:] = OTHER.ravel()
    numpy.testing.assert_array_equal(tensor, OTHER)
    numpy.testing.assert_array_equal(two(method), X + Y)


@pytest.mark.parametrize("which", range(4))
def test_a_storage_that_somebody_else_owns_is_copied_in_one_step(torch, which):
    """The same of a run by CPython's C API (cpython.c: `given->resizable`)."""
    _, tensor, memory = list(borrowed(torch))[which]
    method = load("add_unplanned")
    numpy.testing.assert_array_equal(method.execute([tensor, torch.from_numpy(Y)])[0], X + Y)
    numpy.frombuffer(memory, numpy.float32)[:] = OTHER.ravel()
    numpy.testing.assert_array_equal(two(method), X + Y)


def test_a_planned_input_is_copied(torch):
    method = load("add")
    x = own(torch, X)
    before = sys.getrefcount(x)
    method.set_inputs([x, Y])
    assert sys.getrefcount(x) == before
    x.zero_()
    numpy.testing.assert_array_equal(two(method), X + Y)


def test_a_borrowed_tensor_is_unchanged_by_a_method_that_writes_its_input(torch):
    """Fails where `pinned` does not ask the storage (_torch.py)."""
    case = case_of("writes_input_unplanned")
    x, y = case.inputs
    load("writes_input_unplanned").execute([torch.from_numpy(x), y])
    numpy.testing.assert_array_equal(x, case.inputs[0])


CHANGES = {
    "resize_ larger": lambda torch, x: x.resize_(1 << 20),
    "resize_ smaller storage": lambda torch, x: x.untyped_storage().resize_(4),
    "no storage": lambda torch, x: x.untyped_storage().resize_(0),
    "larger storage": lambda torch, x: x.untyped_storage().resize_(1 << 22),
    "set_": lambda torch, x: x.set_(torch.ones(2, 2)),
    "data": lambda torch, x: setattr(x, "data", torch.ones(2, 2)),
    "shared memory": lambda torch, x: x.share_memory_(),
    "through a view": lambda torch, x: x[:].untyped_storage().resize_(1 << 22),
}


@pytest.mark.parametrize("in_one_step", [False, True])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_storage_that_was_changed(torch, change, in_one_step):
    """Fails where the run does not ask where tensor and storage are (_torch.py: `locate`; method.py:
    _have_moved)."""
    method = load("add_unplanned")
    x = own(torch, X)
    method.execute([x, Y]) if in_one_step else method.set_inputs([x, Y])
    change(torch, x)
    with MOVED:
        method.execute()
    with MOVED:
        method.execute()
    method.set_inputs([own(torch, OTHER), Y])
    numpy.testing.assert_array_equal(two(method), OTHER + Y)


def test_a_storage_that_was_resized_while_the_next_input_was_described(torch):
    """Fails where _give does not look before it hands over the pointers (method.py)."""
    x = own(torch, X)

    class Resizes:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **keywords):
            x.untyped_storage().resize_(0)
            return Y.copy().__dlpack__()

    for name in ("add", "add_unplanned"):
        x.untyped_storage().resize_(16)
        x.copy_(torch.from_numpy(X))
        with MOVED:
            load(name).set_inputs([x, Resizes()])


def test_one_reference_while_held_and_none_after(torch):
    """Fails where set inputs are not kept, or kept twice (method.py, _replace_inputs; _torch.py)."""
    method = load("add_unplanned")
    x = own(torch, X)
    before = sys.getrefcount(x)
    method.set_inputs([x, Y])
    assert sys.getrefcount(x) == before + 1
    two(method)
    assert sys.getrefcount(x) == before + 1
    method.set_inputs([Y, Y])
    assert sys.getrefcount(x) == before


def test_held_while_the_caller_drops_it(torch):
    """Fails where neither the tensor nor its storage is held."""
    method = load("add_unplanned")
    x = own(torch, X)
    gone = weakref.ref(x)
    method.set_inputs([x, Y])
    del x
    gc.collect()
    assert [torch.full((2, 2), 9e9) for _ in range(1000)]
    numpy.testing.assert_array_equal(two(method), X + Y)
    method.close()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("clone", [True, False])
@pytest.mark.parametrize("name", ["add", "add_unplanned", "identity_only_unplanned"])
def test_a_tensor_handed_over_outlives_everything(torch, name, clone):
    """Fails where a result's tensor does not hold the memory (_torch.py, to_torch)."""
    case = case_of(name)
    method = load(name)
    (result,) = method.execute(case.inputs, clone_outputs=clone)
    assert type(result) is torch.Tensor
    assert method.get_outputs(clone_outputs=clone)[0] is result
    method.close()
    del method
    gc.collect()
    assert [bytearray(b"\xff" * 256) for _ in range(1000)]
    numpy.testing.assert_array_equal(result, case.outputs[0])


def test_an_earlier_tensor_is_unchanged_after_a_later_call(torch):
    method = load("add_unplanned")
    (first,) = method.execute([X, Y], clone_outputs=False)
    method.execute([OTHER, Y], clone_outputs=False)
    numpy.testing.assert_array_equal(first, X + Y)
    with pytest.raises(MethodStateError):
        method.close()
        method.execute()
