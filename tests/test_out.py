"""execute(inputs, out=[...]): outputs in memory of their caller's."""

from __future__ import annotations

import array
import gc

import model_index
import numpy
import pytest
from dlpack_producer import READ_ONLY, Producer
from support import (
    FORMAT,
    ITEMSIZE,
    address,
    case_of,
    check_outputs,
    check_values,
    collect,
    host_inputs,
    laid_out,
    load,
    presented,
    runnable,
)
from test_agreement import METHODS

import et_cffi
from et_cffi import TensorBuffer
from et_cffi.errors import (
    ArgumentError,
    DtypeError,
    InputCountError,
    InputKindError,
    LayoutError,
    MethodStateError,
    ShapeError,
)

X = numpy.array([[1, -2], [3, -4]], numpy.float32)
Y = numpy.array([[50, 60], [-70, 80]], numpy.float32)
BOTH = pytest.mark.parametrize("name", ["add", "add_unplanned"])


def place_for(expected, info):
    """Memory of the output's shape and layout, filled with something else than the outputs; and how it is
    given: a dtype without a format code as raw bytes."""
    memory = laid_out(numpy.zeros(expected.shape, presented(info["dtype"])), info["dim_order"])
    memory.view(numpy.uint8 if memory.ndim and memory.itemsize == 1 else memory.dtype)[...] = 1
    if info["dtype"] in FORMAT:
        return memory, memory
    flat = memory.transpose(info["dim_order"]).reshape(-1).view(numpy.uint8)
    assert flat.size == expected.size * ITEMSIZE[info["dtype"]]
    return memory, flat


def places(case):
    made = [
        place_for(expected, info) if info["kind"] == "tensor" else (None, None)
        for expected, info in zip(case.outputs, case.outputs_info)
    ]
    return [memory for memory, _ in made], [given for _, given in made]


def check_placed(results, memories, given, case):
    assert len(results) == len(case.outputs)
    for index, (expected, info) in enumerate(zip(case.outputs, case.outputs_info)):
        if info["kind"] == "tensor":
            assert results[index] is given[index]
            check_values(memories[index], expected, case)
        else:
            assert results[index] == expected


def raw_bytes_can_say_the_shape(case):
    """Flat bytes stand for the whole of what the method states, and not for a part of it."""
    return all(
        info["kind"] != "tensor" or info["dtype"] in FORMAT or list(expected.shape) == info["shape"]
        for expected, info in zip(case.outputs, case.outputs_info)
    )


@pytest.mark.parametrize(("name", "method"), METHODS)
@pytest.mark.parametrize("steps", ["execute", "set_inputs"])
def test_agrees_with_eager(name, method, steps):
    """Every model, by one call and by two; and the run after it has memory of its own again."""
    loaded = load(name, method)
    for case in model_index.cases(name, method):
        assert raw_bytes_can_say_the_shape(case)
        memories, given = places(case)
        if steps == "execute":
            results = loaded.execute(host_inputs(case), out=given)
        else:
            loaded.set_inputs(host_inputs(case))
            results = loaded.execute(out=given)
        check_placed(results, memories, given, case)
        again = loaded.get_outputs()
        assert [one is other for one, other in zip(results, again)] == [True] * len(results)


@pytest.mark.parametrize("name", runnable())
def test_a_run_without_it_has_memory_of_its_own_again(name):
    """Fails where the runtime keeps the pointer of the run before (method.cpp, execute)."""
    for method in model_index.models()[name]["methods"]:
        if name.startswith("state") or not model_index.cases(name, method):
            continue
        loaded, case = load(name, method), model_index.cases(name, method)[0]
        memories, given = places(case)
        loaded.execute(host_inputs(case), out=given)
        del given
        for memory in memories:
            if memory is not None:
                memory[...] = 0
        held = [memory.copy() for memory in memories if memory is not None]
        check_outputs(loaded.execute(host_inputs(case)), case)
        for memory, before in zip((m for m in memories if m is not None), held):
            assert memory.tobytes() == before.tobytes()


