"""A method that is used in the middle of its own use, on one thread: by a producer that is asked for its
memory, by a finaliser, by a signal handler, by Ctrl-C. It works or raises, and corrupts nothing."""

from __future__ import annotations

import contextlib
import signal
import time

import numpy
import pytest
from dlpack_producer import Producer
from holding import OTHER, POINTED_AT, Source, X, Y, run, settle
from support import case_of, load

import et_cffi.method
from et_cffi.errors import InputKindError, MethodStateError

NAMES = pytest.mark.parametrize("name", ["add", "add_unplanned"])


class Nested(Producer):
    """Uses a method while it is asked for its memory."""

    def __init__(self, values, use):
        super().__init__(values)
        self.use = use

    def __dlpack__(self, **keywords):
        self.use()
        return super().__dlpack__(**keywords)


def in_two_steps(method, inputs):
    method.set_inputs(inputs)
    return method.execute()


def in_one_step(method, inputs):
    return method.execute(inputs)


SET = pytest.mark.parametrize("set_them", [in_two_steps, in_one_step])


@NAMES
@SET
def test_a_producer_that_runs_the_method(name, set_them):
    """Fails where the inner inputs are taken for the outer ones, or the array that describes the outer ones
    is used by the inner call too (_inputs.py, InputWriter.take)."""
    method = load(name)
    method.set_inputs([OTHER, OTHER])  # so that there is something to use again
    inner = []
    producer = Nested(Y.copy(), lambda: inner.append(in_two_steps(method, [OTHER, Producer(OTHER)])[0]))
    # The first is described before the inner call describes its own.
    (output,) = set_them(method, [X.copy(), producer])
    numpy.testing.assert_array_equal(output, X + Y)
    numpy.testing.assert_array_equal(inner[0], OTHER + OTHER)
    assert method.get_outputs()[0] is output


@NAMES
@SET
def test_a_producer_that_sets_the_methods_inputs(name, set_them):
    """Fails where inputs that an inner call set are not let go of when the outer ones replace them
    (method.py, _replace_inputs: `replaced = self._held`)."""
    method = load(name)
    inner = Source(POINTED_AT["numpy"], OTHER)
    producer = Nested(Y.copy(), lambda: method.set_inputs([inner.give(), OTHER]))
    (output,) = set_them(method, [X.copy(), producer])
    numpy.testing.assert_array_equal(output, X + Y)
    inner.forget()
    assert not inner.alive()


@NAMES
@SET
def test_a_producer_that_reads_the_methods_outputs(name, set_them):
    """They are those of the run before, until the new inputs are in."""
    method = load(name)
    (before,) = method.execute([OTHER, OTHER])
    inner = []
    producer = Nested(Y.copy(), lambda: inner.extend(method.get_outputs()))
    (output,) = set_them(method, [X.copy(), producer])
    numpy.testing.assert_array_equal(output, X + Y)
    assert inner[0] is before


@NAMES
@SET
def test_a_producer_that_closes_the_method(name, set_them):
    """Fails where close does not ask whether a call is under way (method.py: `if self._calls`)."""
    method = load(name)
    refused = []

    def close():
        with pytest.raises(MethodStateError, match="is running and cannot be closed"):
            method.close()
        refused.append(True)

    (output,) = set_them(method, [X.copy(), Nested(Y.copy(), close)])
    assert refused == [True]
    numpy.testing.assert_array_equal(output, X + Y)
    method.close()


@NAMES
def test_results_of_an_inner_run_are_not_given_for_the_outer_inputs(name):
    """Fails where the results are dropped only before the inputs are described (method.py, _give:
    `self._results = {}` after `self._running = True`)."""
    method = load(name)
    method.set_inputs([X.copy(), Nested(Y.copy(), lambda: method.execute([OTHER, OTHER]))])
    with pytest.raises(MethodStateError, match="has not run with its present inputs"):
        method.get_outputs()
    numpy.testing.assert_array_equal(run(method), X + Y)
    # The run in one step keeps one kind of results only; the other is not the inner run's either.
    method.execute([X.copy(), Nested(Y.copy(), lambda: method.execute([OTHER, OTHER], clone_outputs=False))])
    numpy.testing.assert_array_equal(method.get_outputs(clone_outputs=False)[0], X + Y)


@NAMES
def test_results_of_an_inner_run_are_not_given_after_the_outer_inputs_were_refused(name):
    """Fails where a refusal does not drop the results (method.py, _replace_inputs: `self._results = {}`)."""
    method = load(name)
    refused = [Nested(Y.copy(), lambda: method.execute([OTHER, OTHER])), object()]
    for set_them in (method.set_inputs, method.execute):
        with pytest.raises(InputKindError):
            set_them(refused)
        with pytest.raises(MethodStateError, match="refused"):
            method.get_outputs()


