"""ETDump: recording, writing, reading without torch or pandas."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import model_index
import native_build
import numpy
import pytest

from et_cffi import Runtime, errors, etdump

# Children start here and not in the source tree, whose et_cffi may be one that is not built.
HERE = Path(__file__).resolve().parent


def traced(name, debug_buffer_size=0):
    program = Runtime.get().load_program(
        model_index.path(name), enable_etdump=True, debug_buffer_size=debug_buffer_size
    )
    (case, *_) = model_index.cases(name, "forward")
    return program, program.load_method("forward"), case


def test_operators_have_names_and_times(tmp_path):
    program, method, case = traced("two_dynamic")
    method.execute(case.inputs)
    method.execute(case.inputs)
    program.write_etdump_result_to_file(tmp_path / "a.etdp")
    dump = etdump.read(tmp_path / "a.etdp")
    assert [run.name for run in dump.runs] == ["Default", "Execute", "Execute"]
    for run in dump.runs[1:]:
        names = [event.name for event in run.operators]
        assert names == ["_to_dim_order_copy.out", "mul.out", "_to_dim_order_copy.out", "add.out"]
        assert [event.instruction for event in run.operators] == [0, 1, 2, 3]
        assert all(0 <= event.nanoseconds < 10**9 for event in run.operators)
        (whole,) = [event for event in run.events if event.name == "Method::execute"]
        assert 0 < sum(event.nanoseconds for event in run.operators) <= whole.nanoseconds
        assert run.delegate_events == []


def test_delegate_events(tmp_path):
    program, method, case = traced("conv_xnnpack")
    method.execute(case.inputs)
    program.write_etdump_result_to_file(tmp_path / "a.etdp")
    run = etdump.read((tmp_path / "a.etdp").read_bytes()).runs[-1]
    assert [event.name for event in run.operators] == ["DELEGATE_CALL"]
    assert sum("Convolution" in event.name for event in run.delegate_events) == 2
    assert {event.instruction for event in run.delegate_events} == {0}
    assert all(event.delegate_id == event.name and event.nanoseconds >= 0 for event in run.delegate_events)


def test_results_of_instructions(tmp_path):
    program, method, case = traced("two_dynamic", 4096)
    method.execute(case.inputs)
    program.write_etdump_result_to_file(tmp_path / "a.etdp", tmp_path / "a.bin")
    buffer = (tmp_path / "a.bin").read_bytes()
    assert len(buffer) == 4096
    tensors = etdump.read(tmp_path / "a.etdp").runs[-1].debug_tensors
    (output,) = [tensor for tensor in tensors if tensor.is_output]
    assert numpy.array_equal(output.values(buffer), case.outputs[0])
    assert {tensor.instruction for tensor in tensors if not tensor.is_output} == {0, 1, 2, 3}
    with pytest.raises(errors.InvalidETDumpError, match="outside of the debug buffer of 3 bytes"):
        output.values(b"abc")


def test_writing_starts_afresh(tmp_path):
    program, method, case = traced("add", 4096)
    for count in (1, 2):
        for _ in range(count):
            method.execute(case.inputs)
        program.write_etdump_result_to_file(tmp_path / "a.etdp", tmp_path / "a.bin")
        runs = etdump.read(tmp_path / "a.etdp").runs
        assert sum(run.name == "Execute" for run in runs) == count
        values = runs[-1].debug_tensors[-1].values((tmp_path / "a.bin").read_bytes())
        assert numpy.array_equal(values, case.outputs[0])
    with pytest.raises(errors.MethodStateError, match="nothing was traced"):
        program.write_etdump_result_to_file(tmp_path / "a.etdp")


def test_a_debug_buffer_that_is_too_small(tmp_path):
    program, method, case = traced("add", 100)
    with pytest.raises(errors.AllocationError, match=r"100 bytes .* debug_buffer_size=208"):
        for _ in range(3):
            method.execute(case.inputs)
    program, method, case = traced("add", 208)
    result = method.execute(case.inputs)[0]
    assert numpy.array_equal(numpy.asarray(result), case.outputs[0])
    program.write_etdump_result_to_file(tmp_path / "a.etdp", tmp_path / "a.bin")


@pytest.mark.parametrize(
    "name", [n for n in model_index.names("runs") if "forward" in model_index.models()[n]["methods"]]
)
def test_every_model_can_be_traced(name, tmp_path):
    model = model_index.models()[name]
    program = Runtime.get().load_program(
        model_index.path(name),
        enable_etdump=True,
        debug_buffer_size=1 << 20,
        data_path=[model_index.DIRECTORY / file for file in model["data"]],
    )
    for method_name, described in model["methods"].items():
        method = program.load_method(method_name)
        if described["inputs"] == []:
            method.execute([])
    program.write_etdump_result_to_file(tmp_path / "a.etdp", tmp_path / "a.bin")
    assert etdump.read(tmp_path / "a.etdp").runs


def test_no_etdump_was_asked_for(tmp_path):
    program = Runtime.get().load_program(model_index.path("add"))
    with pytest.raises(errors.MethodStateError, match="enable_etdump=True"):
        program.write_etdump_result_to_file(tmp_path / "a.etdp")
    program, _, _ = traced("add")
    with pytest.raises(errors.ArgumentError, match="debug_buffer_size"):
        program.write_etdump_result_to_file(tmp_path / "a.etdp", tmp_path / "a.bin")
    with pytest.raises(ValueError, match="enable_etdump=True only"):
        Runtime.get().load_program(model_index.path("add"), debug_buffer_size=1)
    with pytest.raises(ValueError, match="0 or more"):
        Runtime.get().load_program(model_index.path("add"), enable_etdump=True, debug_buffer_size=-1)


def test_methods_of_one_program_on_many_threads(tmp_path):
    program, _, case = traced("add")
    methods = [program.load_method("forward") for _ in range(4)]

    def work(method):
        for _ in range(200):
            method.execute(case.inputs)

    threads = [threading.Thread(target=work, args=(method,)) for method in methods]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    program.write_etdump_result_to_file(tmp_path / "a.etdp")
    runs = etdump.read(tmp_path / "a.etdp").runs
    assert sum(run.name == "Execute" for run in runs) == 800
    assert all(
        [event.name for event in run.operators] == ["add.out"] for run in runs if run.name == "Execute"
    )


def test_a_second_method_waits(tmp_path):
    """Two runs of some tenths of a second each, on two threads: their events do not mix."""
    library = native_build.build("count_threads.cpp", tmp_path, sys.executable, "-lexecutorch_threadpool")
    script = """
