"""MethodPool: any thread, in order, with bounded memory, and clear about errors and its end."""

from __future__ import annotations

import itertools
import threading
import time

import numpy
import pytest
from model_index import cases, path

from et_cffi import MethodPool, Runtime, errors


@pytest.fixture
def program():
    return Runtime.get().load_program(path("add"))


def inputs_for(number):
    x = numpy.arange(4, dtype=numpy.float32).reshape(2, 2) + number
    return [x, 10 * x + 1]


def expected(number):
    x = numpy.arange(4, dtype=numpy.float32).reshape(2, 2) + number
    return x + (10 * x + 1)


def test_map_gives_each_item_its_own_result_in_order(program):
    with MethodPool(program, "forward", 3) as pool:
        results = [numpy.asarray(out).copy() for (out,) in pool.map(inputs_for(i) for i in range(200))]
    assert len(results) == 200
    for number, result in enumerate(results):
        numpy.testing.assert_array_equal(result, expected(number))


def test_results_are_not_overwritten_by_later_items(program):
    with MethodPool(program, "forward", 2) as pool:
        results = list(pool.map(inputs_for(i) for i in range(50)))
    for number, (out,) in enumerate(results):
        numpy.testing.assert_array_equal(numpy.asarray(out), expected(number))


def test_map_takes_no_more_than_twice_its_size_ahead(program):
    taken = itertools.count()
    last = 0

    def endless():
        nonlocal last
        for number in taken:
            last = number
            yield inputs_for(number)

    with MethodPool(program, "forward", 2) as pool:
        results = pool.map(endless())
        for number in range(5):
            (out,) = next(results)
            numpy.testing.assert_array_equal(numpy.asarray(out), expected(number))
            assert last < number + 2 * pool.size
        results.close()


def test_an_error_comes_at_its_turn_and_the_pool_goes_on(program):
    wrong = [numpy.zeros((2, 2), numpy.float64)] * 2
    with MethodPool(program, "forward", 2) as pool:
        results = pool.map([inputs_for(0), wrong, inputs_for(2)])
        numpy.testing.assert_array_equal(numpy.asarray(next(results)[0]), expected(0))
        with pytest.raises(errors.DtypeError, match=r"float64.*float32"):
            next(results)
        assert list(results) == []
        numpy.testing.assert_array_equal(numpy.asarray(pool.execute(inputs_for(7))[0]), expected(7))


def test_an_error_of_the_iterable_is_raised(program):
    def failing():
        yield inputs_for(0)
        raise KeyError("no more")

    with MethodPool(program, "forward", 1) as pool, pytest.raises(KeyError, match="no more"):
        list(pool.map(failing()))


def test_more_threads_than_methods_wait_for_an_idle_one(program):
    results = {}
    with MethodPool(program, "forward", 2) as pool:

        def work(number):
            for _ in range(50):
                results[number] = numpy.asarray(pool.execute(inputs_for(number))[0]).copy()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 8
    for number, result in results.items():
        numpy.testing.assert_array_equal(result, expected(number))


def test_close_waits_for_those_that_execute(program):
    pool = MethodPool(program, "forward", 1)
    method = pool._take()
    closing = threading.Thread(target=pool.close)
    closing.start()
    time.sleep(0.05)
    assert closing.is_alive()
    (out,) = method.execute(inputs_for(1))
    pool._give_back(method)
    closing.join(10)
    assert not closing.is_alive()
    numpy.testing.assert_array_equal(numpy.asarray(out), expected(1))


def test_a_closed_pool_says_so(program):
    pool = MethodPool(program, "forward", 1)
    pool.close()
    pool.close()
    with pytest.raises(errors.MethodStateError, match="the pool is closed"):
        pool.execute(inputs_for(0))
    with pytest.raises(errors.MethodStateError, match="the pool is closed"):
        pool.map([inputs_for(0)])


def test_a_waiting_thread_is_told_of_the_close(program):
    pool = MethodPool(program, "forward", 1)
    method = pool._take()
    failures = []

    def wait():
        try:
            pool.execute(inputs_for(0))
        except errors.MethodStateError as error:
            failures.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    closing = threading.Thread(target=pool.close)
    closing.start()
    waiting.join(10)
    assert failures == ["the pool is closed"]
    pool._give_back(method)
    closing.join(10)
    assert not closing.is_alive()


@pytest.mark.parametrize("size", [0, -1])
def test_a_pool_without_methods_is_refused(program, size):
    with pytest.raises(ValueError, match="1 method or more"):
        MethodPool(program, "forward", size)


def test_options_of_a_backend():
    """Each method has a workspace of its own: without, a second thread gains nothing of XNNPACK."""
    program = Runtime.get().load_program(path("digits"))
    case = cases("digits", "forward")[0]
    with MethodPool(
        program, "forward", 2, backend_options={"XnnpackBackend": {"workspace_sharing_mode": 0}}
    ) as pool:
        for (scores,) in pool.map([case.inputs] * 6):
            numpy.testing.assert_allclose(scores, case.outputs[0], case.rtol, case.atol)
    with pytest.raises(errors.ExecuTorchError, match="between 0 and 2"):
        MethodPool(program, "forward", 2, backend_options={"XnnpackBackend": {"workspace_sharing_mode": 9}})