@BOTH
@pytest.mark.parametrize(
    "make",
    [
        lambda: numpy.zeros((2, 2), numpy.float32),
        lambda: memoryview(array.array("f", [0] * 4)).cast("B").cast("f", (2, 2)),
        lambda: Producer(numpy.zeros((2, 2), numpy.float32)),
        lambda: Producer(numpy.zeros((2, 2), numpy.float32), versioned=True),
        lambda: load("add").execute([X, Y])[0],
    ],
    ids=["numpy", "memoryview", "dlpack legacy", "dlpack versioned", "TensorBuffer"],
)
def test_ways_to_give_it(name, make):
    given = make()
    (result,) = load(name).execute([X, Y], out=[given])
    assert result is given
    read = given.array if isinstance(given, Producer) else numpy.asarray(given)
    numpy.testing.assert_array_equal(read, X + Y)


@BOTH
def test_a_single_one(name):
    memory = numpy.empty((2, 2), numpy.float32)
    assert load(name)([X, Y], out=memory)[0] is memory
    numpy.testing.assert_array_equal(memory, X + Y)


def test_some_of_them():
    """None is for an output in memory of its own."""
    for name in ("multi", "multi_unplanned"):
        method = load(name, "scale")
        case = case_of(name, "scale")
        memories, given = places(case)
        first, second = method.execute(case.inputs, out=[None, given[1]])
        assert type(first) is TensorBuffer
        assert second is given[1]
        check_values(numpy.asarray(first), case.outputs[0], case)
        check_values(memories[1], case.outputs[1], case)
        assert method.get_outputs()[0] is first
        assert method.get_outputs(clone_outputs=False)[1] is second


def test_an_output_that_is_no_tensor():
    case = case_of("scalar_outputs")
    memories, given = places(case)
    results = load("scalar_outputs").execute(case.inputs, out=given)
    check_placed(results, memories, given, case)
    with pytest.raises(InputKindError, match=r"output 1: it is no tensor, so no memory .* pass None"):
        load("scalar_outputs").execute(case.inputs, out=[None, numpy.zeros(1), None, None, None])


def test_a_dynamic_output():
    """Its memory has the actual shape, which is known after the run only."""
    for name in ("mlp_dynamic", "mlp_dynamic_unplanned"):
        method = load(name)
        case = case_of(name)
        x, expected = case.inputs[0], case.outputs[0]
        for rows in (len(x), 1, 2):
            memory = numpy.full((rows, expected.shape[1]), 9, numpy.float32)
            method.execute([x[:rows]], out=[memory])
            numpy.testing.assert_allclose(memory, expected[:rows], rtol=case.rtol, atol=case.atol)
        guarded = numpy.full((rows + 2, expected.shape[1]), 9, numpy.float32)
        with pytest.raises(ShapeError, match=r"the run gave output 0 .*\(2, 3\), and the memory .*\(1, 3\)"):
            method.execute([x[:2]], out=[guarded[:1]])
        assert (guarded == 9).all(), "memory was written that has no room for the output"
        with pytest.raises(MethodStateError):
            method.get_outputs()
        check_values(numpy.asarray(method.execute([x])[0]), expected, case)


@pytest.mark.parametrize("name", ["identity_first_unplanned", "identity_last_unplanned", "swap_unplanned"])
def test_an_output_that_is_an_input(name):
    """The input's memory may be another output's: what is read of it is what it was before."""
    case = case_of(name)
    for shift in range(2):
        inputs = [value.copy() for value in case.inputs]
        order = [inputs[0], inputs[1] if len(inputs) > 1 else numpy.zeros_like(inputs[0])]
        out = order[shift:] + order[:shift]
        results = load(name).execute(inputs, out=out)
        for result, expected in zip(results, case.outputs):
            numpy.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", ["identity_first_unplanned", "identity_last_unplanned", "swap_unplanned"])
@pytest.mark.parametrize("clone", [True, False])
def test_an_output_that_is_an_input_whose_memory_another_is_written_to(name, clone):
    """Fails where what is returned in memory of its own is made after others were written (method.cpp,
    run_into)."""
    case = case_of(name)
    for placed in range(2):
        for given in range(len(case.inputs)):
            inputs = [value.copy() for value in case.inputs]
            out = [None, None]
            out[placed] = inputs[given]
            results = load(name).execute(inputs, out=out, clone_outputs=clone)
            for result, expected in zip(results, case.outputs):
                numpy.testing.assert_array_equal(numpy.asarray(result), expected)


