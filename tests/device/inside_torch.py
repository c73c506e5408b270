"""A process that has a torch with CUDA, or a stand-in for it: results are torch tensors, which go back in."""

from __future__ import annotations

import sys

import device_plugin
import model_index
import numpy
import pytest
from device_cases import case, inputs, load

from et_cffi import TensorBuffer
from et_cffi.errors import DeviceError, DtypeError, InputKindError, MemoryMissingError, MemoryMovedError

sys.path.insert(0, str(device_plugin.HERE / "fakes"))

import torch

# Only the stand-in is for this process: a real torch could not reach the device.
assert torch.__file__.startswith(str(device_plugin.HERE))


@pytest.fixture(autouse=True)
def as_it_was():
    yield
    torch.cuda.available, torch.cuda.memory.backend, torch.version.hip = True, "native", None
    torch.cuda.stream = torch.cuda.Stream()


def tensors(case, index=0):
    return [torch.from_numpy(values).cuda(index) for values in inputs(case)]


@pytest.mark.parametrize(("name", "index"), [("device_add", 0), ("device_add_index1", 1)])
def test_nothing_is_copied_in_or_out(device, name, index):
    x, y = tensors(case(name), index)
    (result,) = load(name).execute([x, y])
    assert device.copies() == (0, 0)
    assert type(result) is torch.Tensor
    assert str(result.device) == f"cuda:{index}"
    assert device.seen() == [x.data_ptr(), y.data_ptr(), result.data_ptr()]
    assert numpy.array_equal(result.numpy(), case(name).outputs[0])
    # torch orders the stream of the consumer after its own.
    assert x.streams == y.streams == [1]


def test_a_result_goes_straight_back_in(device):
    """The tensor is over memory that is not torch's, and so is on no list; the memory is this library's."""
    method = load("device_add")
    (one,) = method.execute(tensors(case("device_add")))
    method.set_inputs([one, one])
    expected = one.numpy() * 2
    del one
    (total,) = method.execute()
    assert device.copies() == (0, 0)
    assert numpy.array_equal(total.numpy(), expected)


def test_torch_asks_with_its_stream(device):
    method = load("device_add")
    given = tensors(case("device_add"))
    torch.cuda.stream = torch.cuda.Stream(0x5000)
    method.execute(given)
    # It was waited for, since the runtime's work is ordered with the default stream only.
    assert device.counters().device_to_host_bytes == 1


def test_a_tensor_that_requires_a_gradient(device):
    x, y = tensors(case("device_add"))
    x.requires_grad = True
    (result,) = load("device_add").execute([x, y])
    assert device.copies() == (0, 0)
    assert numpy.array_equal(result.numpy(), case("device_add").outputs[0])


def test_a_part_of_a_storage(device):
    whole = torch.from_numpy(numpy.arange(8, dtype=numpy.float32)).cuda()
    halves = [
        torch.Tensor(whole.untyped_storage(), (2, 2), (2, 1), "float32", whole.device, offset)
        for offset in (0, 4)
    ]
    (result,) = load("device_add").execute(halves)
    assert device.copies() == (0, 0)
    assert numpy.array_equal(result.numpy(), [[4, 6], [8, 10]])


