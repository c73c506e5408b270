"""Finds every number and every offset in a program's flatbuffer, for a fuzzer to change.

The layout of each table is read from the header that flatc generated (csrc/schema/program_generated.h), so
it cannot drift from what the C++ code reads.
"""

from __future__ import annotations

import functools
import pathlib
import re
import struct
from typing import NamedTuple

_HEADER = pathlib.Path(__file__).resolve().parents[2] / "csrc/schema/program_generated.h"

# By the C++ type: struct's format character.
_SCALARS = {
    "bool": "B",
    "uint8_t": "B",
    "int8_t": "b",
    "uint16_t": "H",
    "int32_t": "i",
    "uint32_t": "I",
    "int64_t": "q",
    "uint64_t": "Q",
    "double": "d",
}


class Site(NamedTuple):
    """One number in the file.

    `kind` is "scalar", "length" (of a vector or string), "offset" (to a table, vector or string), "field"
    (a vtable's entry: where in the table a field is, 0 for absent) or "vtable" (where a table's vtable is).
    `path` names it, such as "Program.execution_plan[].values[].val(Tensor).sizes[]": the same for all items
    of a vector, so that a choice among paths does not prefer what there is most of.
    """

    kind: str
    offset: int
    format: str
    path: str
    type: str


@functools.lru_cache(maxsize=1)
def _schema() -> tuple[dict[str, list[tuple[int, str, str]]], dict[str, dict[int, str]]]:
    """Per table: (vtable slot, field, type) of each field; per union: the table of each type number."""
    tables: dict[str, list[tuple[int, str, str]]] = {}
    unions: dict[str, dict[int, str]] = {}
    text = _HEADER.read_text()
    for name, body in re.findall(r"enum class (\w+) : uint8_t \{(.*?)\};", text, re.S):
        unions[name] = {int(number): table for table, number in re.findall(r"(\w+) = (\d+)", body)}
    for name, body in re.findall(r"\nstruct (\w+) FLATBUFFERS_FINAL_CLASS .*?\{(.*?)\n\};", text, re.S):
        slots = {field: int(slot) for field, slot in re.findall(r"(VT_\w+) = (\d+)", body)}
        fields = tables[name] = []
        for pointed_at, field in re.findall(r"return GetPointer<const (.*?) ?\*>\((VT_\w+)\)", body):
            # flatbuffers has a String of its own, and the schema has a table of that name.
            kind = pointed_at.replace("::flatbuffers::String", "text")
            kind = kind.replace("::flatbuffers::", "").replace("executorch_flatbuffer::", "")
            fields.append((slots[field], field[3:].lower(), kind))
        for kind, field in re.findall(r"GetField<(\w+)>\((VT_\w+),", body):
            fields.append((slots[field], field[3:].lower(), kind))
        fields.sort()
    return tables, unions


class _Walker:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.tables, self.unions = _schema()
        self.sites: list[Site] = []
        self.targets: dict[str, list[int]] = {}

    def number(self, format: str, offset: int) -> int:
        return int(struct.unpack_from("<" + format, self.data, offset)[0])

    def add(self, kind: str, offset: int, format: str, path: str, type: str = "") -> None:
        self.sites.append(Site(kind, offset, format, path, type))

    def follow(self, offset: int, kind: str, path: str) -> None:
        """What an offset at `offset` leads to."""
        self.add("offset", offset, "I", path, kind)
        target = offset + self.number("I", offset)
        self.targets.setdefault(kind, []).append(target)
        vector = re.fullmatch(r"Vector<(?:Offset<(\w+)>|(\w+))>", kind)
        if kind == "text":
            self.add("length", target, "I", path)
        elif vector is None:
            self.table(target, kind, path)
        else:
            self.add("length", target, "I", path)
            for i in range(self.number("I", target)):
                if vector[1]:
                    self.follow(target + 4 + 4 * i, vector[1], path + "[]")
                else:
                    format = _SCALARS[vector[2]]
                    self.add("scalar", target + 4 + struct.calcsize(format) * i, format, path + "[]")

    def table(self, at: int, name: str, path: str) -> None:
        self.add("vtable", at, "i", path, "vtable")
        vtable = at - self.number("i", at)
        self.targets.setdefault("vtable", []).append(vtable)
        size = self.number("H", vtable)
        self.add("field", vtable, "H", path + ".vtable")
        self.add("field", vtable + 2, "H", path + ".size")
        union_type = 0
        for slot, field, kind in self.tables[name]:
            if slot + 2 > size:
                continue
            self.add("field", vtable + slot, "H", f"{path}.{field}?")
            place = self.number("H", vtable + slot)
            if not place:
                continue
            below = f"{path}.{field}"
            if kind == "void":
                union = "KernelTypes" if name == "EValue" else "InstructionArguments"
                kind = self.unions[union].get(union_type, "")
                if kind in self.tables:
                    self.follow(at + place, kind, f"{below}({kind})")
            elif kind in _SCALARS:
                self.add("scalar", at + place, _SCALARS[kind], below)
                if kind == "uint8_t":  # what says which type the union behind it is of
                    union_type = self.number("B", at + place)
            else:
                self.follow(at + place, kind, below)


def walk(data: bytes) -> tuple[list[Site], dict[str, list[int]]]:
    """Every site in a program's flatbuffer; and by type where tables, vectors, strings and vtables are."""
    walker = _Walker(data)
    walker.follow(0, "Program", "Program")
    return walker.sites, walker.targets
