"""A pointer to a result holds the result's memory, and a pointer to a program the program, as long as the
pointer is there and no longer. (Pointers as inputs are among the sources of the other tests here.)"""

from __future__ import annotations

import gc
import weakref

import model_index
import numpy
import pytest
from holding import X, Y
from support import collect, load

import et_cffi
from et_cffi import ffi, from_cdata


@pytest.mark.parametrize("clone", [True, False], ids=["cloned", "lent"])
@pytest.mark.parametrize("name", ["add", "add_unplanned"])
def test_a_pointer_outlives_the_result_and_its_method(name, clone):
    """Fails where the pointer does not hold the result (cdata.py, pointer_to), or something else does."""
    method = load(name)
    result = method.execute([X, Y], clone_outputs=clone)[0]
    gone = weakref.ref(result)
    pointer = result.cdata()
    del result
    method.close()
    del method
    collect()
    garbage = [bytearray(b"\xff" * 64) for _ in range(1000)]
    assert gone() is not None
    assert list(pointer[0:4]) == (X + Y).ravel().tolist()
    del pointer, garbage
    for _ in range(3):
        collect()
    assert gone() is None


def test_let_go_of_early():
    result = load("add").execute([X, Y])[0]
    gone = weakref.ref(result)
    pointer = result.cdata()
    del result
    ffi.release(pointer)
    for _ in range(3):
        collect()
    assert gone() is None


def test_a_pointer_in_a_cycle_is_collected():
    class Node:
        pass

    node = Node()
    node.result = load("add").execute([X, Y])[0]
    node.pointer, node.itself = node.result.cdata(), node
    gone = weakref.ref(node.result)
    del node
    for _ in range(3):
        gc.collect()
    assert gone() is None


def test_a_result_goes_back_in_by_its_pointer():
    method = load("add_unplanned")
    first = method.execute([X, Y])[0]
    pointer = first.cdata()
    del first
    method.set_inputs([from_cdata(pointer, (2, 2)), from_cdata(pointer, (2, 2))])
    del pointer
    collect()
    numpy.testing.assert_array_equal(method.execute()[0], 2 * (X + Y))


def test_c_code_loads_a_method_of_a_program():
    """And the pointer holds the program, whose bytes nobody else has."""
    data = bytes(bytearray(model_index.path("add_unplanned").read_bytes()))
    handle = et_cffi.Runtime.get().load_program(data).cdata()
    del data
    collect()
    garbage = [bytearray(b"\xff" * 1072) for _ in range(200)]
    made = ffi.new("etcffi_method **")
    assert et_cffi.lib.etcffi_method_load(handle, b"forward", made) == 0
    method = ffi.gc(made[0], et_cffi.lib.etcffi_method_release)
    values = ffi.new("etcffi_value[2]")
    arrays = [X.copy(), Y.copy()]
    for value, array in zip(values, arrays):
        value.tag = et_cffi.lib.ETCFFI_Tag_Tensor
        value.memory.data, value.memory.nbytes = ffi.from_buffer(array), array.nbytes
        value.memory.scalar_type, value.memory.ndim = et_cffi.lib.ETCFFI_ScalarType_Float, 2
        value.memory.sizes[0:2] = [2, 2]
    outputs = ffi.new("etcffi_value[1]")
    assert et_cffi.lib.etcffi_method_run(method, values, 2, 1, outputs, 1) == 0
    tensor = ffi.gc(outputs[0].tensor, et_cffi.lib.etcffi_tensor_release)
    data = et_cffi.lib.etcffi_tensor_memory(tensor).data
    assert list(ffi.cast("float *", data)[0:4]) == (X + Y).ravel().tolist()
    ffi.release(method)
    assert garbage


def test_a_program_that_was_let_go_of_has_no_pointer():
    program = et_cffi.Runtime.get().load_program(model_index.path("add"))
    ffi.release(program.cdata())
    with pytest.raises(et_cffi.ExecuTorchError, match="the program is gone"):
        program.cdata()
