"""Every model agrees with eager mode, whichever way its inputs come in.

The inputs' values all differ, and the outputs are compared with what the eager module computed when the
model was exported: values, shape, dtype and strides.
"""

from __future__ import annotations

import model_index
import pytest
from support import case_of, check_outputs, host_inputs, load, runnable
from ways_in import BY_NAME, WAYS

METHODS = [(name, method) for name in runnable() for method in model_index.models()[name]["methods"]]


def tensors(name: str, method: str) -> list[dict]:
    described = model_index.models()[name]["methods"][method]
    return [info for info in described["inputs"] if info["kind"] == "tensor"]


CROSSED = [
    pytest.param(way, name, method, id=f"{way}-{name}-{method}")
    for way in WAYS
    for name, method in METHODS
    if tensors(name, method) and all(way.takes(info) for info in tensors(name, method))
]


@pytest.mark.parametrize(("way", "name", "method"), CROSSED)
def test_a_way_in_agrees_with_eager(way, name, method):
    loaded = load(name, method)
    for case in model_index.cases(name, method):
        inputs = [
            way.make(value, info) if info["kind"] == "tensor" else value
            for value, info in zip(case.inputs, case.inputs_info)
        ]
        check_outputs(loaded.execute(inputs), case)


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_two_steps_agree_with_eager(name, method):
    """The window in which the runtime may hold pointers opens between the two calls."""
    loaded = load(name, method)
    for case in model_index.cases(name, method):
        loaded.set_inputs(host_inputs(case))
        check_outputs(loaded.execute(), case)
        check_outputs(loaded.get_outputs(), case)


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_lent_outputs_agree_with_eager(name, method):
    loaded = load(name, method)
    for case in model_index.cases(name, method):
        check_outputs(loaded.execute(host_inputs(case), clone_outputs=False), case)


CONSTANTS = [
    (name, method) for name, method in METHODS if model_index.models()[name]["methods"][method]["cases"] == 0
]


@pytest.mark.parametrize(("name", "method"), CONSTANTS)
def test_constant_methods(name, method):
    outputs = load(name, method).execute([])
    infos = model_index.models()[name]["methods"][method]["outputs"]
    assert len(outputs) == len(infos)
    for output, info in zip(outputs, infos):
        if info["kind"] != "tensor":
            assert (type(output), output) == (type(info["value"]), info["value"])


def test_every_way_is_tried():
    """A way that takes no model would prove nothing."""
    tried = {}
    for param in CROSSED:
        way, name, _ = param.values
        tried.setdefault(way.name, set()).add(name)
    assert set(tried) == set(BY_NAME) - ({"ml_dtypes_array"} - set(tried))
    assert all(len(names) >= 8 for names in tried.values()), {way: len(names) for way, names in tried.items()}
    for way in ("numpy_array", "dlpack_legacy", "dlpack_versioned"):
        assert len(tried[way]) >= 60


def test_every_dtype_goes_in_and_comes_out():
    dtypes = {info["dtype"] for name, method in METHODS for info in tensors(name, method)}
    assert {name[len("dtype_") :] for name in model_index.models() if name.startswith("dtype_")} <= {
        *dtypes,
        *(f"{dtype}_unplanned" for dtype in dtypes),
    }
    assert len(dtypes) >= 26


@pytest.mark.parametrize("name", ["index_out_of_range", "aborts", "aborts_unplanned", "aborts_quantized"])
def test_the_cases_that_do_run_of_models_that_may_fail(name):
    ran = 0
    for case in model_index.cases(name, "forward"):
        if not case.fails:
            check_outputs(load(name).execute(host_inputs(case)), case)
            ran += 1
    assert ran == 2


def test_mixed_ways_in_one_call():
    case = case_of("twenty_unplanned")
    ways = [way for way in WAYS if way.takes(case.inputs_info[0])]
    assert len(ways) > 10
    inputs = [
        ways[index % len(ways)].make(value, info)
        for index, (value, info) in enumerate(zip(case.inputs, case.inputs_info))
    ]
    check_outputs(load("twenty_unplanned").execute(inputs), case)