import sys
sys.path.insert(0, sys.argv[1])
import threading, model_index, et_cffi
from et_cffi import etdump
et_cffi.Runtime.get().load_library(sys.argv[2])
program = et_cffi.Runtime.get().load_program(model_index.path("missing_operators"), enable_etdump=True)
(case,) = model_index.cases("missing_operators", "forward")
methods = [program.load_method("forward") for _ in range(2)]
threads = [threading.Thread(target=method.execute, args=(case.inputs,)) for method in methods]
for thread in threads: thread.start()
for thread in threads: thread.join()
program.write_etdump_result_to_file(sys.argv[3])
runs = [run for run in etdump.read(sys.argv[3]).runs if run.name == "Execute"]
assert [[event.instruction for event in run.operators] for run in runs] == [[0, 1], [0, 1]], runs
spans = sorted((min(e.start for e in run.events), max(e.end for e in run.events)) for run in runs)
assert spans[0][1] <= spans[1][0], spans
"""
    arguments = [model_index.DIRECTORY.parent, library, tmp_path / "a"]
    subprocess.run([sys.executable, "-c", script, *map(str, arguments)], check=True, cwd=HERE)


def test_what_is_no_etdump(tmp_path):
    program, method, case = traced("add")
    method.execute(case.inputs)
    program.write_etdump_result_to_file(tmp_path / "a.etdp")
    content = (tmp_path / "a.etdp").read_bytes()
    for bad, says in ((b"", "no ETDump"), (b"x" * 100, "no ETDump"), (content[:-8], "truncated")):
        with pytest.raises(errors.InvalidETDumpError, match=says):
            etdump.read(bad)
    with pytest.raises(TypeError):
        etdump.read(3)
    with pytest.raises(FileNotFoundError):
        etdump.read(tmp_path / "none")
    chance, refused = random.Random(1), 0
    for _ in range(2000):
        changed = bytearray(content)
        for _ in range(3):
            changed[chance.randrange(12, len(content))] = chance.randrange(256)
        try:
            etdump.read(changed)
        except errors.InvalidETDumpError:
            refused += 1
    assert refused


def test_without_flatbuffers():
    child = (
        "import sys; sys.modules['flatbuffers'] = None\n"
        "import et_cffi\n"
        "from et_cffi import bundled, etdump, portable_lib\n"
        "assert 'numpy' not in sys.modules\n"
        "for read in (etdump.read, bundled.load):\n"
        "    try: read(b'')\n"
        "    except ModuleNotFoundError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True, cwd=HERE)
    assert done.stdout.count("pip install et_cffi[devtools]") == 2
