"""With torch in the process: tensors in, tensors out, and what is refused. Run with `pytest -m torch`.

torch is imported by a fixture and not by this module, since a run without it collects this module too. Where
it is missing these tests fail.
"""

from __future__ import annotations

import sys
import weakref

import model_index
import numpy
import pytest
from dlpack_producer import CODES
from support import (
    ITEMSIZE,
    add_inputs,
    case_of,
    child,
    collect,
    laid_out,
    load,
    metadata,
    runnable,
    strides_of,
)

from et_cffi import TensorBuffer
from et_cffi.errors import (
    DtypeError,
    InputKindError,
    LayoutError,
    MemoryMissingError,
    ShapeError,
)

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", autouse=True)
def torch():
    import torch

    return torch


def bits_of(tensor) -> bytes:
    """A tensor's elements in the order of its shape, whatever they mean."""
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def tensor_of(values, info):
    """A tensor of its own memory with those values, laid out as the input wants them."""
    import torch

    array = laid_out(values, info["dim_order"])
    tensor = torch.from_numpy(array).clone(memory_format=torch.preserve_format)
    wanted = getattr(torch, info["dtype"])
    # What numpy cannot name is stored as unsigned integers of the same width.
    return tensor if tensor.dtype is wanted else tensor.view(wanted)


def check_tensor(result, expected, info, case):
    import torch

    if info["dtype"] not in CODES:
        assert type(result) is TensorBuffer
        assert result.tobytes() == expected.tobytes()
        return
    assert type(result) is torch.Tensor
    assert result.dtype is getattr(torch, info["dtype"])
    assert tuple(result.shape) == expected.shape
    assert result.stride() == strides_of(expected.shape, info["dim_order"], 1)
    assert result.device.type == "cpu"
    assert not result.requires_grad
    if case.rtol or case.atol:
        numpy.testing.assert_allclose(result.numpy(), expected, rtol=case.rtol, atol=case.atol)
    else:
        assert bits_of(result) == expected.tobytes()


def check_outputs(outputs, case):
    assert len(outputs) == len(case.outputs)
    for output, expected, info in zip(outputs, case.outputs, case.outputs_info):
        if info["kind"] == "tensor":
            check_tensor(output, expected, info, case)
        else:
            assert (type(output), output) == (type(expected), expected)


# ---- agreement --------------------------------------------------------------------------------------------

WAYS = {
    "own memory": lambda tensor: tensor,
    "requires grad": lambda tensor: tensor.requires_grad_() if tensor.is_floating_point() else tensor,
    "parameter": lambda tensor: sys.modules["torch"].nn.Parameter(tensor, requires_grad=False),
    "part of a storage": lambda tensor: within(tensor),
    "numpy's memory": lambda tensor: sys.modules["torch"].from_dlpack(tensor),
    "inference": lambda tensor: in_inference(tensor),
}


def within(tensor):
    """The same values in the middle of a larger storage."""
    import torch

    room = torch.zeros(tensor.untyped_storage().nbytes() // tensor.element_size() + 11, dtype=tensor.dtype)
    part = room.as_strided(tensor.shape, tensor.stride(), 5)
    part.copy_(tensor)
    return part


def in_inference(tensor):
    import torch

    with torch.inference_mode():
        return tensor.clone(memory_format=torch.preserve_format)


METHODS = [
    (name, method)
    for name in runnable()
    for method, described in model_index.models()[name]["methods"].items()
    if all(info["kind"] != "tensor" or info["dtype"] in CODES for info in described["inputs"])
]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "method"), METHODS)
def test_tensors_agree_with_eager(name, method, way):
    loaded = load(name, method)
    for case in model_index.cases(name, method):
        inputs = [
            WAYS[way](tensor_of(value, info)) if info["kind"] == "tensor" else value
            for value, info in zip(case.inputs, case.inputs_info)
        ]
        check_outputs(loaded.execute(inputs), case)


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_two_steps_and_lent_outputs_agree_with_eager(name, method):
    loaded = load(name, method)
    for number, case in enumerate(model_index.cases(name, method)):
        loaded.set_inputs(
            [
                tensor_of(value, info) if info["kind"] == "tensor" else value
                for value, info in zip(case.inputs, case.inputs_info)
            ]
        )
        if number == 0:
            collect()  # takes its time beside torch
        check_outputs(loaded.execute(clone_outputs=False), case)
        check_outputs(loaded.get_outputs(), case)