@BOTH
@pytest.mark.parametrize("which", [0, 1])
def test_in_place(name, which):
    inputs = [X.copy(), Y.copy()]
    (result,) = load(name).execute(inputs, out=[inputs[which]])
    assert result is inputs[which]
    numpy.testing.assert_array_equal(result, X + Y)


@pytest.mark.parametrize("name", ["large", "large_unplanned"])
def test_memory_that_overlaps_an_inputs(name):
    """A kernel that writes where it has yet to read would read its own numbers."""
    (x, y), (expected,) = case_of(name).inputs, case_of(name).outputs
    for shift in (0, 1, 16, 700):
        for first, second in ((0, shift), (shift, 0)):
            memory = numpy.zeros(x.size + shift, numpy.float32)
            given, out = (memory[start : start + x.size].reshape(x.shape) for start in (first, second))
            given[...] = x
            load(name).execute([given, y], out=[out])
            numpy.testing.assert_array_equal(out, expected)


def test_views_and_the_same_output_twice():
    for name in (name for name in model_index.models() if name.startswith(("same_twice", "view_of_"))):
        case = case_of(name)
        memories, given = places(case)
        for out in (given, [None, given[1]], [given[0], None]):
            results = load(name).execute(host_inputs(case), out=out)
            for result, expected, mine in zip(results, case.outputs, out):
                assert type(result) is TensorBuffer if mine is None else result is mine
                check_values(numpy.asarray(result), expected, case)
        assert memories[0] is given[0]


@pytest.mark.parametrize("clone", [True, False])
def test_what_is_returned_beside_it_does_not_lie_in_it(clone):
    """An output that is a view of one in the caller's memory is copied: the caller may write to that."""
    case = case_of("view_of_output_unplanned")
    method = load("view_of_output_unplanned")
    for which in range(2):
        memories, given = places(case)
        out = [given[0], None] if which == 0 else [None, given[1]]
        results = method.execute(case.inputs, out=out, clone_outputs=clone)
        memories[which][...] = -1
        check_values(numpy.asarray(results[1 - which]), case.outputs[1 - which], case)


def test_a_result_that_was_handed_over_is_not_written():
    method = load("add_unplanned")
    (held,) = method.execute([X, Y])
    memory = numpy.empty((2, 2), numpy.float32)
    for _ in range(3):
        method.execute([Y, Y], out=[memory])
        gc.collect()
    numpy.testing.assert_array_equal(held, X + Y)
    numpy.testing.assert_array_equal(memory, Y + Y)


def test_the_memory_is_let_go_of_with_the_results():
    """The method holds what it returned, as it does results, until it runs again or is closed."""
    import weakref

    method = load("add_unplanned")
    memory = numpy.empty((2, 2), numpy.float32)
    gone = weakref.ref(memory)
    method.execute([X, Y], out=[memory])
    del memory
    collect()
    assert gone() is not None
    method.execute([X, Y])
    collect()
    assert gone() is None


def test_a_dlpack_capsule_is_given_back():
    producer = Producer(numpy.zeros((2, 2), numpy.float32))
    method = load("add_unplanned")
    method.execute([X, Y], out=[producer])
    # At once, and not when a collector comes round to it.
    assert producer.deleted == 1


REFUSED = {
    "dtype": (lambda: numpy.zeros((2, 2)), DtypeError, "dtype float64, and the method returns float32"),
    "shape": (
        lambda: numpy.zeros((2, 3), "f"),
        ShapeError,
        r"shape \(2, 3\), and the method returns \(2, 2\)",
    ),
    "rank": (lambda: numpy.zeros(4, "f"), ShapeError, r"rank 1, and the method returns rank 2"),
    "layout": (lambda: numpy.zeros((2, 2), "f").T, LayoutError, r"strides \(1, 2\)"),
    "gaps": (lambda: numpy.zeros((2, 4), "f")[:, ::2], LayoutError, r"strides \(4, 2\)"),
    "read-only array": (lambda: _read_only(), ArgumentError, "read-only"),
    "bytes": (lambda: memoryview(bytes(16)).cast("f", (2, 2)), ArgumentError, "read-only"),
    "read-only capsule": (
        lambda: Producer(numpy.zeros((2, 2), "f"), versioned=True, flags=READ_ONLY),
        ArgumentError,
        "read-only",
    ),
    "no memory": (lambda: 3.5, InputKindError, "a float is given for it, which holds no memory"),
    "list": (lambda: [[0.0, 0.0]], InputKindError, "a list is given for it"),
    "memory to be copied": (
        lambda: et_cffi.from_cdata(et_cffi.ffi.new("float[4]"), (2, 2), copy=True),
        ArgumentError,
        "not to be written",
    ),
}


