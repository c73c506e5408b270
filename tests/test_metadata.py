"""What a program says of its methods: in the official binding's words, and what those leave out."""

from __future__ import annotations

import math

import model_index
import numpy
import pytest
from support import ITEMSIZE, collect, metadata, program, strides_of

from et_cffi import Device, DeviceType, Runtime, ScalarType
from et_cffi.errors import UnknownMethodError

# What repr() gives in executorch.runtime 1.5.1, for the same files.
OFFICIAL = {
    ("add", "forward"): "MethodMeta(name='forward', num_inputs=2, input_tensor_meta=["
    "'TensorInfo(sizes=[2, 2], dtype=Float, is_memory_planned=True, nbytes=16)', "
    "'TensorInfo(sizes=[2, 2], dtype=Float, is_memory_planned=True, nbytes=16)'], num_outputs=1, "
    "output_tensor_meta=['TensorInfo(sizes=[2, 2], dtype=Float, is_memory_planned=True, nbytes=16)'])",
    ("multi", "cast"): "MethodMeta(name='cast', num_inputs=2, input_tensor_meta=["
    "'TensorInfo(sizes=[3], dtype=Long, is_memory_planned=True, nbytes=24)', "
    "'TensorInfo(sizes=[3], dtype=Float, is_memory_planned=True, nbytes=12)'], num_outputs=1, "
    "output_tensor_meta=['TensorInfo(sizes=[3], dtype=Float, is_memory_planned=True, nbytes=12)'])",
    ("multi", "size"): "MethodMeta(name='size', num_inputs=0, input_tensor_meta=[], num_outputs=1, "
    "output_tensor_meta=['Int'])",
    ("scalar_outputs", "forward"): "MethodMeta(name='forward', num_inputs=1, input_tensor_meta=["
    "'TensorInfo(sizes=[2, 2], dtype=Float, is_memory_planned=True, nbytes=16)'], num_outputs=5, "
    "output_tensor_meta=['TensorInfo(sizes=[2, 2], dtype=Float, is_memory_planned=True, nbytes=16)', "
    "'Int', 'Double', 'Bool', 'None'])",
    ("attributes", "get_name"): "MethodMeta(name='get_name', num_inputs=0, input_tensor_meta=[], "
    "num_outputs=1, output_tensor_meta=['String'])",
    ("attributes", "get_tensor"): "MethodMeta(name='get_tensor', num_inputs=0, input_tensor_meta=[], "
    "num_outputs=1, output_tensor_meta=["
    "'TensorInfo(sizes=[2, 3], dtype=Float, is_memory_planned=True, nbytes=24)'])",
    ("rank0", "forward"): "MethodMeta(name='forward', num_inputs=1, input_tensor_meta=["
    "'TensorInfo(sizes=[], dtype=Float, is_memory_planned=False, nbytes=4)'], num_outputs=1, "
    "output_tensor_meta=['TensorInfo(sizes=[], dtype=Float, is_memory_planned=False, nbytes=4)'])",
    ("empty", "forward"): "MethodMeta(name='forward', num_inputs=1, input_tensor_meta=["
    "'TensorInfo(sizes=[0, 3], dtype=Float, is_memory_planned=False, nbytes=0)'], num_outputs=1, "
    "output_tensor_meta=['TensorInfo(sizes=[0, 3], dtype=Float, is_memory_planned=False, nbytes=0)'])",
    ("mlp_dynamic_unplanned", "forward"): "MethodMeta(name='forward', num_inputs=1, input_tensor_meta=["
    "'TensorInfo(sizes=[8, 5], dtype=Float, is_memory_planned=False, nbytes=160)'], num_outputs=1, "
    "output_tensor_meta=['TensorInfo(sizes=[8, 3], dtype=Float, is_memory_planned=False, nbytes=96)'])",
    ("conv_channels_last_batch1", "forward"): "MethodMeta(name='forward', num_inputs=1, input_tensor_meta=["
    "'TensorInfo(sizes=[1, 3, 5, 7], dtype=Float, is_memory_planned=True, nbytes=420)'], num_outputs=1, "
    "output_tensor_meta=['TensorInfo(sizes=[1, 2, 2, 3], dtype=Float, is_memory_planned=True, nbytes=48)'])",
}

