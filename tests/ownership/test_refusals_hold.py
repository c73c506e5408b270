"""Setting inputs is not all or nothing: the runtime takes them one by one and may refuse any. After a refusal
both sets are kept, nothing runs and nothing is read until a whole set is given, and retrying adds up to
nothing."""

from __future__ import annotations

import numpy
import pytest
from dlpack_producer import Producer
from holding import OTHER, POINTED_AT, WATCHED_POINTED_AT, Source, X, Y, only, run
from support import case_of, load

import et_cffi.method
from et_cffi import lib
from et_cffi.errors import DtypeError, ExecuTorchError, InputCountError, MethodStateError, ThreadError

INCOMPLETE = pytest.raises(MethodStateError, match="refused, so they are incomplete; set all of them first")
SCALARS = case_of("scalar_inputs_unplanned").inputs[1:]
GOOD = [1, *SCALARS[1:]]
KIND = pytest.mark.parametrize("kind", WATCHED_POINTED_AT)


def set_inputs(method, inputs):
    method.set_inputs(inputs)


def execute(method, inputs):
    method.execute(inputs)


SET = pytest.mark.parametrize("set_them", [set_inputs, execute])


def refuse_before(method, source, set_them):
    """A set that the wrapper refuses before the runtime sees any of it: the second has another dtype."""
    with pytest.raises(DtypeError, match="input 1"):
        set_them(method, [source, Y.astype(numpy.float64)])


def refuse_half_way(method, source, set_them):
    """A set of which the runtime takes the first and refuses the second: export fixed that int's value."""
    with pytest.raises(ExecuTorchError, match="setting input 1"):
        set_them(method, [source, SCALARS[0] + 1, *SCALARS[1:]])


def check_that_nothing_is_read(method):
    with INCOMPLETE:
        method.execute()
    for clone in (True, False):
        with INCOMPLETE:
            method.get_outputs(clone_outputs=clone)


@SET
@KIND
def test_both_sets_are_kept_after_a_refusal_half_way(kind, set_them):
    """Fails where a refused call lets go of what it had installed (method.py, _replace_inputs:
    `self._held_refused += pointed_at`), or of the set before it."""
    method = load("scalar_inputs_unplanned")
    before, refused = Source(POINTED_AT[kind], X), Source(POINTED_AT[kind], OTHER)
    set_them(method, [before.give(), *SCALARS])
    refuse_half_way(method, refused.give(), set_them)
    before.forget()
    refused.forget()
    assert before.alive()
    assert refused.alive()
    check_that_nothing_is_read(method)
    assert before.alive()
    assert refused.alive()
    method.set_inputs([X.copy(), *SCALARS])
    assert not before.alive()
    assert not refused.alive()


@SET
@KIND
def test_the_set_before_a_refused_one_is_kept(kind, set_them):
    """A set that the runtime never saw is let go of at once. Fails where _pointed_at keeps what was not
    installed (method.py)."""
    method = load("add_unplanned")
    before, refused = Source(POINTED_AT[kind], X), Source(POINTED_AT[kind], OTHER)
    set_them(method, [before.give(), Y])
    refuse_before(method, refused.give(), set_them)
    before.forget()
    refused.forget()
    assert before.alive()
    assert not refused.alive()
    check_that_nothing_is_read(method)
    only(method, OTHER)
    assert not before.alive()


@SET
def test_retrying_adds_up_to_nothing(set_them):
    """Fails where an incomplete set is not dropped when the next call comes (method.py, _drop_refused)."""
    method = load("scalar_inputs_unplanned")
    first = Producer(X.copy())
    set_them(method, [first, *SCALARS])
    producers = [Producer(X.copy()) for _ in range(50)]
    for number, producer in enumerate(producers):
        refuse_half_way(method, producer, set_them)
        assert producer.deleted == 0
        assert [each.deleted for each in producers[:number]] == [1] * number
    assert first.deleted == 0
    method.set_inputs([X.copy(), *SCALARS])
    assert [producer.deleted for producer in (first, *producers)] == [1] * 51


@SET
def test_retrying_what_is_refused_at_once_adds_up_to_nothing(set_them):
    """Fails where _pointed_at does not release what was not installed (method.py)."""
    method = load("add_unplanned")
    first = Producer(X.copy())
    set_them(method, [first, Y])
    producers = [Producer(X.copy()) for _ in range(50)]
    for producer in producers:
        refuse_before(method, producer, set_them)
        assert producer.deleted == 1
    assert first.deleted == 0


