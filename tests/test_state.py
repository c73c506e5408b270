"""State: attributes, mutable buffers from run to run, and buffers that methods share."""

from __future__ import annotations

import threading

import model_index
import numpy
import pytest

from et_cffi import Runtime, errors


def load(name):
    return Runtime.get().load_program(model_index.path(name))


def run(method, case):
    return numpy.asarray(method.execute(case.inputs)[0]).copy()


@pytest.mark.parametrize("name", ["state", "state_initial", "state_unplanned"])
def test_state_persists_within_a_method_and_a_new_one_starts_clean(name):
    program, cases = load(name), model_index.cases(name, "forward")
    for _ in range(2):
        method = program.load_method("forward")
        for case in cases:
            assert numpy.array_equal(run(method, case), case.outputs[0])
    first, second = program.load_method("forward"), program.load_method("forward")
    assert numpy.array_equal(run(first, cases[0]), cases[0].outputs[0])
    assert numpy.array_equal(run(second, cases[0]), cases[0].outputs[0])


def shared_total(program):
    return numpy.asarray(program.load_method("read").execute([])[0]).copy()


def test_methods_that_share_a_buffer():
    """The state is one, in whatever order they are loaded; loading does not reset what a run made of it."""
    cases = model_index.cases("state_shared", "forward")
    program = load("state_shared")
    untouched = shared_total(load("state_shared"))
    (read,) = model_index.cases("state_shared", "read")
    assert numpy.array_equal(untouched, read.outputs[0])
    forward = program.load_method("forward")
    for count, case in enumerate(cases, 1):
        assert numpy.array_equal(run(forward, case), case.outputs[0])
        expected = untouched + sum(earlier.inputs[0] for earlier in cases[:count])
        assert numpy.array_equal(shared_total(program), expected)  # loaded now
    early = load("state_shared")
    reader, writer = early.load_method("read"), early.load_method("forward")
    run(writer, cases[0])
    assert numpy.array_equal(numpy.asarray(reader.execute([])[0]), untouched + cases[0].inputs[0])


def test_the_state_is_the_programs_and_outlives_a_method():
    (case, *_) = model_index.cases("state_shared", "forward")
    program = load("state_shared")
    untouched = shared_total(load("state_shared"))
    with program.load_method("forward") as method:
        run(method, case)
    assert numpy.array_equal(shared_total(program), untouched + case.inputs[0])
    assert numpy.array_equal(shared_total(load("state_shared")), untouched)
    owners = [buffer.owner for buffer in program.load_method("read").memory.planned]
    assert owners == ["method", "program"]


def test_methods_that_share_state_are_used_by_one_thread_at_a_time():
    program = load("state_shared")
    methods = [program.load_method("forward"), program.load_method("read")]
    (case, *_) = model_index.cases("state_shared", "forward")
    refused, stop = [], threading.Event()

    def work(method, inputs):
        while not stop.is_set():
            try:
                method.execute(inputs)
            except errors.ThreadError as error:
                refused.append(str(error))
                stop.set()

    threads = [threading.Thread(target=work, args=args) for args in zip(methods, (case.inputs, []))]
    timer = threading.Timer(30, stop.set)
    timer.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timer.cancel()
    assert refused and "shares its state with this one" in refused[0]


@pytest.mark.parametrize("name", ["multi", "attributes", "state", "two_dynamic"])
def test_nothing_else_is_shared(name):
    program = load(name)
    for method in program.method_names:
        assert all(buffer.owner == "method" for buffer in program.load_method(method).memory.planned)


def test_an_unknown_attribute():
    with pytest.raises(errors.ExecuTorchError, match="the attribute 'nothing'"):
        load("add").load_method("forward").get_attribute("nothing")
