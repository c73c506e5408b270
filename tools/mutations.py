"""Breaks one ownership rule at a time, and checks that a test notices.

    python tools/mutations.py                 # every rule; about five minutes on two cores
    python tools/mutations.py --only pin      # those whose test or file has "pin" in it
    python tools/mutations.py --torch         # those of torch tensors, with a Python that has torch

Each mutation takes out the line that a rule stands on, in a copy of the tree that is built once and then only
in part. Its test must pass before and fail after. The exit status is not 0 where a mutation survives, where
its text is not found exactly once, or where a test cannot be run at all.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

TREE = Path(__file__).resolve().parent.parent
LEFT_OUT = shutil.ignore_patterns(
    ".git", "__pycache__", ".*_cache", "build", "*.egg-info", "*.so", "lib", ".nox"
)
SECONDS = 120  # for one test; one that hangs has noticed


class Mutation(NamedTuple):
    file: str
    text: str
    replacement: str
    test: str


HELD = "test_inputs_held.py::"
RULE = "test_copy_or_point.py::"
ANSWERS = "test_backend_answers.py::"
MOVED = "test_memory_moved.py::"
REFUSED = "test_refusals_hold.py::"
RESULTS = "test_handed_over.py::"
THREADS = "test_one_thread_at_a_time.py::"
NESTED = "test_nested_use.py::"
GONE = "test_gone.py::"
BYTES = "test_program_bytes.py::"
FLAT = "test_memory_is_flat.py::"
TORCH = "test_storage_of_torch.py::"
OUT = "../test_out.py::"
REUSED = "../test_result_memory.py::"
POINTERS = "test_pointers.py::"

METHOD = "et_cffi/method.py"
BUFFER = "et_cffi/_buffer.py"

MUTATIONS = [
    # Inputs are held for exactly the window in which they may be read.
    Mutation(
        METHOD,
        "self._held, self._held_refused = pointed_at, []",
        "self._held, self._held_refused = [], []",
        HELD + "test_held_until_replaced[set_inputs-numpy]",
    ),
    Mutation(
        "csrc/cpython.c",
        "if (runner->inputs[i].pointed_at == 0) {",
        "if (true) {",
        HELD + "test_held_until_replaced[execute-numpy]",
    ),
    Mutation(
        "csrc/method.cpp",
        "value.pointed_at = pointed_at ? 1 : 0;",
        "value.pointed_at = 0;",
        HELD + "test_held_until_replaced[set_inputs-bytearray]",
    ),
    Mutation(
        METHOD,
        "            for held in self._held + self._held_refused:\n                held.release()\n"
        "            self._held, self._held_refused = [], []\n"
        "            # It keeps the method too, and what it gave last. Whoever still has it finds it held.\n"
        "            self._runner = self._quick = None\n",
        "",
        HELD + "test_held_until_closed[set_inputs-numpy]",
    ),
    Mutation(
        METHOD,
        "        if held is not None:\n            held.release()\n    return []",
        "        pass\n    return [held for held in described if held is not None]",
        HELD + "test_a_planned_input_is_not_held[numpy-set_inputs]",
    ),
    Mutation(
        METHOD,
        "if value.pointed_at:",
        "if True:",
        HELD + "test_a_copied_input_is_not_held[misaligned-set_inputs]",
    ),
    Mutation(
        "csrc/input.cpp",
        "if (slot.info.is_memory_planned != 0 || memory.data == nullptr ||",
        "if (memory.data == nullptr ||",
        HELD + "test_a_planned_input_is_not_held[numpy-execute]",
    ),
    # Copied or pointed at, by the one rule.
    Mutation(
        "csrc/input.cpp",
        "(memory.flags & ETCFFI_PINNED) == 0 || !slot.unknown_backend.empty()",
        "!slot.unknown_backend.empty()",
        RULE + "test_copied[cdata_to_be_copied]",
    ),
    Mutation(
        "csrc/input.cpp",
        "if (address % static_cast<uintptr_t>(dtype_of(memory.scalar_type).itemsize) != 0) {",
        "if (false) {",
        RULE + "test_copied[misaligned]",
    ),
    Mutation(
        BUFFER,
        "read_only=view.readonly,",
        "read_only=False,",
        RULE + "test_read_only_memory_is_unchanged_after_a_method_that_writes_its_input[0-False]",
    ),
    Mutation(
        BUFFER,
        "pinned=can_be_located",
        "pinned=False",
        RULE + "test_pointed_at[numpy]",
    ),
    Mutation(
        "et_cffi/_dlpack.py",
        "read_only=versioned and bool(managed.flags & lib.ETCFFI_DLPACK_READ_ONLY),",
        "read_only=False,",
        RULE + "test_read_only_memory_is_unchanged_after_a_method_that_writes_its_input[2-False]",
    ),
    Mutation(
        "et_cffi/cdata.py",
        "self._owner = (cdata, owner)",
        "self._owner = (cdata, None)",
        HELD + "test_held_until_replaced[set_inputs-cdata_with_an_owner]",
    ),
    Mutation(
        "et_cffi/cdata.py",
        "self._owner = (cdata, owner)",
        "self._owner = (None, owner)",
        HELD + "test_held_until_replaced[set_inputs-cdata]",
    ),
    Mutation(
        "et_cffi/cdata.py",
        "pinned=source._pinned",
        "pinned=True",
        RULE + "test_copied[cdata_to_be_copied]",
    ),
    Mutation(
        "et_cffi/cdata.py",
        "pinned=source._pinned",
        "pinned=False",
        RULE + "test_pointed_at[cdata]",
    ),
    Mutation("et_cffi/tensor_buffer.py", "pinned=True", "pinned=False", RULE + "test_pointed_at[result]"),
    Mutation(
        "csrc/cpython.c",
        "memory->flags = view->readonly ? ETCFFI_READ_ONLY : ETCFFI_PINNED;",
        "memory->flags = ETCFFI_PINNED;",
        RULE + "test_read_only_memory_is_unchanged_after_a_method_that_writes_its_input[0-True]",
    ),
    Mutation(
        "csrc/method.cpp",
        "inputs_[i].copied = values[i].tag == ETCFFI_Tag_Tensor && is_lent(values[i].memory);",
        "inputs_[i].copied = false;",
        RULE + "test_a_lent_result_is_copied_before_it_is_overwritten",
    ),
    # What a backend has answered.
    Mutation(
        "csrc/input.cpp",
        "(memory.flags & ETCFFI_PINNED) == 0 || !slot.unknown_backend.empty()",
        "(memory.flags & ETCFFI_PINNED) == 0",
        ANSWERS + "test_inputs_of_a_backend_that_has_not_answered_are_copied",
    ),
    Mutation(
        "csrc/schema.cpp",
        'return operators->Get(index)->name()->str().rfind("executorch_prim::", 0) == 0;',
        "return false;",
        ANSWERS + "test_inputs_of_a_backend_that_has_not_answered_are_copied",
    ),
    Mutation("csrc/input.cpp", "readable - nbytes >= slot.needs_padding &&", "", ANSWERS + "test_padding"),
    Mutation("csrc/block.h", "kRoom = 64;", "kRoom = 0;", ANSWERS + "test_padding"),
    Mutation("csrc/input.cpp", " && address % slot.needs_alignment == 0;", ";", ANSWERS + "test_alignment"),
    Mutation(
        "csrc/input.cpp",
        "needs_by_backend()[backend] = {padding, alignment};",
        "",
        ANSWERS + "test_an_answer_is_taken_by_methods_loaded_afterwards",
    ),
    Mutation(
        "csrc/input.cpp",
        '{{"XnnpackBackend", {16, 1}}}',
        '{{"XnnpackBackend", {0, 1}}}',
        ANSWERS + "test_xnnpack_reads_no_further_than_it_said[xnnpack_halves_unplanned-unary]",
    ),
    # The pin is verified.
    Mutation(
        METHOD,
        "moved = _have_moved(self._held)",
        "moved = False",
        MOVED + "test_an_array_that_was_resized[1048576-in_two_steps]",
    ),
    Mutation(
        METHOD,
        "moved = _have_moved(self._held)",
        "moved = run and _have_moved(self._held)",
        MOVED
        + "test_an_output_in_the_memory_of_an_input_that_was_resized[identity_only_unplanned-in_two_steps]",
    ),
    Mutation(
        METHOD,
        "if len(described) > 1 and _have_moved(described):",
        "if False:",
        MOVED
        + "test_an_array_that_was_resized_while_the_next_input_was_described[add_unplanned-in_two_steps]",
    ),
    Mutation(
        BUFFER,
        "places = [(_address(view), view.nbytes)]",
        "places = [(_address(view), 0)]",
        MOVED + "test_an_array_that_was_resized[2-in_two_steps]",
    ),
    Mutation(
        BUFFER,
        "    lender = _lender_of(exporter)\n",
        "    lender = None\n",
        MOVED + "test_an_array_that_was_resized_under_a_view[slice-1048576-in_two_steps]",
    ),
    Mutation(
        "csrc/cpython.c",
        "  Place own = {now.buf, now.len};\n",
        "  Place own = {now.buf, pin->view.len};\n",
        MOVED + "test_an_array_that_was_resized[2-in_one_step]",
    ),
    Mutation(
        "csrc/cpython.c",
        "owner.address != pin->owner.address || owner.length != pin->owner.length",
        "false",
        MOVED + "test_an_array_that_was_resized_under_a_view[slice-1048576-in_one_step]",
    ),
    # Setting inputs is not all or nothing.
    Mutation(
        "csrc/cpython.c",
        "added = PyList_Append(runner->refused, PyList_GetItem(pins, i)) == 0;",
        "",
        REFUSED + "test_both_sets_are_kept_after_a_refusal_half_way[numpy-execute]",
    ),
    Mutation(
        "csrc/cpython.c",
        "    drop_refused(runner);\n",
        "",
        REFUSED + "test_retrying_adds_up_to_nothing[execute]",
    ),
    Mutation(
        "csrc/cpython.c",
        "    refuse(runner); /* any call",
        "    /* any call",
        REFUSED
        + "test_nothing_runs_and_nothing_is_read_after_any_refusal"
        + "[add-an exception of the caller's-execute]",
    ),
    Mutation(
        METHOD,
        "            self._held_refused += pointed_at\n",
        "",
        REFUSED + "test_both_sets_are_kept_after_a_refusal_half_way[numpy-set_inputs]",
    ),
    Mutation(
        METHOD,
        "            self._held_refused += pointed_at\n",
        "            self._held_refused += pointed_at\n            self._held = []\n",
        REFUSED + "test_the_set_before_a_refused_one_is_kept[numpy-set_inputs]",
    ),
    Mutation(
        METHOD,
        "status != lib.ETCFFI_Busy and ",
        "",
        REFUSED + "test_inputs_that_a_busy_method_did_not_take[set_inputs]",
    ),
    Mutation(
        METHOD,
        "refused, self._held_refused = self._held_refused, []",
        "refused: list[Held] = []",
        REFUSED + "test_retrying_adds_up_to_nothing[set_inputs]",
    ),
    Mutation(
        METHOD,
        "            lib.etcffi_method_refuse_inputs(handle)\n            self._results = {}\n",
        "            self._results = {}\n",
        REFUSED
        + "test_nothing_runs_and_nothing_is_read_after_any_refusal"
        + "[add-an exception of the caller's-set_inputs]",
    ),
    Mutation(
        "csrc/method.cpp",
        "  require_usable();\n  refuse_inputs();\n",
        "  require_usable();\n",
        REFUSED + "test_nothing_runs_and_nothing_is_read_after_any_refusal[add-dtype-execute]",
    ),
    Mutation(
        "csrc/method.cpp",
        "state_ = Inputs::kSpent;",
        "",
        REFUSED + "test_a_set_that_spends_its_planned_memory_is_whole_once[set_inputs]",
    ),
    Mutation(
        METHOD,
        "replaced = self._held + self._held_refused\n"
        "            self._held, self._held_refused = pointed_at, []",
        "replaced = self._held\n            self._held = pointed_at",
        REFUSED + "test_what_an_inner_refusal_left_is_dropped_by_the_outer_set",
    ),
    # Results.
    Mutation(
        "csrc/method.cpp",
        "if (block && !block->shared() && block->nbytes() >= size) {",
        "if (block && block->nbytes() >= size) {",
        RESULTS + "test_a_result_is_unchanged_after_a_later_call[not cloned]",
    ),
    Mutation(
        "csrc/method.cpp",
        "  if (!clone) {\n",
        "  if (true) {\n",
        RESULTS + "test_a_planned_result_is_unchanged_if_it_is_cloned",
    ),
    Mutation(
        "csrc/method.cpp",
        "  if (!clone) {\n",
        "  if (false) {\n",
        RESULTS + "test_a_planned_result_is_lent_if_it_is_not_cloned",
    ),
    Mutation(
        "csrc/method.cpp",
        "if (owner.fresh && memory.data == owner.fresh->data()) {",
        "if (false) {",
        RESULTS + "test_an_output_without_planned_memory_is_never_copied[cloned]",
    ),
    Mutation(
        "csrc/method.cpp",
        "if (input.isTensor() && input.toTensor().unsafeGetTensorImpl() == impl) {",
        "if (false) {",
        RESULTS + "test_an_output_that_is_an_input[identity_first_unplanned-cloned]",
    ),
    Mutation(
        METHOD,
        "        results[clone] = converted\n",
        "",
        RESULTS + "test_read_twice_in_one_execution_they_are_the_same_objects[add-two steps-cloned]",
    ),
    Mutation(
        "csrc/cpython.c",
        "  leave(runner, results == NULL ? Py_None : results, clone != 0);\n",
        "  leave(runner, Py_None, clone != 0);\n",
        RESULTS + "test_read_twice_in_one_execution_they_are_the_same_objects[add-one step-cloned]",
    ),
    Mutation(
        "csrc/method.cpp",
        "return Ref<etcffi_tensor>::adopt(new etcffi_tensor(memory, block));",
        "return Ref<etcffi_tensor>::adopt(new etcffi_tensor(memory, Ref<etcffi_block>::adopt(block.get())));",
        RESULTS + "test_a_lent_result_is_valid_memory_after_its_method_is_gone",
    ),
    Mutation(
        "csrc/tensor.cpp",
        "made->tensor = Ref<etcffi_tensor>(tensor);",
        "made->tensor = Ref<etcffi_tensor>::adopt(tensor);",
        RESULTS + "test_what_was_made_of_a_result_outlives_it[2-cloned]",
    ),
    Mutation(
        "csrc/method.h",
        ": program_(program), data_",
        ": program_(etcffi::Ref<etcffi_program>::adopt(program)), data_",
        BYTES + "test_a_method_outlives_a_program_that_was_mapped[constant_output]",
    ),
    Mutation(
        "et_cffi/cdata.py",
        "lambda _pointer, _owner=owner: None",
        "lambda _pointer: None",
        POINTERS + "test_a_pointer_outlives_the_result_and_its_method[add-lent]",
    ),
    # One thread at a time.
    Mutation(
        METHOD,
        "self._claim.acquire(blocking=False)",
        "self._claim.acquire(timeout=10)",
        THREADS + "test_a_second_thread_is_refused_at_once[execute-two steps]",
    ),
    Mutation(
        METHOD,
        "self._claim = threading.RLock()",
        "self._claim = threading.Semaphore(1000)",
        THREADS + "test_a_second_thread_is_refused_at_once[get_outputs-two steps]",
    ),
    Mutation(
        "csrc/method.h",
        "if (in_use_.exchange(true, std::memory_order_acquire)) {",
        "if (in_use_.exchange(true, std::memory_order_acquire) && broken_) {",
        THREADS + "test_a_second_thread_is_refused_by_the_c_api_too[get_outputs]",
    ),
    Mutation(
        METHOD,
        "        self._running = True\n        # An output may",
        "        # An output may",
        THREADS + "test_a_use_in_the_middle_of_a_run_is_refused[set_inputs]",
    ),
    Mutation(
        "csrc/cpython.c",
        "if (use < 0 || runner->running) {",
        "if (false) {",
        THREADS + "test_a_second_thread_is_refused_at_once[close-one step]",
    ),
    Mutation(
        "csrc/cpython.c",
        "(status != ETCFFI_Busy && etcffi_method_has_inputs(runner->method) != 0)",
        "etcffi_method_has_inputs(runner->method) != 0",
        THREADS + "test_a_run_that_finds_the_method_busy",
    ),
    # Used in the middle of its own use.
    Mutation(
        "et_cffi/_inputs.py",
        "return self._spare.pop() if self._spare else InputValues(len(self._infos))",
        "return self._spare[-1] if self._spare else InputValues(len(self._infos))",
        NESTED + "test_a_producer_that_runs_the_method[in_two_steps-add]",
    ),
    Mutation(
        METHOD,
        "            results: Results = {}\n            self._results = results\n            # Describing",
        "            results: Results = {}\n            # Describing",
        NESTED + "test_results_of_an_inner_run_are_not_given_for_the_outer_inputs[add_unplanned]",
    ),
    Mutation(
        METHOD,
        "            lib.etcffi_method_refuse_inputs(handle)\n            self._results = {}\n",
        "            lib.etcffi_method_refuse_inputs(handle)\n",
        NESTED + "test_results_of_an_inner_run_are_not_given_after_the_outer_inputs_were_refused[add]",
    ),
    Mutation(
        METHOD,
        "            lib.etcffi_method_refuse_inputs(self._handle)\n            self._results = {}\n",
        "            self._results = {}\n",
        NESTED + "test_ctrl_c_before_it_is_settled_what_to_hold[only_set]",
    ),
    Mutation(
        METHOD,
        "if self._calls or self._running:",
        "if self._running:",
        NESTED + "test_a_producer_that_closes_the_method[in_two_steps-add]",
    ),
    # Closed, dropped, broken off.
    Mutation(
        METHOD,
        "            if self._destructor.done:\n",
        "            if self._handle is None:\n",
        GONE + "test_a_finaliser_in_a_cycle_that_uses_the_method[no runner-False-False]",
    ),
    Mutation(
        "et_cffi/program.py",
        "if self._destructor.done:",
        "if False:",
        GONE + "test_a_finaliser_in_a_cycle_that_uses_the_program",
    ),
    Mutation(
        "et_cffi/_dlpack.py",
        "locate=lambda: (destructor.done, anchor and anchor.locate()),",
        "locate=None,",
        GONE + "test_a_claim_that_was_finalised_before_the_method",
    ),
    Mutation(
        "et_cffi/_dlpack.py",
        "    except BaseException:\n        ffi.release(managed)\n        raise\n",
        "    except BaseException:\n        raise\n",
        GONE + "test_an_exception_between_claim_and_use[True-dtype without a name]",
    ),
    Mutation(
        "csrc/cpython.c",
        "    Py_VISIT(pin->view.obj);\n",
        "",
        GONE + "test_a_cycle_through_a_held_input_is_collected[True-knot]",
    ),
    Mutation(
        "csrc/cpython.c",
        "  Py_VISIT(((Runner *)self)->held);\n",
        "",
        GONE + "test_a_cycle_through_a_held_input_is_collected[True-knot]",
    ),
    Mutation(
        METHOD,
        "                    source.release()\n",
        "                    pass\n",
        GONE + "test_an_exception_between_claim_and_use_in_one_step",
    ),
    Mutation(
        METHOD,
        "        owned = [adopt(value.tensor) if value.tag == _TENSOR else value for value in values]\n"
        "        return [self._result(item) if type(item) is TensorBuffer else self._value(item) for item in"
        " owned]",
        "        return [\n            self._result(adopt(value.tensor))\n"
        "            if value.tag == _TENSOR\n            else self._value(value)\n"
        "            for value in values\n        ]",
        FLAT + "test_a_failed_conversion_of_an_output",
    ),
    Mutation(
        "csrc/cpython.c",
        "  etcffi_tensor_release(((Lender *)self)->tensor);\n",
        "",
        FLAT + "test_runs[add-True-True]",
    ),
    Mutation(
        "csrc/capsule.c",
        "    DLManagedTensorVersioned *managed = PyCapsule_GetPointer(capsule, versioned);\n"
        "    if (managed->deleter != NULL) {",
        "    DLManagedTensorVersioned *managed = PyCapsule_GetPointer(capsule, versioned);\n"
        "    if (managed->deleter == NULL) {",
        FLAT + "test_dlpack_out",
    ),
    # The bytes of a program.
    Mutation(
        "et_cffi/program.py",
        "Destructor(lib.etcffi_method_release, sources)",
        "Destructor(lib.etcffi_method_release)",
        BYTES + "test_one_reference_while_anything_is_loaded_and_none_after[add_unplanned]",
    ),
    Mutation(
        BUFFER,
        "return memoryview(bytes(view)) if may_change(view) else view",
        "return view",
        BYTES + "test_copied_bytes_are_not_held",
    ),
    Mutation(
        BUFFER,
        "    if not view.readonly:\n        return True\n",
        "    return not view.readonly\n",
        BYTES + "test_bytes_that_somebody_may_write_are_copied[2]",
    ),
    Mutation(
        "csrc/program.cpp",
        "if (!copy && reinterpret_cast<uintptr_t>(data) % kProgramAlignment == 0) {",
        "if (!copy) {",
        BYTES + "test_bytes_at_any_address[1]",
    ),
    # Memory given for outputs is written inside the one call, where it is large enough and nothing else.
    Mutation(
        "csrc/method.cpp",
        "if (is_placed(into, i) && may_write_to(slot, into[i].memory)) {",
        "if (is_placed(into, i)) {",
        OUT + "test_a_dynamic_output",
    ),
    Mutation(
        "csrc/method.cpp",
        "    return input.reads != nullptr && overlap(memory.data, nbytes, input.reads, input.reads_nbytes);",
        "    return false;",
        OUT + "test_memory_that_overlaps_an_inputs[large_unplanned]",
    ),
    Mutation(
        "csrc/method.cpp",
        "        saved[i] = etcffi::copy_of(results[i], from_c(results[i].device));\n"
        "        results[i].data = saved[i]->memory.data;\n",
        "",
        OUT + "test_an_output_that_is_an_input",
    ),
    Mutation(
        "csrc/method.cpp",
        "          overlap(memory.data, element_bytes(memory), block->data(), block->nbytes())) {",
        "          block->contains(memory.data, 0) && false) {",
        OUT + "test_memory_that_the_method_uses_itself",
    ),
    Mutation(
        "csrc/method.cpp",
        "overlap(memory.data, element_bytes(memory), into[j].memory.data,",
        "false && overlap(memory.data, element_bytes(memory), into[j].memory.data,",
        OUT + "test_two_that_overlap",
    ),
    Mutation(
        "csrc/input.cpp",
        "if ((value.memory.flags & ETCFFI_READ_ONLY) != 0) {",
        "if (false) {",
        OUT + "test_refused",
    ),
    Mutation(
        METHOD,
        "            results[False] = converted\n",
        "",
        OUT + "test_some_of_them",
    ),
    Mutation(
        METHOD,
        "            if run is not None:\n                _require_unmoved(run.placement)\n",
        "",
        OUT + "test_memory_that_moves_while_an_input_is_described",
    ),
    Mutation(
        "csrc/method.cpp",
        "  write_values(clone, into, values);\n  try {\n    place(into);\n",
        "  try {\n    place(into);\n    write_values(clone, into, values);\n",
        OUT + "test_an_output_that_is_an_input_whose_memory_another_is_written_to",
    ),
    Mutation(
        METHOD,
        "        results = self._as_torch(ran)\n",
        "        results = self._as_torch(ran)\n        self._take_left()\n"
        "        results = self._results.get(clone, results)\n",
        NESTED + "test_results_are_those_of_the_run_that_gave_them[add]",
    ),
    # The memory of results is used again once nobody else has it.
    Mutation(
        "csrc/method.cpp",
        "if (block && !block->shared() && block->nbytes() >= size) {",
        "if (block && block->nbytes() >= size) {",
        REUSED + "test_what_somebody_holds_is_never_written_through",
    ),
]

TORCH_MUTATIONS = [
    Mutation(
        "et_cffi/_torch.py",
        "pinned=storage.resizable(),",
        "pinned=True,",
        TORCH + "test_a_storage_that_somebody_else_owns_is_copied[0]",
    ),
    Mutation(
        "csrc/cpython.c",
        "given->resizable ? ETCFFI_PINNED : 0",
        "ETCFFI_PINNED",
        TORCH + "test_a_storage_that_somebody_else_owns_is_copied_in_one_step[0]",
    ),
    Mutation(
        "csrc/cpython.c",
        "place.address != pin->owner.address || place.length != pin->owner.length",
        "false",
        TORCH + "test_a_storage_that_was_changed[set_-True]",
    ),
    Mutation(
        "csrc/cpython.c",
        "claims && !is_a_tensor(source) && PyObject",
        "claims && PyObject",
        "../test_torch.py::test_tensors_without_plain_memory",
    ),
    Mutation(
        "et_cffi/_torch.py",
        "locate=lambda: _place(torch, source),",
        "locate=None,",
        TORCH + "test_a_storage_that_was_changed[no storage-False]",
    ),
    Mutation(
        "et_cffi/_torch.py",
        "torch.Tensor.data_ptr(source), ",
        "0, ",
        TORCH + "test_a_storage_that_was_changed[set_-False]",
    ),
]


class Copy:
    """A copy of the tree, built in place."""

    def __init__(self, directory: Path, torch: bool) -> None:
        self.tree = directory / "tree"
        shutil.copytree(TREE, self.tree, ignore=LEFT_OUT, symlinks=True)
        self.python = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--no-header",
            "--tb=line",
        ]
        self.python += ["-m", "torch" if torch else "not torch"]
        # Whatever the build needs of the SDK is found as the tree itself finds it; the copy has no cache.
        sdk = subprocess.run([sys.executable, "sdk.py"], cwd=TREE, check=True, capture_output=True, text=True)
        self.environment = {
            **os.environ,
            "ET_CFFI_SDK": sdk.stdout.strip().splitlines()[-1],
            "CXXFLAGS": "-O0",  # the compiler's time is most of what is spent here
            # Freed memory is overwritten, so that reading it is no matter of luck.
            "GLIBC_TUNABLES": "glibc.malloc.perturb=165:glibc.malloc.tcache_count=0",
            "PYTHONPATH": str(self.tree),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def build(self) -> str:
        """Empty, or the end of what the compiler said."""
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        done = subprocess.run(command, cwd=self.tree, env=self.environment, capture_output=True, text=True)
        return (done.stdout + done.stderr)[-3000:] if done.returncode else ""

    def test(self, *tests: str) -> tuple[int, str]:
        """pytest's exit status, or minus the signal that ended it; and the end of what it said."""
        names = [f"tests/ownership/{test}" for test in tests]
        try:
            done = subprocess.run(
                [*self.python, *names],
                cwd=self.tree,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=SECONDS * len(names),
            )
        except subprocess.TimeoutExpired:
            return -14, "it hangs"
        return done.returncode, (done.stdout + done.stderr)[-3000:]