def raising(method, set_them):
    class Broken:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **keywords):
            raise ZeroDivisionError("broken")

    with pytest.raises(ZeroDivisionError):
        set_them(method, [X, Broken()])


def refusing(error, inputs):
    def refuse(method, set_them):
        with pytest.raises(error):
            set_them(method, inputs)

    return refuse


REFUSALS = {
    "count": refusing(InputCountError, [X]),
    "dtype": lambda method, set_them: refuse_before(method, X, set_them),
    "kind": refusing(TypeError, [X, "y"]),
    "no memory": refusing(TypeError, [X, object()]),
    "no sequence": refusing(TypeError, object()),
    "an exception of the caller's": raising,
}


@SET
@pytest.mark.parametrize("refuse", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("name", ["add", "add_unplanned"])
def test_nothing_runs_and_nothing_is_read_after_any_refusal(name, refuse, set_them):
    """Fails where a refusal before the C call is not told to the C layer (method.py, _replace_inputs:
    etcffi_method_refuse_inputs), and where results of before are still given (`self._results = {}`)."""
    method = load(name)
    method.execute([X, Y])
    method.get_outputs(clone_outputs=False)
    refuse(method, set_them)
    check_that_nothing_is_read(method)
    method.set_inputs([OTHER, Y])
    with pytest.raises(MethodStateError, match="has not run with its present inputs"):
        method.get_outputs()
    numpy.testing.assert_array_equal(run(method), OTHER + Y)


def test_nothing_is_read_before_the_first_set():
    """Fails where require_inputs lets an unset method run (method.cpp)."""
    method = load("add_unplanned")
    with pytest.raises(MethodStateError, match="never set"):
        method.execute()
    with pytest.raises(MethodStateError, match="has not run"):
        method.get_outputs()


@SET
def test_a_set_that_spends_its_planned_memory_is_whole_once(set_them):
    """The run overwrites a planned input, so the next would read something else. Fails where `kSpent` is not
    told from `kSet` (method.cpp, execute)."""
    case = case_of("conv")
    method = load("conv")
    method.execute(case.inputs)
    with pytest.raises(MethodStateError, match="used the memory of the method's planned inputs"):
        method.execute()
    numpy.testing.assert_allclose(method.get_outputs()[0], case.outputs[0], case.rtol, case.atol)
    set_them(method, case.inputs)


class BusyLib:
    """The C library, for which the method is in use by a thread that does not go by way of Python, or shares
    its state with one that is."""

    def __getattr__(self, name):
        return getattr(lib, name)

    def etcffi_method_set_inputs(self, *arguments):
        return lib.ETCFFI_Busy

    etcffi_method_run = etcffi_method_set_inputs


@SET
def test_inputs_that_a_busy_method_did_not_take(set_them, monkeypatch):
    """It has those of before, and these are kept. Fails where its whole set is taken for the new one
    (method.py, _took_them), so that what the runtime points at is let go of. (Of a run by CPython's C API:
    test_one_thread_at_a_time.py, test_a_run_that_finds_the_method_busy.)"""
    method = load("add_unplanned")
    before, refused = Source(POINTED_AT["numpy"], X), Source(POINTED_AT["numpy"], OTHER)
    set_them(method, [before.give(), Y])
    # A subclass of list is not plain.
    given = type("Inputs", (list,), {})([refused.give(), Y])
    with monkeypatch.context() as patched:
        patched.setattr(et_cffi.method, "lib", BusyLib())
        with pytest.raises(ThreadError):
            set_them(method, given)
    del given[:]
    before.forget()
    refused.forget()
    assert before.alive()
    assert not refused.alive()
    check_that_nothing_is_read(method)
    only(method, OTHER)
    assert not before.alive()


def test_what_an_inner_refusal_left_is_dropped_by_the_outer_set():
    """A producer fails to set the inputs of the very method that asks it, and goes on. Fails where a whole
    set drops only what was held before it (method.py, _replace_inputs: `+ self._held_refused`)."""
    method = load("scalar_inputs_unplanned")
    inner = Producer(OTHER.copy())

    class Nested(Producer):
        def __dlpack__(self, **keywords):
            refuse_half_way(method, inner, set_inputs)
            return super().__dlpack__(**keywords)

    outer = Nested(X.copy())
    method.set_inputs([outer, *SCALARS])
    assert inner.deleted == 1
    assert outer.deleted == 0
    expected = load("scalar_inputs_unplanned").execute([X, *SCALARS])[0]
    numpy.testing.assert_array_equal(run(method), expected)
