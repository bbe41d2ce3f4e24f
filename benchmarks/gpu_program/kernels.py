"""The kernels of a program that XLA has compiled for a GPU, read from the compiler's own text.

Every instruction of the entry and of its loops that computes something is one launch. A fusion's traffic is what it
reads from and writes to the device's memory: an operand of which it takes slices counts as those slices, one that it
updates in place as the update. Its arithmetic is that of one element times the number of elements (XLA computes
everything inside a fusion again for each element, except for what is the same for all).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

_BYTES = {"pred": 1, "bf16": 2, "token": 0, "opaque": 0}
_SHAPE = re.compile(r"\b(pred|bf16|token|opaque|[fsu]\d+)\[([\d,]*)\]")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$|^(ENTRY )?%?([\w.\-]+) \{$")
_BODY = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all opt-barrier partition-id replica-id".split()
)
# Operations per element; those that are not named take one. The special functions run at a quarter of the rate and
# have some arithmetic around them.
_SPECIAL = frozenset("exponential tanh log log-plus-one exponential-minus-one rsqrt sqrt divide power erf".split())
_NO_ARITHMETIC = _FREE | frozenset("broadcast reshape transpose slice concatenate pad copy iota convert".split())
_SLICES = frozenset("slice dynamic-slice gather".split())
_SPECIAL_OPERATIONS = 8
# The 64-bit product of two 32-bit numbers is one instruction at half the rate. Generators of random bits do no other
# 64-bit multiplication per element.
_WIDE_PRODUCT_OPERATIONS = 2
_WIDE = ("u64", "s64")


class Instruction(NamedTuple):
    name: str
    opcode: str
    shapes: tuple[tuple[str, int], ...]  # of the result: type and elements of each part
    dimensions: tuple[int, ...]  # of its first part
    operands: tuple[str, ...]
    rest: str  # attributes
    is_root: bool

    @property
    def bytes(self) -> int:
        return sum(size_of(kind) * elements for kind, elements in self.shapes)

    @property
    def elements(self) -> int:
        return max(elements for _, elements in self.shapes)


Computation = dict[str, Instruction]


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A launch, or several identical ones in a loop."""

    kind: str  # "matmul", "fusion", or XLA's name of anything else, such as "copy"
    times: int
    bytes: float
    flops: float
    dtype: str  # of a matmul's operands; else of the result
    shape: tuple[int, ...]  # of a matmul: batch, m, n, k; else the elements of the largest array


def size_of(kind: str) -> float:
    return _BYTES[kind] if kind in _BYTES else int(re.sub(r"\D", "", kind)) / 8


def _closing(text: str) -> int:
    """The position of the bracket that closes the one at the start."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return place
    raise ValueError(f"no closing bracket: {text[:80]}")


def _read_instruction(line: str) -> Instruction | None:
    found = _BODY.match(re.sub(r"/\*.*?\*/", "", line))
    if not found:
        return None
    is_root, name, text = bool(found[1]), found[2], found[3]
    end = _closing(text) + 1 if text.startswith("(") else text.index(" ")
    shapes, call = _SHAPE.findall(text[:end]), text[end:].lstrip()
    opcode, _, inside = call.partition("(")
    close = _closing("(" + inside)
    arguments = tuple(part.split("%")[-1].split(" ")[-1] for part in inside[: close - 1].split(", ") if part)
    sizes = [tuple(int(size) for size in dimensions.split(",") if size) for _, dimensions in shapes]
    parts = tuple((kind, math.prod(size)) for (kind, _), size in zip(shapes, sizes))
    return Instruction(
        name, opcode, parts or (("token", 0),), sizes[0] if sizes else (), arguments, inside[close:], is_root
    )


def read_program(text: str) -> tuple[str, dict[str, Computation]]:
    """The entry's name, and all computations."""
    entry, current = "", {}
    found: dict[str, Computation] = {}
    for line in text.splitlines():
        head = None if line.startswith(" ") else _HEAD.match(line)
        if head:
            name = head[2] or head[4]
            current = found.setdefault(name, {})
            entry = name if line.startswith("ENTRY") else entry
        elif (instruction := _read_instruction(line)) is not None:
            current[instruction.name] = instruction
    return entry, found


def _called(instruction: Instruction, what: str) -> str:
    return re.search(rf"{what}=%?([\w.\-]+)", instruction.rest)[1]


def kernels(text: str, num_turns: int) -> Iterator[Kernel]:
    """All launches of the program. `num_turns`: the iterations of loops whose number the compiler does not know."""
    entry, computations = read_program(text)
    yield from _kernels(entry, computations, 1, num_turns)


