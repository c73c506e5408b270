"""Reads a program's flatbuffer field by field, by nothing but the package flatbuffers and program.fbs.

It is there to be independent of the C++ accessors that et_cffi reads with.
"""

from __future__ import annotations

import struct

from flatbuffers import number_types as N
from flatbuffers.table import Table


class Node:
    """A table of the schema; fields are counted from 0 in program.fbs (a union takes two)."""

    def __init__(self, data, position):
        self._table = Table(data, position)

    def _at(self, field):
        return self._table.Offset(4 + 2 * field)

    def number(self, field, flags=N.Int32Flags):
        at = self._at(field)
        return self._table.Get(flags, at + self._table.Pos) if at else 0

    def child(self, field):
        at = self._at(field)
        return Node(self._table.Bytes, self._table.Indirect(at + self._table.Pos)) if at else None

    def union(self, field):
        at = self._at(field)
        if not at:
            return None
        where = Table(self._table.Bytes, 0)
        self._table.Union(where, at)
        return Node(where.Bytes, where.Pos)

    def text(self, field):
        at = self._at(field)
        return self._table.String(at + self._table.Pos).decode() if at else ""

    def length(self, field):
        at = self._at(field)
        return self._table.VectorLen(at) if at else 0

    def children(self, field):
        at = self._at(field)
        if not at:
            return []
        start = self._table.Vector(at)
        return [
            Node(self._table.Bytes, self._table.Indirect(start + 4 * i))
            for i in range(self._table.VectorLen(at))
        ]

    def numbers(self, field, flags):
        at = self._at(field)
        if not at:
            return []
        start = self._table.Vector(at)
        return [self._table.Get(flags, start + flags.bytewidth * i) for i in range(self._table.VectorLen(at))]


KERNEL_CALL, DELEGATE_CALL = 1, 2
TENSOR = 5


class Program:
    """What tests want to know of a .pte."""

    def __init__(self, data):
        self.data = bytearray(data)
        self.root = Node(self.data, struct.unpack_from("<I", data)[0])
        has_header = data[8:12] == b"eh00"
        self.segments_at = struct.unpack_from("<Q", data, 24)[0] if has_header else 0

    @property
    def version(self):
        return self.root.number(0, N.Uint32Flags)

    def plans(self):
        return {plan.text(0): plan for plan in self.root.children(1)}

    def segment(self, index):
        item = self.root.children(4)[index]
        return self.segments_at + item.number(0, N.Uint64Flags), item.number(1, N.Uint64Flags)

    def inlined_delegate(self, index):
        return bytes(self.root.children(3)[index].numbers(0, N.Uint8Flags))

    @staticmethod
    def calls(plan, kind):
        """The index of the operator or delegate that each instruction of a kind calls."""
        return [
            instruction.union(1).number(0)
            for chain in plan.children(5)
            for instruction in chain.children(2)
            if instruction.number(0, N.Uint8Flags) == kind
        ]

    @staticmethod
    def operators(plan):
        names = []
        for operator in plan.children(6):
            overload = operator.text(1)
            names.append(operator.text(0) + (f".{overload}" if overload else ""))
        return names

    @staticmethod
    def tensors(plan):
        return [value.union(1) for value in plan.children(2) if value.number(0, N.Uint8Flags) == TENSOR]