def test_many_models_were_tried():
    assert len(METHODS) > 90
    dtypes = {
        info["dtype"] for n, m in METHODS for info in model_index.models()[n]["methods"][m]["inputs"][:1]
    }
    assert set(CODES) <= dtypes


@pytest.mark.parametrize("name", ["dtype_qint8", "dtype_bits16", "dtype_quint4x2"])
def test_a_dtype_that_torch_cannot_be_given_comes_as_a_buffer(name):
    case = case_of(name)
    outputs = load(name).execute([case.inputs[0].tobytes()])
    check_outputs(outputs, case)
    assert type(outputs[0]) is TensorBuffer


def test_kinds_can_be_mixed(torch):
    x, y = add_inputs()
    for inputs in ([torch.from_numpy(x), y], [x, torch.from_numpy(y)], (torch.tensor(x), memoryview(y))):
        check_outputs(load("add").execute(inputs), case_of("add"))


def test_a_tensor_is_one_input(torch):
    case = case_of("same_twice")
    check_outputs(load("same_twice").execute(torch.tensor(case.inputs[0])), case)


def test_a_result_goes_straight_back(torch):
    case = case_of("dtype_float32")
    method = load("dtype_float32_unplanned")
    (out,) = method.execute(torch.tensor(case.inputs[0]))
    (out,) = method.execute(out)
    assert numpy.array_equal(numpy.asarray(out), case.inputs[0] * 4)


# ---- what comes back --------------------------------------------------------------------------------------


def test_a_result_is_a_tensor_with_a_tensors_methods(torch):
    case = case_of("add")
    (out,) = load("add").execute(case.inputs)
    assert torch.is_tensor(out)
    assert torch.equal(out + 1, torch.from_numpy(case.outputs[0]) + 1)
    assert torch.allclose(out.softmax(dim=1).sum(1), torch.ones(2))
    out.add_(1)
    assert numpy.array_equal(out.numpy(), case.outputs[0] + 1)
    assert len(out) == 2
    assert numpy.asarray(out).ctypes.data == out.data_ptr()


@pytest.mark.parametrize("name", ["add", "conv_channels_last", "dtype_bfloat16", "mlp_dynamic"])
def test_a_lent_result_is_the_methods_own_memory(name):
    cases = model_index.cases(name, "forward")
    method = load(name)
    inputs = [[tensor_of(v, i) for v, i in zip(case.inputs, case.inputs_info)] for case in cases]
    (one,) = method.execute(inputs[0], clone_outputs=False)
    (other,) = method.execute(inputs[-1], clone_outputs=False)
    assert one.data_ptr() == other.data_ptr()
    assert one is not other


@pytest.mark.parametrize("lent", [False, True])
@pytest.mark.parametrize("name", ["add", "add_unplanned", "same_twice_unplanned"])
def test_read_twice_the_same_objects(name, lent):
    method, case = load(name), case_of(name)
    outputs = method.execute(case.inputs, clone_outputs=not lent)
    again = method.get_outputs(clone_outputs=not lent)
    assert all(one is other for one, other in zip(outputs, again))
    check_outputs(again, case)


def test_a_tensor_keeps_its_memory(torch):
    case = case_of("add_unplanned")
    method = load("add_unplanned")
    (out,) = method.execute(case.inputs)
    view, gone = out[1], weakref.ref(method)
    method.close()
    del method, out
    collect()
    assert gone() is None
    churn = [torch.full((2, 2), float(number)) for number in range(500)]
    assert view.tolist() == case.outputs[0][1].tolist()
    assert len(churn) == 500


