"""How many threads kernels and backends use."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import model_index
import native_build
import numpy
import pytest

import et_cffi
from et_cffi import Runtime, errors, portable_lib

# Children start here and not in the source tree, whose et_cffi may be one that is not built.
HERE = Path(__file__).resolve().parent


@pytest.fixture(autouse=True)
def restored():
    before = et_cffi.num_threads()
    yield
    gc.collect()  # methods that nobody refers to hold the threads too
    et_cffi.set_num_threads(before)


def load(name):
    return Runtime.get().load_program(model_index.path(name)).load_method("forward")


def test_the_number_is_what_was_set():
    for count in (1, 2, 1):
        et_cffi.set_num_threads(count)
        assert et_cffi.num_threads() == portable_lib._threadpool_get_thread_count() == count


def test_the_official_names():
    portable_lib._unsafe_reset_threadpool(1)
    assert portable_lib._threadpool_get_thread_count() == 1
    portable_lib._unsafe_reset_threadpool(0)
    assert portable_lib._threadpool_get_thread_count() == 1


@pytest.mark.parametrize("count", [0, -1, 1 << 20])
def test_what_is_no_number_of_threads(count):
    with pytest.raises(ValueError, match="1 or more"):
        et_cffi.set_num_threads(count)


def test_more_threads_than_ever_are_refused_while_a_delegate_holds_the_pool():
    et_cffi.set_num_threads(1)
    method = load("conv_xnnpack")
    with pytest.raises(errors.ThreadError, match=r"methods that delegate to a backend are loaded"):
        et_cffi.set_num_threads(60000)
    assert et_cffi.num_threads() == 1
    method.close()


SOME = """
import sys
sys.path.insert(0, sys.argv[1])
import model_index, et_cffi, numpy
case = model_index.cases("conv_xnnpack", "forward")[0]
program = et_cffi.Runtime.get().load_program(model_index.path("conv_xnnpack"))
def right(method):
    return numpy.allclose(method.execute(case.inputs)[0], case.outputs[0], case.rtol, case.atol)
et_cffi.set_num_threads(4)
method = program.load_method("forward")
for count in (3, 2, 5):
    try:
        et_cffi.set_num_threads(count)
    except et_cffi.errors.ThreadError:
        print("refused", et_cffi.num_threads(), right(method))
for count in (1, 4):
    et_cffi.set_num_threads(count)
    print(et_cffi.num_threads(), right(method))
method.close()
et_cffi.set_num_threads(3)
print(et_cffi.num_threads(), right(program.load_method("forward")))
"""


def test_some_of_the_threads_of_a_pool_are_never_used():
    """XNNPACK gives wrong numbers then, now and then. Fails where a pool's count is lowered to more than one
    (threads.cpp, change)."""
    command = [sys.executable, "-c", SOME, str(model_index.DIRECTORY.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE)
    assert done.stdout.splitlines() == ["refused 4 True"] * 3 + ["1 True", "4 True", "3 True"]


def test_it_begins_as_the_number_of_processors():
    script = "import et_cffi; print(et_cffi.num_threads())"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=HERE
    )
    assert 1 <= int(done.stdout) <= (os.cpu_count() or 1)


COUNTING = """
import sys
sys.path.insert(0, sys.argv[1])
import logging, threading, time, model_index, et_cffi
logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.ERROR)
et_cffi.Runtime.get().load_library(sys.argv[2])
program = et_cffi.Runtime.get().load_program(model_index.path("missing_operators"))
(case,) = model_index.cases("missing_operators", "forward")
et_cffi.set_num_threads(3)
method = program.load_method("forward")
"""


def counted(directory, script):
    """How many threads each operator of each run used; there are two operators in a run."""
    library = native_build.build("count_threads.cpp", directory, sys.executable, "-lexecutorch_threadpool")
    command = [sys.executable, "-c", COUNTING + script, str(model_index.DIRECTORY.parent), str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE)
    return [int(line.partition("threads=")[2]) for line in done.stdout.splitlines() if "threads=" in line]


def test_it_takes_effect_on_the_next_run(tmp_path):
    """On a method that was loaded before, seen by an operator that counts the threads of a parallel loop."""
    script = """
for count in (3, 1, 2, 3):
    et_cffi.set_num_threads(count)
    method.execute(case.inputs)
"""
    assert counted(tmp_path, script) == [3, 3, 1, 1, 2, 2, 3, 3]


def test_a_run_under_way_is_waited_for(tmp_path):
    """Each run takes some tenths of a second; the change that comes in the middle is for the next one."""
    script = """
ended = []
def work():
    method.execute(case.inputs)
    ended.append(time.monotonic())
thread = threading.Thread(target=work)
thread.start()
time.sleep(0.1)
assert not ended
et_cffi.set_num_threads(1)
changed = time.monotonic()
thread.join()
assert ended and changed >= ended[0] - 0.05, (changed, ended)
method.execute(case.inputs)
"""
    assert counted(tmp_path, script) == [3, 3, 1, 1]


def test_runs_that_never_pause_do_not_keep_a_change_waiting(tmp_path):
    """Two methods in turn, so that one of them is always running: new runs are held back for the change."""
    script = """
et_cffi.set_num_threads(2)
methods, stop = [method, program.load_method("forward")], threading.Event()
def work(index):
    time.sleep(0.15 * index)
    while not stop.is_set():
        methods[index].execute(case.inputs)
threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
timer = threading.Timer(5, stop.set)
for thread in [*threads, timer]: thread.start()
time.sleep(0.5)
begun = time.monotonic()
et_cffi.set_num_threads(1)
waited = time.monotonic() - begun
assert not stop.is_set(), waited
stop.set()
timer.cancel()
for thread in threads: thread.join()
"""
    assert set(counted(tmp_path, script)) >= {2}


@pytest.mark.parametrize("name", ["conv_xnnpack", "mlp_dynamic"])
def test_changing_it_while_methods_run(name):
    """The change waits for the runs under way, and the runs go on with right numbers."""
    case = model_index.cases(name, "forward")[0]
    et_cffi.set_num_threads(2)
    methods, wrong, runs, stop = [load(name) for _ in range(3)], [], [0, 0, 0], threading.Event()

    def work(index):
        while not stop.is_set():
            result = numpy.asarray(methods[index].execute(case.inputs)[0])
            runs[index] += 1
            if not numpy.allclose(result, case.outputs[0], case.rtol, case.atol):
                wrong.append(result)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    end, changes = time.monotonic() + 1.5, 0
    while time.monotonic() < end:
        et_cffi.set_num_threads(1 + changes % 2)
        changes += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong and min(runs) > 5 and changes > 20


def test_loading_and_changing_at_once():
    stop, failures = threading.Event(), []

    def work():
        while not stop.is_set():
            try:
                load("conv_xnnpack").close()
            except errors.ExecuTorchError as error:
                failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for count in range(60):
        et_cffi.set_num_threads(1 + count % 2)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