def test_a_producer_that_nests_deeply():
    method = load("add_unplanned")
    depths = []

    def use(depth):
        depths.append(depth)
        if depth < 20:
            producer = Nested(Y * depth, lambda: use(depth + 1))
            numpy.testing.assert_array_equal(method.execute([X, producer])[0], X + Y * depth)

    use(0)
    assert depths == list(range(21))


class Finalised(bytearray):
    """Uses a method when it is let go of."""

    use = None

    def __del__(self):
        if self.use is not None:
            self.use()


@SET
def test_a_finaliser_that_runs_the_method(set_them):
    """It is called while its input is replaced. Fails where that happens before it is settled what to hold
    (method.py, _replace_inputs: `held.release()` comes last)."""
    method = load("add_unplanned")
    ran = []

    def use():
        try:
            ran.append(numpy.array(method.execute([OTHER, OTHER])[0]))
        except MethodStateError as error:
            ran.append(error)

    memory = Finalised(X.tobytes())
    memory.use = use
    method.set_inputs([memoryview(memory).cast("f", (2, 2)), Y])
    del memory
    x, y = X.copy(), Y.copy()
    (output,) = set_them(method, [x, y])
    settle()
    assert len(ran) == 1
    if not isinstance(ran[0], MethodStateError):
        numpy.testing.assert_array_equal(ran[0], OTHER + OTHER)
    # In two steps the finaliser's inputs may be the last that were set before the run.
    expected = (X + Y).tolist(), (OTHER + OTHER).tolist()
    assert numpy.asarray(output).tolist() in (expected if set_them is in_two_steps else expected[:1])


@pytest.mark.parametrize("name", ["add", "add_unplanned", "conv_xnnpack_unplanned"])
@SET
def test_a_signal_handler_that_runs_the_method(name, set_them):
    """It may come between any two steps. Fails, sooner or later, where pointers are with the runtime before
    it is settled who holds them (method.py, _running)."""
    case, other = case_of(name), case_of(name, number=1)
    method, inputs, expected = load(name), case.inputs, case.outputs[0]
    other_inputs, other_expected = other.inputs, other.outputs[0]
    outcomes = {"ran": 0, "refused": 0, "wrong": 0}

    def agrees(output, values):
        return numpy.allclose(output, values, case.rtol, case.atol)

    def handler(signum, frame):
        try:
            output = method.execute(other_inputs)[0]
        except MethodStateError:
            outcomes["refused"] += 1
        else:
            outcomes["ran"] += 1
            outcomes["wrong"] += not agrees(output, other_expected)
        signal.setitimer(signal.ITIMER_REAL, 0.0005)  # the next one, after this one has ended

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005)
    try:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            output = set_them(method, inputs)[0]
            # In two steps the handler's inputs may be those that were set last.
            outcomes["wrong"] += not (
                agrees(output, expected) or (set_them is in_two_steps and agrees(output, other_expected))
            )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert outcomes["ran"] > 0
    assert outcomes["wrong"] == 0


def only_set(method, inputs):
    method.set_inputs(inputs)


def in_one_step_that_is_not_plain(method, inputs):
    method.execute(type("Inputs", (list,), {})(inputs))


@pytest.mark.parametrize("set_them", [only_set, in_one_step_that_is_not_plain], ids=["only_set", "one_step"])
def test_ctrl_c_before_it_is_settled_what_to_hold(set_them, monkeypatch):
    """The runtime has pointers that nobody holds. Fails where _leave does not refuse them (method.py:
    `etcffi_method_refuse_inputs` there). Plain runs are settled in C, where no signal comes in between."""
    method = load("add_unplanned")
    method.execute([OTHER, OTHER])
    interrupted = []

    def interrupt(*arguments):
        interrupted.append(True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(method, "_replace_inputs", interrupt)
        with contextlib.suppress(KeyboardInterrupt):
            set_them(method, [X.copy(), Y.copy()])
    assert interrupted
    with pytest.raises(MethodStateError, match="refused, so they are incomplete"):
        method.execute()
    with pytest.raises(MethodStateError, match="refused, so they are incomplete"):
        method.get_outputs()
    numpy.testing.assert_array_equal(method.execute([X, Y])[0], X + Y)


@pytest.mark.cpython
@NAMES
def test_results_are_those_of_the_run_that_gave_them(name, monkeypatch):
    """A signal handler may run the method between a run and the end of the call. Fails where the results are
    taken from what the last run left (method.py, _ran)."""
    method = load(name)
    check = et_cffi.method.Method._as_torch

    def interrupted(self, results):
        monkeypatch.undo()
        method.execute([OTHER, OTHER])
        return check(self, results)

    monkeypatch.setattr(et_cffi.method.Method, "_as_torch", interrupted)
    (output,) = method.execute([Producer(X.copy()), Producer(Y.copy())])
    numpy.testing.assert_array_equal(output, X + Y)
    numpy.testing.assert_array_equal(method.get_outputs()[0], OTHER + OTHER)