def test_only_what_the_result_occupies(torch):
    for name in ("mlp_dynamic", "mlp_dynamic_unplanned", "big_bound"):
        for case in model_index.cases(name, "forward"):
            (out,) = load(name).execute(case.inputs)
            check_outputs([out], case)
            assert out.untyped_storage().nbytes() == case.outputs[0].nbytes


def test_a_later_run_does_not_write_through():
    cases = model_index.cases("mlp_dynamic_unplanned", "forward")
    method = load("mlp_dynamic_unplanned")
    results = [method.execute(case.inputs, clone_outputs=False) for case in cases]
    for outputs, case in zip(results, cases):
        check_outputs(outputs, case)


DECIDED = """
import sys
from support import load, case_of, check_outputs
import numpy
case = case_of("add_unplanned")
before = load("add_unplanned")
(buffer,) = before.execute(case.inputs)
assert "torch" not in sys.modules
import torch
check_outputs(before.execute(case.inputs), case)                    # a TensorBuffer, as it was
check_outputs(before.execute([torch.from_numpy(x) for x in case.inputs]), case)
after = load("add_unplanned")
(tensor,) = after.execute(case.inputs)
assert type(tensor) is torch.Tensor and numpy.array_equal(tensor, case.outputs[0])
del sys.modules["torch"]
(tensor,) = after.execute(case.inputs)
assert type(tensor) is torch.Tensor and numpy.array_equal(tensor, case.outputs[0])
check_outputs(before.execute(case.inputs), case)
sys.modules["torch"] = torch
same = torch.from_dlpack(buffer)
assert same.data_ptr() == numpy.asarray(buffer).ctypes.data
same[0, 0] = 77
assert numpy.asarray(buffer)[0, 0] == 77
from et_cffi._torch import to_torch
assert to_torch(torch, buffer).data_ptr() == same.data_ptr()
print("decided")
"""


def test_the_type_is_decided_when_a_method_is_loaded():
    """Whatever is imported afterwards; in a process that begins without torch. Nothing copies the memory."""
    done = child(DECIDED)
    assert (done.returncode, done.stdout.strip()) == (0, "decided"), done.stderr


def test_torch_is_never_imported():
    """It is installed here, and would be found."""
    done = child(
        "import sys, et_cffi\n"
        "from support import load, case_of, check_outputs\n"
        "import ways_in\n"
        "case = case_of('add_unplanned')\n"
        "for way in ways_in.WAYS:\n"
        "    if all(map(way.takes, case.inputs_info)):\n"
        "        inputs = [way.make(value, info) for value, info in zip(case.inputs, case.inputs_info)]\n"
        "        check_outputs(load('add_unplanned').execute(inputs), case)\n"
        "try:\n"
        "    load('add').execute([object(), object()])\n"
        "except TypeError:\n"
        "    assert 'torch' not in sys.modules and 'executorch' not in sys.modules\n"
        "    import importlib.util\n"
        "    print('installed' if importlib.util.find_spec('torch') else 'missing')\n"
    )
    assert (done.returncode, done.stdout.strip()) == (0, "installed"), done.stderr


def test_a_blocked_torch_is_no_torch():
    done = child(
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from support import load, case_of, check_outputs\n"
        "check_outputs(load('add').execute(case_of('add').inputs), case_of('add'))\n"
        "print('ran')\n"
    )
    assert (done.returncode, done.stdout.strip()) == (0, "ran"), done.stderr


# ---- what is refused --------------------------------------------------------------------------------------


def refusal(kind, name, *inputs) -> str:
    with pytest.raises(kind) as caught:
        load(name).execute(list(inputs))
    words = str(caught.value)
    assert words.startswith("input ")
    return words


