"""Device programs: what the metadata says, where memory is planned, what each gives."""

from __future__ import annotations

import model_index
import numpy
import pytest
from device_cases import RUNNING, address, case, cases, check, inputs, load, program, values

from et_cffi import Device, DeviceType
from et_cffi.errors import AllocationError, ExecuTorchError, InvalidProgramError, MethodStateError

CPU, CUDA0, CUDA1 = Device(DeviceType.CPU, 0), Device(DeviceType.CUDA, 0), Device(DeviceType.CUDA, 1)


@pytest.mark.parametrize("case", cases(), ids=repr)
def test_every_model_gives_what_eager_mode_gives(device, case):
    check(device, load(case.model, case.method).execute(inputs(case)), case)


@pytest.mark.parametrize("case", cases(), ids=repr)
def test_lent_outputs_too(device, case):
    check(device, load(case.model, case.method).execute(inputs(case), clone_outputs=False), case)


@pytest.mark.parametrize("name", [*RUNNING, "device_weight", "device_add_copied_unplanned"])
def test_metadata_says_where_inputs_and_outputs_are(device, name):
    for method, described in model_index.models()[name]["methods"].items():
        before = program(name).metadata(method)
        said = {
            "inputs": [before.input_tensor_meta(i) for i in range(before.num_inputs())],
            "outputs": [before.output_tensor_meta(i) for i in range(before.num_outputs())],
        }
        for side, infos in said.items():
            wanted = [info["device"].replace("cpu", "cpu:0") for info in described[side]]
            assert [str(info.device) for info in infos] == wanted
        if name == "device_weight":
            continue
        after = load(name, method).metadata
        assert [after.input_tensor_meta(i).device for i in range(after.num_inputs())] == [
            info.device for info in said["inputs"]
        ]
        assert [after.output_tensor_meta(i).device for i in range(after.num_outputs())] == [
            info.device for info in said["outputs"]
        ]


@pytest.mark.parametrize(
    ("name", "planned"),
    {
        "device_add": [(0, CPU)],
        "device_add_planned": [(48, CUDA0)],
        "device_add_copied": [(32, CPU), (48, CUDA0)],
        "device_mixed": [(16, CPU)],
        "device_two_planned": [(48, CUDA0), (48, CUDA1)],
    }.items(),
)
def test_planned_buffers_come_from_the_allocator_and_go_with_the_method(device, name, planned):
    loaded = program(name)
    assert loaded.metadata("forward").planned_buffers == planned
    assert device.live() == 0
    method = loaded.load_method("forward")
    for index, where in enumerate((CUDA0, CUDA1)):
        sizes = [nbytes for nbytes, at in planned if at == where]
        counters = device.counters(index)
        assert (counters.allocations, counters.live_blocks) == (len(sizes), len(sizes))
        assert counters.live_bytes >= sum(sizes)
    method.close()
    assert device.live() == 0
    assert all(device.counters(index).frees == device.counters(index).allocations for index in (0, 1))


def test_a_program_that_copies_by_itself(device):
    """Its inputs and outputs are the host's: the copies are its own, one for each."""
    example = case("device_add_copied")
    check(device, load("device_add_copied").execute(inputs(example)), example)
    assert device.copies() == (2, 1)


def test_a_host_input_of_a_mixed_program_is_used_where_it_is(device):
    """x and y go to the device, z stays, and each output is where it was made."""
    example = case("device_mixed")
    x, y, z = inputs(example)
    method = load("device_mixed")
    method.set_inputs([x, y, z])
    assert device.copies() == (2, 0)
    z *= 2  # what the run reads is the caller's memory
    on_device, on_host = method.execute()
    assert device.copies() == (2, 0)
    assert values(device, on_device).tobytes() == example.outputs[0].tobytes()
    assert numpy.array_equal(numpy.asarray(on_host), example.outputs[1] * 2)


def test_planned_inputs_and_outputs_are_copied(device):
    """As planned memory is on the host: the runtime would use memcpy, and so refuses."""
    first, second = model_index.cases("device_add_planned", "forward")
    method = load("device_add_planned")
    outputs = method.execute(inputs(first))
    # Each input to the device; the result to a block of its own, which takes two copies.
    assert device.copies() == (3, 1)
    assert device.counters().live_blocks == 2
    later = method.execute(inputs(second))
    check(device, outputs, first)
    check(device, later, second)
    device.reset()
    fed_back = method.execute([outputs[0], later[0]])
    assert device.copies() == (3, 3)
    expected = first.outputs[0] + second.outputs[0]
    assert values(device, fed_back[0]).tobytes() == expected.tobytes()