# The same, of one input each.
OFFICIAL_INPUTS = {
    "dtype_bool": "TensorInfo(sizes=[2, 3], dtype=Bool, is_memory_planned=True, nbytes=6)",
    "dtype_uint16": "TensorInfo(sizes=[2, 3], dtype=UInt16, is_memory_planned=True, nbytes=12)",
    "dtype_bfloat16": "TensorInfo(sizes=[2, 3], dtype=BFloat16, is_memory_planned=True, nbytes=12)",
    "dtype_complex64": "TensorInfo(sizes=[2, 3], dtype=ComplexFloat, is_memory_planned=True, nbytes=48)",
    "dtype_quint4x2": "TensorInfo(sizes=[2, 3], dtype=QUInt4x2, is_memory_planned=True, nbytes=6)",
    "dtype_float8_e4m3fn": "TensorInfo(sizes=[2, 3], dtype=Float8_e4m3fn, is_memory_planned=True, nbytes=6)",
}


@pytest.mark.parametrize(("name", "method"), OFFICIAL)
def test_the_official_words(name, method):
    assert repr(metadata(name, method)) == OFFICIAL[name, method]


@pytest.mark.parametrize("name", OFFICIAL_INPUTS)
def test_the_official_words_of_a_tensor(name):
    assert repr(metadata(name).input_tensor_meta(0)) == OFFICIAL_INPUTS[name]


def test_inputs_that_are_no_tensors_are_named_by_kind():
    """Where the official binding raises."""
    words = repr(metadata("scalar_inputs"))
    assert "num_inputs=4" in words
    assert "nbytes=16)', 'Int', 'Double', 'Bool'], num_outputs=1" in words
    assert "nbytes=16)', 'None'], num_outputs=1" in repr(metadata("none_input"))


KINDS = {"tensor": "Tensor", "int": "Int", "float": "Double", "bool": "Bool", "str": "String", "none": "None"}
LOADABLE = [name for name, model in model_index.models().items() if model["file"].endswith(".pte")]


def check_tensor(info, described):
    assert info.sizes() == tuple(described["shape"])
    assert str(ScalarType(info.dtype())) == described["dtype"]
    assert info.dim_order() == tuple(described["dim_order"])
    assert info.is_dynamic() is described["dynamic"]
    itemsize = ITEMSIZE[described["dtype"]]
    assert info.nbytes() == math.prod(described["shape"]) * itemsize
    assert info.strides() == strides_of(described["shape"], described["dim_order"], 1)
    kind, _, index = described["device"].partition(":")
    assert info.device == Device(DeviceType[kind.upper()], int(index or 0))
    assert str(info.device) == f"{kind}:{index or 0}"
    assert info.is_memory_planned() is described["planned"]


@pytest.mark.parametrize("name", LOADABLE)
def test_every_model_says_what_was_exported(name):
    methods = model_index.models()[name]["methods"]
    assert program(name).method_names == set(methods)
    for method, described in methods.items():
        meta = metadata(name, method)
        assert meta.name() == method
        for side in ("input", "output"):
            values = described[f"{side}s"]
            assert getattr(meta, f"num_{side}s")() == len(values)
            for index, value in enumerate(values):
                assert getattr(meta, f"{side}_kind")(index) == KINDS[value["kind"]]
                if value["kind"] == "tensor":
                    check_tensor(getattr(meta, f"{side}_tensor_meta")(index), value)
                else:
                    with pytest.raises(IndexError, match=f"{side} {index} is no tensor"):
                        getattr(meta, f"{side}_tensor_meta")(index)


@pytest.mark.parametrize("index", [-1, 2, 3, 1 << 40, -(1 << 40)])
@pytest.mark.parametrize("call", ["input_tensor_meta", "input_kind", "output_tensor_meta", "output_kind"])
def test_an_index_that_is_none(call, index):
    meta = metadata("add")
    side = call.partition("_")[0]
    has = 2 if side == "input" else 1
    with pytest.raises(IndexError, match=f"there is no {side} {index}; the method has {has}"):
        getattr(meta, call)(index)


@pytest.mark.parametrize("index", [-1, 2, 1 << 40])
def test_an_attribute_that_is_none(index):
    with pytest.raises(IndexError, match=f"there is no attribute {index}; the method has 2"):
        metadata("linear_external").attribute_tensor_meta(index)


def test_names():
    """Of attributes; the exporter gives inputs and outputs none."""
    meta = metadata("linear_external")
    assert meta.num_attributes() == 2
    assert [meta.attribute_tensor_meta(index).name for index in range(2)] == ["weight", "bias"]
    assert meta.attribute_tensor_meta(0).sizes() == (3, 5)
    assert meta.input_tensor_meta(0).name == ""
    assert metadata("add").num_attributes() == 0


