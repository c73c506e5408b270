"""et_cffi.portable_lib where it needs no torch; the official tests are run by test_official.py."""

from __future__ import annotations

import gc
import threading

import model_index
import numpy
import pytest

from et_cffi import Runtime, errors
from et_cffi import portable_lib as legacy

ADD = model_index.path("add")
(CASE, *_) = model_index.cases("add", "forward")


def right(outputs):
    return numpy.array_equal(numpy.asarray(outputs[0]), CASE.outputs[0])


def test_a_module():
    module = legacy._load_for_executorch(str(ADD))
    assert right(module(CASE.inputs)) and right(module.forward(CASE.inputs))
    assert right(module.run_method("forward", CASE.inputs, clone_outputs=False))
    assert right(module.plan_execute("forward")) is True
    assert module.method_names() == ["forward"] and not module.has_etdump()
    assert module.method_meta("forward").num_inputs() == 2
    with pytest.raises(RuntimeError, match="enable_etdump"):
        module.write_etdump_result_to_file("/nowhere")
    with pytest.raises(RuntimeError, match="no method 'nothing'"):
        module.run_method("nothing", CASE.inputs)


def test_plan_execute_before_any_inputs():
    with pytest.raises(errors.MethodStateError, match="inputs were never set"):
        legacy._load_for_executorch(str(ADD)).plan_execute("forward")


def test_a_module_keeps_its_methods():
    module = legacy._load_for_executorch(str(model_index.path("state")))
    for case in model_index.cases("state", "forward"):
        assert numpy.array_equal(numpy.asarray(module.forward(case.inputs)[0]), case.outputs[0])


def test_a_buffer_that_nobody_else_holds():
    module = legacy._load_for_executorch_from_buffer(bytes(bytearray(ADD.read_bytes())))
    gc.collect()
    assert right(module(CASE.inputs))


def test_a_program_and_its_methods():
    for program in (legacy._load_program(str(ADD)), legacy._load_program_from_buffer(ADD.read_bytes())):
        assert program.num_methods() == 1 and program.get_method_name(0) == "forward"
        for index in (1, -1):
            with pytest.raises(RuntimeError, match="no method number"):
                program.get_method_name(index)
        method = program.load_method("forward")
        assert right(method(CASE.inputs)) and right(method.call(CASE.inputs))
        method.set_inputs(CASE.inputs)
        assert method.execute() is None
        assert right(method.get_outputs())
        assert method.method_meta().name() == program.method_meta("forward").name() == "forward"
        assert not program.has_etdump()
        with pytest.raises(RuntimeError, match="attribute 'nothing'"):
            method.get_attribute("nothing")


def test_etdump(tmp_path):
    for loaded in (
        legacy._load_for_executorch(str(ADD), None, True, 4096),
        legacy._load_program_from_buffer(ADD.read_bytes(), enable_etdump=True, debug_buffer_size=4096),
    ):
        assert loaded.has_etdump()
        method = loaded if isinstance(loaded, legacy.ExecuTorchModule) else loaded.load_method("forward")
        method(CASE.inputs)
        loaded.write_etdump_result_to_file(str(tmp_path / "a"), str(tmp_path / "b"))
        assert (tmp_path / "a").stat().st_size > 0 and (tmp_path / "b").stat().st_size == 4096


def test_data_of_a_module():
    pte, ptd = model_index.path("linear_external"), model_index.DIRECTORY / "linear_external.ptd"
    (case,) = model_index.cases("linear_external", "forward")
    for module in (
        legacy._load_for_executorch(str(pte), str(ptd)),
        legacy._load_for_executorch_from_buffer(pte.read_bytes(), ptd.read_bytes()),
    ):
        result = numpy.asarray(module.forward(case.inputs)[0])
        assert numpy.allclose(result, case.outputs[0], case.rtol, case.atol)
    # Where the official binding has them: a missing file at once, a wrong one with the first method.
    with pytest.raises(errors.DataNotFoundError):
        legacy._load_for_executorch(str(pte), "/nowhere/x.ptd")
    module = legacy._load_for_executorch_from_buffer(pte.read_bytes(), b"invalid bytes")
    for _ in range(2):
        with pytest.raises(errors.InvalidDataError):
            module.forward(case.inputs)


def test_a_bundle_takes_its_data_in_one_way():
    bundle = legacy._load_bundled_program_from_buffer(
        (model_index.DIRECTORY / "add_bundled.bpte").read_bytes()
    )
    with pytest.raises(errors.ArgumentError, match="give one of them"):
        legacy._load_for_executorch_from_bundled_program(bundle, b"", data_path="x")


class Loader(legacy.PyDataLoader):
    def __init__(self, content: bytes) -> None:
        self.content = content

    def size(self) -> int:
        return len(self.content)

    def load(self, offset: int, size: int) -> bytes:
        return self.content[offset : offset + size]


def test_a_data_loader():
    module = legacy._load_for_executorch_from_data_loader(Loader(ADD.read_bytes()))
    assert right(module(CASE.inputs))
    with pytest.raises(TypeError, match="methods of et_cffi's PyDataLoader"):
        legacy._load_for_executorch_from_data_loader(3)
    with pytest.raises(NotImplementedError):
        legacy._load_for_executorch_from_data_loader(legacy.PyDataLoader())


def test_registries():
    runtime = Runtime.get()
    assert set(legacy._get_operator_names()) == runtime.operator_registry.operator_names
    assert legacy._get_registered_backend_names() == runtime.backend_registry.registered_backend_names
    assert legacy._is_available("XnnpackBackend") and not legacy._is_available("NonExistBackend")


def test_profiling_hooks():
    """The bundled libraries feed no profiler, so a block has a name and no events."""
    legacy._create_profile_block("first block")
    dumped = legacy._dump_profile_results()
    assert dumped.startswith(b"first block\0")
    legacy._reset_profile_results()
    for number in range(5):  # an unused block is used again, so they do not run out
        legacy._create_profile_block(f"block {number}")
    assert legacy._dump_profile_results().startswith(b"block 4\0")
    assert len(legacy._dump_profile_results()) == len(dumped)


def test_what_is_no_buffer():
    for function in (
        legacy._load_for_executorch_from_buffer,
        legacy._load_program_from_buffer,
        legacy._load_bundled_program_from_buffer,
    ):
        with pytest.raises(TypeError, match="buffer is bytes or another buffer, not a str"):
            function(str(ADD))


def test_a_method_on_two_threads():
    """Refused, where the official binding would hand out one run's numbers for another's."""
    module, refused = legacy._load_for_executorch(str(ADD)), []
    module(CASE.inputs)

    def work():
        try:
            module(CASE.inputs)
        except errors.ThreadError as error:
            refused.append(error)

    method = module._method("forward")
    method._enter()  # as a run on this thread does
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        method._leave()
    assert len(refused) == 1