def test_a_planned_output_is_lent_to_a_caller_who_asks(device):
    first, second = model_index.cases("device_add_planned", "forward")
    method = load("device_add_planned")
    lent = method.execute(inputs(first), clone_outputs=False)
    assert device.copies() == (2, 0)
    check(device, lent, first)
    again = method.execute(inputs(second), clone_outputs=False)
    assert address(lent[0]) == address(again[0])
    check(device, lent, second)
    del method
    check(device, lent, second)


@pytest.mark.parametrize("name", ["device_add_planned", "device_add_planned_output"])
def test_what_a_method_lends_goes_back_into_it(device, name):
    """The run writes there, so it is copied first; a copy that was handed over is used where it is."""
    example = case(name)
    method = load(name)
    (lent,) = method.execute(inputs(example), clone_outputs=False)
    (total,) = method.execute([lent, lent], clone_outputs=False)
    assert address(total) == address(lent) == device.seen()[2]
    assert address(lent) not in device.seen()[:2]
    assert numpy.array_equal(values(device, total), example.outputs[0] * 2)
    (kept,) = method.get_outputs()
    device.reset()
    method.set_inputs([kept, kept])
    assert device.copies() == ((2, 2) if name == "device_add_planned" else (0, 0))
    (total,) = method.execute()
    assert numpy.array_equal(values(device, total), example.outputs[0] * 4)


def test_what_is_lent_stands_where_an_input_is_copied_to(device):
    """Planned memory is used twice: y is copied over the result that is passed back in beside it."""
    example = case("device_sum_planned")
    x, y, z = inputs(example)
    method = load("device_sum_planned")
    (lent,) = method.execute([x, y, z], clone_outputs=False)
    with pytest.raises(MethodStateError, match="set all of them again"):
        method.execute()
    (total,) = method.execute([x, y, lent], clone_outputs=False)
    assert address(total) == address(lent)
    assert numpy.array_equal(values(device, total), x + y + example.outputs[0])


def test_an_output_that_is_an_input(device):
    """The runtime has one tensor for both; the caller gets a copy, which a later run does not change."""
    first, second = model_index.cases("device_identity", "forward")
    method = load("device_identity")
    outputs = method.execute(inputs(first))
    # Both inputs to the device, and the one that is passed through to a block of its own.
    assert device.copies() == (3, 1)
    assert len({address(output) for output in outputs}) == 2
    later = method.execute(inputs(second))
    check(device, outputs, first)
    check(device, later, second)


def test_two_devices_in_one_program(device):
    example = case("device_two")
    outputs = load("device_two").execute(inputs(example))
    check(device, outputs, example)
    assert [output.device for output in outputs] == [CUDA0, CUDA1]
    assert [device.counters(index).copies for index in (0, 1)] == [(2, 0), (2, 0)]
    device.reset()
    check(
        device, load("device_two").execute([outputs[0], outputs[0], outputs[1], outputs[1]]), Doubled(example)
    )
    assert device.copies() == (0, 0)


class Doubled:
    def __init__(self, example):
        self.outputs = [output * 2 for output in example.outputs]
        self.outputs_info = example.outputs_info


def test_a_shape_within_the_bound_and_no_rows(device):
    method = load("device_kinds", "dynamic")
    for example in model_index.cases("device_kinds", "dynamic"):
        (result,) = method.execute(inputs(example))
        assert result.shape == example.outputs[0].shape
        assert values(device, result).tobytes() == example.outputs[0].tobytes()


def test_an_intermediate_tensor_without_memory(device):
    """The exporter leaves the delegate's own output without memory here: an error, and nothing worse."""
    example = case("device_add_copied_unplanned")
    method = load("device_add_copied_unplanned")
    for _ in range(2):
        with pytest.raises(ExecuTorchError, match="CALL_DELEGATE execute failed"):
            method.execute(inputs(example))
    device.reset()


def test_a_constant_on_a_device_is_refused(device):
    """The runtime would call the host's memory the device's."""
    with pytest.raises(
        InvalidProgramError, match=r"'forward'.*constant on cuda:0.*skip_h2d_for_method_inputs"
    ):
        load("device_weight")


def test_a_device_without_memory_left(device):
    loaded = program("device_two_planned")
    device.fail_next("allocation")
    with pytest.raises(AllocationError, match="allocating 48 bytes on cuda:0"):
        loaded.load_method("forward")
    assert device.live() == 0
    example = case("device_two_planned")
    check(device, loaded.load_method("forward").execute(inputs(example)), example)
