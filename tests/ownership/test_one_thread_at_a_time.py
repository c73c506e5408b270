"""A method is used by one thread at a time, and a second one is told so at once. Many threads may use one
program, each with a method of its own, and never wait for one another."""

from __future__ import annotations

import sys
import threading
import time

import model_index
import numpy
import pytest
from holding import POINTED_AT, Source
from support import case_of, host_inputs, load, program

from et_cffi import Runtime, ffi, lib
from et_cffi.errors import MethodStateError, ThreadError

X = numpy.array([[1, -2], [3, 5]], numpy.float32)
Y = numpy.array([70, 110, 130, -170], numpy.float32)
Z = numpy.array([9, -20, 31], numpy.float32)
SUM = X + Y.reshape(2, 2)


class Running:
    """A method that another thread is in the middle of running, until it is told to go on."""

    def __init__(self, backend, method, in_two_steps=False):
        self.method, self.in_two_steps = method, in_two_steps
        self._entered, self._go_on = threading.Event(), threading.Event()
        self._calling = backend.calling(self._wait)
        self._thread = threading.Thread(target=self._run)
        self.outputs = None

    def _wait(self):
        if threading.current_thread() is self._thread:
            self._entered.set()
            assert self._go_on.wait(60)

    def _run(self):
        if self.in_two_steps:
            self.method.set_inputs([X, Y, Z])
            self.outputs = self.method.execute()
        else:
            self.outputs = self.method.execute([X, Y, Z])

    def __enter__(self):
        self._calling.__enter__()
        self._thread.start()
        assert self._entered.wait(60)
        return self

    def __exit__(self, *exc_info):
        self._go_on.set()
        self._thread.join(60)
        self._calling.__exit__(*exc_info)


USES = {
    "execute with inputs": lambda method: method.execute([X, Y, Z]),
    "execute": lambda method: method.execute(),
    "call": lambda method: method([X, Y, Z]),
    "set_inputs": lambda method: method.set_inputs([X, Y, Z]),
    "get_outputs": lambda method: method.get_outputs(),
    "get_attribute": lambda method: method.get_attribute("x"),
    "close": lambda method: method.close(),
    "with": lambda method: method.__exit__(),
}


@pytest.mark.parametrize("in_two_steps", [False, True], ids=["one step", "two steps"])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_second_thread_is_refused_at_once(backend, use, in_two_steps):
    """Fails where a method is not claimed by its thread (method.py, _acquire; cpython.c, hold)."""
    method = backend.load(0)
    with Running(backend, method, in_two_steps) as running:
        start = time.monotonic()
        with pytest.raises(ThreadError, match=r"another thread; load one method for each thread"):
            use(method)
        assert time.monotonic() - start < 5
    numpy.testing.assert_array_equal(running.outputs[0], SUM)
    numpy.testing.assert_array_equal(method.get_outputs()[0], SUM)
    numpy.testing.assert_array_equal(method.execute([X, Y, Z])[0], SUM)  # free again


C_USES = {
    "run": lambda handle, values: lib.etcffi_method_run(handle, values, 3, 1, values, 2),
    "set_inputs": lambda handle, values: lib.etcffi_method_set_inputs(handle, values, 3),
    "execute": lambda handle, values: lib.etcffi_method_execute(handle),
    "get_outputs": lambda handle, values: lib.etcffi_method_get_outputs(handle, 1, values, 2),
    "get_attribute": lambda handle, values: lib.etcffi_method_get_attribute(
        handle, b"x", ffi.new("etcffi_tensor **")
    ),
}


@pytest.mark.parametrize("use", C_USES.values(), ids=C_USES)
def test_a_second_thread_is_refused_by_the_c_api_too(backend, use):
    """Fails where etcffi_method::call does not ask in_use_ (method.h)."""
    method = backend.load(0)
    with Running(backend, method) as running:
        assert use(method._handle, ffi.new("etcffi_value[3]")) == lib.ETCFFI_Busy
        assert b"another thread; load one for each thread" in ffi.string(lib.etcffi_last_message())
    numpy.testing.assert_array_equal(running.outputs[0], SUM)


class RunningInC(Running):
    """The same, by the C API: the Python layer knows nothing of it."""

    def _run(self):
        self.outputs = lib.etcffi_method_execute(self.method._handle)