@pytest.mark.parametrize("how", ["set_", "resize_"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_storage_that_is_replaced_is_noticed(device, how, which):
    given = tensors(case("device_add"))
    taken = given[which].data_ptr()
    method = load("device_add")
    method.set_inputs(given)
    if how == "set_":
        given[which].set_(torch.from_numpy(numpy.zeros((2, 2), numpy.float32)).cuda())
    else:
        given[which].untyped_storage().resize_(4096)
    runs = device.runs
    with pytest.raises(MemoryMovedError, match="set the inputs again"):
        method.execute()
    assert device.runs == runs
    if how == "set_":
        # The storage that the tensor no longer has is held until then: nobody else is given its memory.
        others = [torch.from_numpy(numpy.zeros((2, 2), numpy.float32)).cuda() for _ in range(4)]
        assert taken not in [other.data_ptr() for other in others]
    (result,) = method.execute(tensors(case("device_add")))
    assert numpy.array_equal(result.numpy(), case("device_add").outputs[0])


def test_the_storage_is_held(device):
    """The allocator hands out what was freed, and what was set as an input is not freed."""
    x, y = tensors(case("device_add"))
    taken = {x.data_ptr(), y.data_ptr()}
    method = load("device_add")
    method.set_inputs([x, y])
    del x, y
    others = [torch.from_numpy(numpy.full((2, 2), 9, numpy.float32)).cuda() for _ in range(4)]
    assert not taken & {other.data_ptr() for other in others}
    (result,) = method.execute()
    assert numpy.array_equal(result.numpy(), case("device_add").outputs[0])


def foreign(device, values):
    """A tensor over memory that is not torch's."""
    block = device.foreign(values.nbytes)
    device.write(block.address, values.tobytes())
    storage = torch.UntypedStorage(values.nbytes, 0, block.address, owner=block)
    return torch.Tensor(storage, values.shape, (2, 1), "float32", torch.device("cuda", 0))


def test_memory_that_is_not_torchs_is_copied(device):
    x, y = (foreign(device, values) for values in inputs(case("device_add")))
    method = load("device_add")
    method.set_inputs([x, y])
    assert device.copies() == (2, 2)
    del x, y
    (result,) = method.execute()
    assert numpy.array_equal(result.numpy(), case("device_add").outputs[0])


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_another_allocator_than_torchs_own_is_on_no_list(device, backend):
    given = tensors(case("device_add"))
    torch.cuda.memory.backend = backend
    (result,) = load("device_add").execute(given)
    assert device.copies() == (2, 2)
    assert numpy.array_equal(result.numpy(), case("device_add").outputs[0])


def test_a_device_input_of_a_host_method_is_refused(device):
    example = case("device_mixed")
    x, y, z = inputs(example)
    method = load("device_mixed")
    with pytest.raises(DeviceError, match=r"input 2\b.*on cuda:0.*takes it on cpu:0.*\.cpu\(\)"):
        method.execute([x, y, torch.from_numpy(z).cuda()])
    assert device.leases == 0


def test_another_device_of_the_kind_is_refused(device):
    x, y = tensors(case("device_add"), index=1)
    with pytest.raises(DeviceError, match=r"input 0\b.*on cuda:1.*takes it on cuda:0"):
        load("device_add").execute([x, y])
    assert device.leases == 0


def test_a_device_that_torch_calls_cuda_and_is_not(device):
    x, y = tensors(case("device_add"))
    torch.version.hip = "6.0"
    with pytest.raises(DeviceError, match=r"input 0\b.*DLPack device type 10"):
        load("device_add").execute([x, y])
    assert x.streams == []


def test_a_device_that_cannot_be_named(device):
    x, y = tensors(case("device_add"))
    x.device = torch.device("mps", 0)
    with pytest.raises(DeviceError, match=r"input 0\b.*mps:0, which the runtime cannot name"):
        load("device_add").execute([x, y])
    assert x.streams == []


def test_what_a_tensor_hides(device):
    """The same is refused as on the host, before the memory is asked for."""
    x, y = tensors(case("device_add"))
    method = load("device_add")
    x.negated = True
    with pytest.raises(InputKindError, match=r"input 0\b.*resolve_neg"):
        method.execute([x, y])
    x.negated, x.layout = False, torch.sparse_coo
    with pytest.raises(InputKindError, match=r"input 0\b.*dense"):
        method.execute([x, y])
    x.layout, x.dtype = torch.strided, torch.DTYPES["float64"]
    with pytest.raises((MemoryMissingError, DtypeError), match="input 0"):
        method.execute([x, y])
    x.dtype, x._offset = torch.DTYPES["float32"], 3
    with pytest.raises(MemoryMissingError, match=r"input 0\b.*does not hold"):
        method.execute([x, y])
    assert x.streams == []


def test_a_torch_without_the_device(device):
    """It cannot take the memory: results stay TensorBuffers."""
    torch.cuda.available = False
    (result,) = load("device_add").execute(inputs(case("device_add")))
    assert type(result) is TensorBuffer
    assert numpy.array_equal(numpy.asarray(result.to_host()), case("device_add").outputs[0])


def test_lent_planned_outputs(device):
    first, second = model_index.cases("device_add_planned", "forward")
    method = load("device_add_planned")
    (lent,) = method.execute(inputs(first), clone_outputs=False)
    method.execute(inputs(second), clone_outputs=False)
    assert numpy.array_equal(lent.numpy(), second.outputs[0])