def _kernels(name: str, computations: dict[str, Computation], times: int, num_turns: int) -> Iterator[Kernel]:
    computation = computations[name]
    for each in computation.values():
        if each.opcode == "while":
            trips = re.search(r'known_trip_count\\?":\{\\?"n\\?":\\?"(\d+)', each.rest)
            turns = times * (int(trips[1]) if trips else num_turns)
            if not trips:  # before each iteration the host reads whether there is another one
                yield Kernel("copy to the host", turns, 1.0, 0.0, "pred", (1,))
            yield from _kernels(_called(each, "body"), computations, turns, num_turns)
        elif each.opcode == "call":
            yield from _kernels(_called(each, "to_apply"), computations, times, num_turns)
        elif each.opcode not in _FREE:
            yield _kernel(each, computation, computations, times)


def _kernel(each: Instruction, computation: Computation, computations: dict[str, Computation], times: int) -> Kernel:
    inputs = [computation[operand] for operand in each.operands if operand in computation]
    if each.opcode == "custom-call" and ("gemm" in each.rest or "matmul" in each.rest):
        shape, kind = _matmul(each, inputs), inputs[0].shapes[0][0]
        moved = sum(operand.bytes for operand in inputs) + each.shapes[0][1] * size_of(each.shapes[0][0])
        return Kernel("matmul", times, moved, 2.0 * math.prod(shape), kind, shape)
    if each.opcode == "fusion":
        inside = computations[_called(each, "calls")]
        moved, operations = _traffic(inside), _arithmetic(inside)
    else:
        moved, operations = each.bytes + sum(operand.bytes for operand in inputs), float(each.elements)
    largest = max(part.elements for part in (each, *inputs))
    kind = each.opcode
    if kind == "custom-call":
        kind = re.search(r'custom_call_target="([^"]*)"', each.rest)[1]
    return Kernel(kind, times, moved, operations, each.shapes[0][0], (largest,))


def _matmul(each: Instruction, inputs: list[Instruction]) -> tuple[int, int, int, int]:
    def places(name: str) -> list[int]:
        return [int(place) for place in re.findall(r"\d+", re.search(rf'"{name}":\[([^\]]*)\]', each.rest)[1])]

    left, right = inputs[0].dimensions, inputs[1].dimensions
    inner = math.prod(left[place] for place in places("lhs_contracting_dimensions"))
    batch = math.prod(left[place] for place in places("lhs_batch_dimensions"))
    return batch, math.prod(left) // inner // batch, math.prod(right) // inner // batch, inner


def _traffic(inside: Computation) -> float:
    """Bytes that a fusion reads and writes."""
    users: dict[str, list[Instruction]] = {name: [] for name in inside}
    for each in inside.values():
        for operand in each.operands:
            if operand in users:
                users[operand].append(each)

    def real_users(name: str) -> list[Instruction]:
        return [
            end
            for each in users[name]
            for end in (real_users(each.name) if each.opcode == "bitcast" and not each.is_root else [each])
        ]

    moved = 0.0
    for each in inside.values():
        if each.opcode == "parameter":
            readers = real_users(each.name)
            if readers and all(reader.opcode in _SLICES for reader in readers):
                moved += min(each.bytes, sum(reader.bytes for reader in readers))
            elif not all(reader.opcode in ("dynamic-update-slice", "scatter") for reader in readers):
                moved += each.bytes
        elif each.is_root:
            parts = [inside[operand] for operand in each.operands] if each.opcode == "tuple" else [each]
            moved += sum(_written(part, inside) for part in parts)
    return moved


def _written(part: Instruction, inside: Computation) -> float:
    if part.opcode == "dynamic-update-slice":
        return inside[part.operands[1]].bytes
    if part.opcode == "scatter":  # adds: reads and writes
        return 2.0 * inside[part.operands[2]].bytes
    return part.bytes


def _arithmetic(inside: Computation) -> float:
    """Operations of a fusion."""
    elements, operations = 1, 0
    for each in inside.values():
        if each.opcode == "reduce":
            elements = max(elements, *(inside[operand].elements for operand in each.operands if operand in inside))
        elif each.is_root and each.opcode == "tuple":
            elements = max(elements, *(inside[operand].elements for operand in each.operands))
        elif each.is_root and each.opcode != "scatter":
            elements = max(elements, each.elements)
        operations += _operations(each, inside)
    return float(elements * operations)


def _operations(each: Instruction, inside: Computation) -> int:
    """The operations of one element; docs/LOG.md compares them with machine code for the generator of random bits."""
    if each.opcode in _NO_ARITHMETIC:
        return 0
    if each.elements == 1 and each.opcode != "reduce":  # the same for all
        return 0
    if each.opcode in _SPECIAL:
        return _SPECIAL_OPERATIONS
    if each.opcode == "multiply" and each.shapes[0][0] in _WIDE:
        return _WIDE_PRODUCT_OPERATIONS
    if each.opcode == "shift-right-logical" and each.shapes[0][0] in _WIDE:
        return 0  # by 32 bits: picks one of two registers
    if each.opcode == "xor" and any(inside[name].opcode == "xor" for name in each.operands if name in inside):
        return 0  # a GPU combines three numbers by one instruction
    return 1