def test_a_run_that_finds_the_method_busy(backend):
    """It took none of its inputs, and the method has those of before, which are kept. Fails where they are
    let go of (cpython.c, settle: `status != ETCFFI_Busy`)."""
    Runtime.get().backend_registry.set_input_needs(backend.name(5), padding=0, alignment=1)
    method = backend.load(5)
    before, refused = Source(POINTED_AT["numpy"], X), Source(POINTED_AT["numpy"], X)
    method.set_inputs([before.give(), Y, Z])
    before.forget()
    with RunningInC(backend, method) as running:
        with pytest.raises(ThreadError, match="another thread"):
            method.execute([refused.give(), Y, Z])
        refused.forget()
        assert before.alive()
        assert not refused.alive()
    assert running.outputs == 0
    numpy.testing.assert_array_equal(method.execute([X, Y, Z])[0], SUM)
    assert not before.alive()


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_use_in_the_middle_of_a_run_is_refused(backend, use):
    """By the very thread that runs: a kernel or a backend that calls back. Fails where execute does not say
    that it runs (method.py, `self._running = True`): inputs that are being read would be let go of."""
    Runtime.get().backend_registry.set_input_needs(backend.name(4), padding=0, alignment=1)
    method = backend.load(4)
    x = Source(POINTED_AT["bytearray"], X)
    given, refused, held = [x.give(), Y, Z], [], []

    def hook():
        try:
            use(method)
        except MethodStateError as error:
            refused.append(str(error))
        held.append(x.alive())

    with backend.calling(hook):
        method.set_inputs(given)
        x.forget()
        del given[0]
        numpy.testing.assert_array_equal(method.execute()[0], SUM)
        numpy.testing.assert_array_equal(method.execute()[0], SUM)
        x = Source(POINTED_AT["bytearray"], X)
        numpy.testing.assert_array_equal(method.execute([x.give(), Y, Z])[0], SUM)
    assert held == [True] * 3
    assert len(refused) == 3
    for words in refused:
        assert "in the middle of a run, on this thread" in words or "is running and cannot be closed" in words
    numpy.testing.assert_array_equal(method.get_outputs()[0], SUM)


def test_methods_of_one_program_do_not_wait_for_one_another(backend):
    """Fails where a run holds a lock of the program's, or the interpreter's."""
    with Running(backend, backend.load(0)) as running:
        for _ in range(100):
            other = backend.load(0)
            numpy.testing.assert_array_equal(other.execute([X, Y, Z])[0], SUM)
        assert running.outputs is None
    numpy.testing.assert_array_equal(running.outputs[0], SUM)


@pytest.fixture
def switching_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(count, work):
    """Runs `work(i)` in threads that start together; raises what any of them raised."""
    barrier, failures = threading.Barrier(count), []

    def run(i):
        try:
            barrier.wait(60)
            work(i)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not [thread for thread in threads if thread.is_alive()]
    if failures:
        raise failures[0]


SHARED = [
    ("add", "forward"),
    ("add_unplanned", "forward"),
    ("conv", "forward"),
    ("state", "forward"),
    ("conv_xnnpack", "forward"),
    ("conv_xnnpack_unplanned", "forward"),
    ("mlp_dynamic_xnnpack_unplanned", "forward"),
    ("xnnpack_kinds_unplanned", "wide"),
    ("quantized_xnnpack", "forward"),
    ("xnnpack_threads", "forward"),
]


def outputs_of(loaded, name, method):
    return [
        [numpy.asarray(output).tobytes() for output in loaded.execute(host_inputs(case))]
        for case in model_index.cases(name, method)
    ]


@pytest.mark.usefixtures("switching_often")
@pytest.mark.parametrize(("name", "method"), SHARED)
def test_many_threads_on_one_program_agree_bit_by_bit(name, method):
    """Each with a method of its own, loaded while the others run. Fails where methods share memory."""
    expected = outputs_of(load(name, method), name, method)

    def work(_):
        for _ in range(30):
            loaded = program(name).load_method(method)
            assert outputs_of(loaded, name, method) == expected

    in_threads(8, work)


@pytest.mark.usefixtures("switching_often")
def test_many_threads_on_one_method_never_corrupt_it():
    """Each use works, with its own numbers, or is refused. Fails where the claim has a gap (method.py,
    _acquire)."""
    method = load("add_unplanned")
    works, refusals = [0] * 4, [0] * 4

    def work(i):
        x = numpy.full((2, 2), i, numpy.float32)
        for _ in range(2000):
            try:
                (output,) = method.execute([x, x])
            except ThreadError:
                refusals[i] += 1
            else:
                assert numpy.asarray(output).ravel().tolist() == [2 * i] * 4
                works[i] += 1

    in_threads(4, work)
    assert sum(works) > 0
    assert sum(works) + sum(refusals) == 8000


@pytest.mark.usefixtures("switching_often")
def test_programs_loaded_and_dropped_by_many_threads():
    """Fails where loading is not safe beside loading and running."""
    case = case_of("conv_xnnpack")

    def work(_):
        for _ in range(10):
            loaded = Runtime.get().load_program(model_index.path("conv_xnnpack").read_bytes())
            output = loaded.load_method("forward").execute(case.inputs)[0]
            numpy.testing.assert_allclose(output, case.outputs[0], case.rtol, case.atol)

    in_threads(6, work)


@pytest.mark.usefixtures("switching_often")
def test_results_dropped_by_other_threads():
    """References are counted by several threads at once. Fails where they are not atomic (ref.h)."""
    method = load("add_unplanned")
    case = case_of("add_unplanned")
    handed = [method.execute(case.inputs)[0] for _ in range(200)]

    def work(_):
        for result in handed:
            views = [numpy.from_dlpack(result) for _ in range(3)]
            assert views[0][0, 0] == case.outputs[0][0, 0]

    in_threads(6, work)