def test_a_negated_view(torch):
    case = case_of("dtype_float32")
    x = torch.from_numpy(case.inputs[0])
    negated = torch._neg_view(-x)
    assert torch.equal(negated, x)
    assert negated.is_neg()
    assert "resolve_neg" in refusal(InputKindError, "dtype_float32", negated)
    imaginary = torch.complex(torch.zeros(2, 3), -x).conj().imag
    assert imaginary.is_neg()
    assert "resolve_neg" in refusal(InputKindError, "dtype_float32", imaginary)
    check_outputs(load("dtype_float32").execute([negated.resolve_neg()]), case)


def test_a_conjugated_view(torch):
    case = case_of("dtype_complex64")
    x = torch.from_numpy(case.inputs[0])
    conjugated = x.conj().resolve_conj().conj()
    assert torch.equal(conjugated, x)
    assert conjugated.is_conj()
    assert "resolve_conj" in refusal(InputKindError, "dtype_complex64", conjugated)
    check_outputs(load("dtype_complex64").execute([conjugated.resolve_conj()]), case)


def fake(torch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(2, 2)


NO_VALUES = {
    "coo": (lambda torch: torch.eye(2).to_sparse(), InputKindError, "to_dense"),
    "csr": (lambda torch: torch.eye(2).to_sparse_csr(), InputKindError, "to_dense"),
    "quantized": (
        lambda torch: torch.quantize_per_tensor(torch.ones(2, 2), 0.5, 0, torch.qint8),
        InputKindError, "quantized",
    ),
    "meta": (lambda torch: torch.ones(2, 2, device="meta"), InputKindError, "meta"),
    "fake": (fake, InputKindError, "fake"),
    "nested": (
        lambda torch: torch.nested.nested_tensor([torch.ones(2), torch.ones(2)]), InputKindError, "nested",
    ),
    "jagged": (
        lambda torch: torch.nested.nested_tensor([torch.ones(2), torch.ones(2)], layout=torch.jagged),
        InputKindError, "",
    ),
    "mkldnn": (lambda torch: torch.ones(2, 2).to_mkldnn(), InputKindError, "_mkldnn"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # torch's own words about prototypes
@pytest.mark.parametrize("model", ["add", "add_unplanned"])
@pytest.mark.parametrize("kind", NO_VALUES)
def test_tensors_without_plain_memory(torch, kind, model):
    make, error, says = NO_VALUES[kind]
    made = make(torch)
    words = refusal(error, model, add_inputs()[0], made)
    assert words.startswith("input 1")
    assert says in words


def test_a_tensor_within_a_transform(torch):
    seen = []

    def call(x):
        for method in ("add", "add_unplanned"):
            seen.append(refusal(InputKindError, method, x, torch.ones(2, 2)))
        return x.sum()

    torch.func.grad(call)(torch.ones(2, 2))
    torch.func.vmap(call)(torch.ones(3, 2, 2))
    assert len(seen) == 4
    assert all("torch.func" in words for words in seen)


def test_a_batch_that_vmap_hides_is_no_input(torch):
    with pytest.raises(InputKindError):
        torch.func.vmap(lambda x: load("add").execute([x, x])[0])(torch.ones(2, 2, 2))


@pytest.mark.parametrize("dtype", ["float64", "int32", "bfloat16", "complex64", "bool", "float8_e5m2"])
def test_a_wrong_dtype_names_both(torch, dtype):
    words = refusal(DtypeError, "add", torch.ones(2, 2).to(getattr(torch, dtype)), torch.ones(2, 2))
    assert f"dtype {dtype}" in words
    assert "takes float32" in words


def test_a_dtype_that_the_runtime_does_not_have(torch):
    words = refusal(DtypeError, "add", torch.zeros(2, 2, dtype=torch.uint8).view(torch.float8_e8m0fnu), None)
    assert "float8_e8m0fnu" in words


def test_wrong_shapes(torch):
    assert "(2, 3)" in refusal(ShapeError, "add", torch.ones(2, 3), torch.ones(2, 2))
    assert "rank 1" in refusal(ShapeError, "add", torch.ones(4), torch.ones(2, 2))
    assert "17 dimensions" in refusal(ShapeError, "add", torch.ones([1] * 17), torch.ones(2, 2))
    words = refusal(ShapeError, "empty", torch.empty(0, 1 << 31))
    assert str(1 << 31) in words


def test_layouts(torch):
    case = case_of("conv")
    x = torch.tensor(case.inputs[0])
    last = x.to(memory_format=torch.channels_last)
    assert torch.equal(x, last)
    assert "contiguous" in refusal(LayoutError, "conv", last)
    check_outputs(load("conv").execute([x]), case)
    assert "dim order (0, 2, 3, 1)" in refusal(LayoutError, "conv_channels_last", x)
    check_outputs(load("conv_channels_last").execute([last]), case_of("conv_channels_last"))
    y = torch.arange(4.0).reshape(2, 2)
    for view in (y.T, torch.arange(8.0).reshape(2, 4)[:, ::2], torch.ones(1, 2).expand(2, 2)):
        assert "make it contiguous first" in refusal(LayoutError, "add", y, view)


def test_a_size_one_dimension_is_exempt(torch):
    case = case_of("conv_channels_last_batch1")
    last = torch.tensor(laid_out(case.inputs[0], (0, 2, 3, 1))).to(memory_format=torch.channels_last)
    for stride in (0, 1, 1 << 30):
        strange = last.as_strided(last.shape, (stride, *last.stride()[1:]))
        check_outputs(load("conv_channels_last_batch1").execute([strange]), case)


def test_no_memory(torch):
    x = torch.ones(2, 2)
    x.untyped_storage().resize_(0)
    assert "memory" in refusal(MemoryMissingError, "add", x, torch.ones(2, 2))
    y = torch.ones(2, 2)
    y.untyped_storage().resize_(8)
    assert "8 bytes" in refusal(MemoryMissingError, "add", y, torch.ones(2, 2))


def test_a_device_that_is_only_claimed(torch):
    class Elsewhere(torch.Tensor):
        device = property(lambda self: torch.device("xpu", 1))

    x = torch.ones(2, 2).as_subclass(Elsewhere)
    assert x.device.type == "xpu"  # which is not believed: the memory is on the host
    (out,) = load("add").execute([x, torch.ones(2, 2)])
    assert out.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_a_tensor_where_a_scalar_is_wanted(torch):
    x = case_of("scalar_inputs").inputs[0]
    assert "takes an int" in refusal(InputKindError, "scalar_inputs", x, torch.tensor(3), 0.5, True)
    assert "takes None" in refusal(InputKindError, "none_input", x, torch.ones(2, 2))


# ---- objects that lie -------------------------------------------------------------------------------------


def test_a_name_does_not_make_a_tensor(torch):
    class Tensor:
        shape, dtype, device, layout = (2, 2), torch.float32, torch.device("cpu"), torch.strided
        is_quantized = is_nested = requires_grad = False

        def __getattr__(self, name):
            return lambda *a: 0

    Tensor.__module__ = "torch"
    assert "a Tensor" in refusal(InputKindError, "add", Tensor(), torch.ones(2, 2))


def test_a_class_that_is_claimed_does_not_make_a_tensor(torch):
    class Claims:
        __class__ = torch.Tensor

    claims = Claims()
    assert isinstance(claims, torch.Tensor)
    assert "a Claims" in refusal(InputKindError, "add", claims, torch.ones(2, 2))


def test_subclasses_that_say_nothing_wrong(torch):
    class Mine(torch.Tensor):
        pass

    case = case_of("add")
    inputs = [torch.from_numpy(array).as_subclass(Mine) for array in case.inputs]
    outputs = load("add").execute(inputs)
    check_outputs(outputs, case)


def liars(torch):
    def says(name, answer):
        return type("Liar", (torch.Tensor,), {name: answer})

    class Dispatching(torch.Tensor):
        """Answers every question about itself wrongly."""

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            name = getattr(function, "__name__", "")
            lies = {"size": torch.Size([2, 2]), "stride": (2, 1), "data_ptr": 4096, "storage_offset": 1000,
                    "element_size": 4, "is_neg": True, "is_conj": True}  # fmt: skip
            if name in lies:
                return lies[name]
            return super().__torch_function__(function, types, args, kwargs or {})

    return {
        "shape": says("shape", property(lambda self: torch.Size([1000, 1000]))),
        "size": says("size", lambda self, *a: torch.Size([1000, 1000])),
        "stride": says("stride", lambda self, *a: (7, 7, 7)),
        "data_ptr": says("data_ptr", lambda self: 4096),
        "element_size": says("element_size", lambda self: 1),
        "dtype": says("dtype", property(lambda self: torch.float64)),
        "untyped_storage": says("untyped_storage", lambda self: torch.zeros(1000).untyped_storage()),
        "numel": says("numel", lambda self: 10**9),
        "layout": says("layout", property(lambda self: torch.sparse_coo)),
        "is_neg": says("is_neg", lambda self: True),
        "__dlpack__": says("__dlpack__", lambda self, **k: None),
        "__torch_function__": Dispatching,
    }


LIES = [
    "shape", "size", "stride", "data_ptr", "element_size", "dtype", "untyped_storage", "numel", "layout",
    "is_neg", "__dlpack__", "__torch_function__",
]  # fmt: skip


@pytest.mark.parametrize("model", ["add", "add_unplanned"])
@pytest.mark.parametrize("lie", LIES)
def test_a_subclass_that_lies_about_itself(torch, lie, model):
    """What it says is not asked: it runs on what its memory holds."""
    kinds = liars(torch)
    assert list(kinds) == LIES
    case = case_of(model)
    liar = torch.from_numpy(case.inputs[0]).as_subclass(kinds[lie])
    check_outputs(load(model).execute([liar, case.inputs[1]]), case)


def test_a_wrapper_without_memory(torch):
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls):
            return torch.Tensor._make_wrapper_subclass(cls, (2, 2), dtype=torch.float32)

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            raise AssertionError(f"asked for {function}")

    with pytest.raises((InputKindError, MemoryMissingError), match=r"^input 0"):
        load("add").execute([Wrapper(), torch.ones(2, 2)])


def test_a_subclass_whose_answers_raise(torch):
    class Raises(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            raise LookupError("no")

    case = case_of("add")
    tensor = torch.Tensor._make_subclass(Raises, torch.from_numpy(case.inputs[0]))
    check_outputs(load("add").execute([tensor, case.inputs[1]]), case)


# ---- beside the official binding --------------------------------------------------------------------------

TOGETHER = """
import sys
import numpy
import model_index
first = sys.argv[1]
if first == "official":
    import executorch.runtime
import et_cffi
et_cffi.Runtime.get()
import executorch.runtime
import torch
from support import case_of
for name in ("conv_xnnpack", "quantized_portable", "add"):
    case = case_of(name)
    inputs = [torch.from_numpy(x) for x in case.inputs]
    official = executorch.runtime.Runtime.get().load_program(model_index.path(name)).load_method("forward")
    ours = et_cffi.Runtime.get().load_program(model_index.path(name)).load_method("forward")
    for method in (official, ours, official, ours):
        (out,) = method.execute(inputs)
        assert numpy.allclose(numpy.asarray(out), case.outputs[0], rtol=case.rtol, atol=case.atol), name
mapped = {line.split()[-1] for line in open("/proc/self/maps") if line.rstrip().endswith("/libexecutorch.so")}
print(len(mapped))
"""


@pytest.mark.linux
@pytest.mark.parametrize("first", ["official", "et_cffi"])
def test_the_official_binding_in_the_same_process(first):
    """Both work, over one runtime library."""
    done = child(TOGETHER, first)
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


def test_the_metadata_is_the_same(torch):
    assert repr(metadata("add").input_tensor_meta(0)).startswith("TensorInfo(sizes=[2, 2], dtype=Float")
    assert ITEMSIZE["float32"] == torch.float32.itemsize