def noticed(copy: Copy, mutation: Mutation) -> str:
    """Empty where the test fails with the mutation; else what went wrong."""
    path = copy.tree / mutation.file
    original = path.read_text()
    path.write_text(original.replace(mutation.text, mutation.replacement))
    try:
        if mutation.file.startswith("csrc/"):
            said = copy.build()
            if said:
                return "it does not compile:\n" + said
        status, said = copy.test(mutation.test)
    finally:
        path.write_text(original)
    # pytest answers 1 where tests failed, and 2 and more where there were none to run.
    if status == 0:
        return "IT SURVIVES"
    return "" if status == 1 or status < 0 or status > 128 else f"the test did not run:\n{said}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="a regular expression, of the file or the test")
    parser.add_argument("--torch", action="store_true", help="the mutations of torch tensors")
    options = parser.parse_args()
    table = TORCH_MUTATIONS if options.torch else MUTATIONS
    chosen = [one for one in table if re.search(options.only, f"{one.file} {one.test}")]
    if not chosen:
        parser.error("nothing to do")
    # Sorted, so that a file that is compiled is compiled once between two of its mutations.
    chosen.sort(key=lambda one: (one.file.startswith("csrc/"), one.file))
    failures = 0
    for one in chosen:
        count = (TREE / one.file).read_text().count(one.text)
        if count != 1:
            failures += 1
            print(f"FAIL  {one.file}: its text is there {count} times, and not once:\n{one.text}", flush=True)
    if failures:
        raise SystemExit(f"{failures} of the rules are no longer where they were")
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutations-") as directory:
        copy = Copy(Path(directory), options.torch)
        said = copy.build()
        if said:
            raise SystemExit(f"the tree does not build:\n{said}")
        status, said = copy.test(*dict.fromkeys(one.test for one in chosen))
        if status:
            raise SystemExit(f"the tests do not pass as it is:\n{said}")
        print(f"{len(chosen)} mutations; their tests pass without them", flush=True)
        for one in chosen:
            began = time.monotonic()
            fault = noticed(copy, one)
            failures += bool(fault)
            line = one.text.strip().splitlines()[0]
            seconds = f"{time.monotonic() - began:5.1f} s"
            print(
                f"{'FAIL' if fault else 'ok  '} {seconds}  {one.file}: {line}\n{'':14}{one.test}", flush=True
            )
            if fault:
                print(f"{'':14}{fault}", flush=True)
    print(f"{len(chosen) - failures} of {len(chosen)} noticed, in {time.monotonic() - start:.0f} s")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