def _read_only():
    memory = numpy.zeros((2, 2), numpy.float32)
    memory.flags.writeable = False
    return memory


@BOTH
@pytest.mark.parametrize("what", REFUSED)
def test_refused(name, what):
    make, error, words = REFUSED[what]
    method, given = load(name), make()
    method.set_inputs([X, Y])
    with pytest.raises(error, match=rf"output 0.*{words}"):
        method.execute(out=[given])
    if isinstance(given, numpy.ndarray):
        assert not given.any()
    # Nothing that was accepted before is lost.
    numpy.testing.assert_array_equal(method.execute()[0], X + Y)


@BOTH
def test_refused_with_inputs_that_were_good(name):
    """The inputs were taken, or those of before are there; either way they are held as long as read."""
    method = load(name)
    method.set_inputs([X.copy(), Y.copy()])
    for bad in (numpy.zeros((2, 2)), _read_only()):
        with pytest.raises((DtypeError, ArgumentError)):
            method.execute([Y.copy(), Y.copy()], out=[bad])
        collect()
        filler = [numpy.full((2, 2), 7, numpy.float32) for _ in range(64)]
        assert filler
        numpy.testing.assert_array_equal(method.execute()[0], Y + Y)


def test_the_wrong_number_of_them():
    memory = numpy.zeros((2, 2), numpy.float32)
    for out in ([], [memory, memory], (memory,) * 3):
        with pytest.raises(InputCountError, match=r"1 outputs?, and `out` has \d items"):
            load("add").execute([X, Y], out=out)


@pytest.mark.parametrize("out", [{"a": 1}, iter([X])], ids=["dict", "iterator"])
def test_no_sequence(out):
    with pytest.raises(InputKindError, match=r"the outputs are a .* one item for each output"):
        load("add").execute([X, Y], out=out)


def test_two_that_overlap():
    case = case_of("swap_unplanned")
    memory = numpy.zeros(7, numpy.float32)
    out = [memory[:4].reshape(2, 2), memory[3:].reshape(2, 2)]
    with pytest.raises(ArgumentError, match=r"output 1.* overlaps that for output 0"):
        load("swap_unplanned").execute(case.inputs, out=out)
    assert not memory.any()


def test_memory_that_the_method_uses_itself():
    method = load("add")
    (lent,) = method.execute([X, Y], clone_outputs=False)
    with pytest.raises(ArgumentError, match="planned memory"):
        method.execute([X, Y], out=[lent])
    # Memory given for planned buffers, and memory that only begins before it.
    room = numpy.zeros(4096, numpy.uint8)
    start = -address(room) % 64 + 64
    nbytes = method.metadata.planned_buffers[0][0] + 64
    method = (
        et_cffi.Runtime.get()
        .load_program(model_index.path("add"))
        .load_method("forward", planned_memory=[room[start : start + nbytes]])
    )
    for begin in (start, start - 12, start + 16):
        with pytest.raises(ArgumentError, match="planned memory"):
            method.execute([X, Y], out=[room[begin : begin + 16].view(numpy.float32).reshape(2, 2)])


def test_memory_that_moves_while_an_input_is_described():
    memory = numpy.zeros((2, 2), numpy.float32)

    class Mover(Producer):
        def __dlpack__(self, **options):
            memory.resize((400, 400), refcheck=False)
            return super().__dlpack__(**options)

    method = load("add_unplanned")
    with pytest.raises(et_cffi.errors.MemoryMovedError, match="`out`"):
        method.execute([Mover(X.copy()), Y], out=[memory])
    numpy.testing.assert_array_equal(method.execute([X, Y])[0], X + Y)


def test_memory_on_the_host_that_is_not_aligned():
    """Copied there: a kernel writes whole elements."""
    for name in ("add", "add_unplanned"):
        raw = numpy.zeros(17, numpy.uint8)
        memory = raw[1:].view(numpy.float32).reshape(2, 2)
        load(name).execute([X, Y], out=[memory])
        numpy.testing.assert_array_equal(memory, X + Y)
        assert raw[0] == 0