def test_what_the_method_needs():
    assert metadata("conv_xnnpack").backends == ["XnnpackBackend"]
    assert metadata("missing_backend").backends == ["BackendWithCompilerDemo"]
    assert metadata("conv").backends == []
    assert metadata("add").num_instructions() == 1
    assert metadata("multi", "size").num_instructions() == 0
    assert metadata("add").planned_buffers == [(48, Device(DeviceType.CPU, 0))]
    assert metadata("add_unplanned").planned_buffers == [(0, Device(DeviceType.CPU, 0))]
    assert metadata("device_add_planned").planned_buffers == [(48, Device(DeviceType.CUDA, 0))]
    assert metadata("multi", "size").planned_buffers == []


def test_lists_given_out_are_the_callers():
    meta = metadata("conv_xnnpack")
    meta.backends.clear()
    meta.planned_buffers.clear()
    assert meta.backends == ["XnnpackBackend"]
    assert len(meta.planned_buffers) == 1


def test_strides_at_other_sizes():
    info = metadata("conv_dynamic_channels_last").input_tensor_meta(0)
    assert info.sizes() == (4, 3, 5, 7)
    assert info.strides() == (105, 1, 21, 3)
    assert info.strides((2, 3, 5, 7)) == (105, 1, 21, 3)
    assert info.strides((2, 4, 6, 9)) == (216, 1, 36, 4)
    assert metadata("rank0").input_tensor_meta(0).strides() == ()


def test_a_loaded_method_has_the_same():
    method = program("mlp_dynamic").load_method("forward")
    assert repr(method.metadata) == repr(metadata("mlp_dynamic"))
    assert method.metadata.input_tensor_meta(0).is_dynamic() is True


def test_it_needs_nothing_else_to_be_kept():
    data = numpy.frombuffer(bytearray(model_index.path("add").read_bytes()), numpy.uint8)
    data.flags.writeable = False
    loaded = Runtime.get().load_program(data)
    meta = loaded.metadata("forward")
    info = meta.input_tensor_meta(1)
    del loaded, data
    collect()
    assert repr(meta) == OFFICIAL["add", "forward"]
    assert info.sizes() == (2, 2)


def test_it_can_be_had_of_what_cannot_be_loaded():
    for name in ("missing_operators", "missing_backend", "device_add"):
        assert metadata(name).num_outputs() == 1
    with pytest.raises(UnknownMethodError):
        metadata("add", "backward")


# ---- scalar types -----------------------------------------------------------------------------------------

# torch's and ExecuTorch's numbers and names, from the runtime's scalar_type.h.
SCALAR_TYPES = [
    (0, "Byte", "uint8"), (1, "Char", "int8"), (2, "Short", "int16"), (3, "Int", "int32"),
    (4, "Long", "int64"), (5, "Half", "float16"), (6, "Float", "float32"), (7, "Double", "float64"),
    (8, "ComplexHalf", "complex32"), (9, "ComplexFloat", "complex64"), (10, "ComplexDouble", "complex128"),
    (11, "Bool", "bool"), (12, "QInt8", "qint8"), (13, "QUInt8", "quint8"), (14, "QInt32", "qint32"),
    (15, "BFloat16", "bfloat16"), (16, "QUInt4x2", "quint4x2"), (17, "QUInt2x4", "quint2x4"),
    (18, "Bits1x8", "bits1x8"), (19, "Bits2x4", "bits2x4"), (20, "Bits4x2", "bits4x2"),
    (21, "Bits8", "bits8"), (22, "Bits16", "bits16"), (23, "Float8_e5m2", "float8_e5m2"),
    (24, "Float8_e4m3fn", "float8_e4m3fn"),
    (25, "Float8_e5m2fnuz", "float8_e5m2fnuz"), (26, "Float8_e4m3fnuz", "float8_e4m3fnuz"),
    (27, "UInt16", "uint16"), (28, "UInt32", "uint32"), (29, "UInt64", "uint64"),
]  # fmt: skip


def test_scalar_types():
    assert [(int(each), each.name, str(each)) for each in ScalarType] == SCALAR_TYPES
    assert isinstance(ScalarType.Float, int)
    assert metadata("add").input_tensor_meta(0).dtype() == 6
    assert set(ITEMSIZE) == {name for _, _, name in SCALAR_TYPES}


def test_devices():
    assert [(each.name, int(each)) for each in DeviceType] == [("CPU", 0), ("CUDA", 1)]
    assert str(Device(DeviceType.CUDA, 3)) == "cuda:3"
    assert Device(DeviceType.CPU, 0) == (0, 0)
