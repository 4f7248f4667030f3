"""The clock's instruction counts beside the SASS of the compiled variants, for each function that DSLs spell.

    python -m dsl_kernels compile --all      # variants that are not compiled are left out
    python benchmarks/clock_instructions.py

In CuTe DSL's variants for sm_90a each instruction names its source line. The instructions of a function,
divided by how often the leaves' texts apply it (unrolled loops counted in full, other loops once), are those
of one application; beside them is the count of `dsl_kernels/clock/work.py`. Then follow the ratio of all
instructions of TileLang's variants to those of CuTe DSL's from the same text, and the mean clocks for which
an instruction stalls its warp, by its control word. Last, for variants of sm_100a, what one copy by the copy
engine costs a warp: the values of `Rates.bulk_slots` and of `COPIES` in `dsl_kernels/clock/sm.py`.
"""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from dsl_kernels import programs, variants
from dsl_kernels.arch import get_arch
from dsl_kernels.clock import work
from dsl_kernels.runtime import store, toolkit
from dsl_kernels.tile import text as t

DEVICE = Path(work.__file__).parent.parent / "device" / "cutedsl"
_LINE = re.compile(r'\s*//## File "([^"]*)", line (\d+)')
_CODE = re.compile(r"\s*/\*[0-9a-f]{4,6}\*/\s+(.*?);?\s*/\* 0x[0-9a-f]{16} \*/")
_CONTROL = re.compile(r"\s*/\* 0x([0-9a-f]{16}) \*/")


# Instructions of the copy engine, and the kind of copy that each source of them makes: a helper, or a header.
COPIES = ("UTMALDG", "UBLKCP")
SPELLED_BY = {
    "load_box": "Box",
    "load_span": "Span",
    "load_rows": "Rows",
    "copy_sm90.h": "Box",
    "copy_sm100.h": "Rows",
}


class Instruction(NamedTuple):
    """One instruction: its text, its source file and line, and the clocks for which it stalls its warp."""

    text: str
    file: str
    line: int
    stall: int


def instructions(cubin: Path) -> Iterator[Instruction]:
    """The instructions of a cubin."""
    command = [str(toolkit.nvdisasm().path), "-g", "-c", "-hex", str(cubin)]
    file, line, code = "", 0, ""
    # Of the lines that were inlined into one another, nvdisasm lists the innermost first.
    inlined = False
    for text in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        if match := _LINE.match(text):
            if not inlined:
                file, line = Path(match[1]).name, int(match[2])
            inlined = True
        elif match := _CODE.match(text):
            code, inlined = match[1], False
        elif code and (match := _CONTROL.match(text)):
            yield Instruction(code, file, line, max(1, int(match[1], 16) >> 41 & 15))
            code = ""


def functions() -> dict[tuple[str, int], str]:
    """The function to which each line of CuTe DSL's device helpers belongs."""
    owners: dict[tuple[str, int], str] = {}
    for path in DEVICE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    owners.setdefault((path.name, line), node.name)
    return owners


class Applied(work._Walk):
    """Counts the functions that a leaf's text applies, statically: all branches, and a rolled loop once."""

    counted: Counter[str]

    def _apply(self, value: Any) -> None:
        self.counted[value.args[0].name] += 1
        super()._apply(value)

    def go(self, statements: Any) -> None:
        for s in statements:
            if isinstance(s, t.If):
                self.count(s.condition)
                self.go(s.body)
                self.go(s.orelse)
            elif isinstance(s, t.Repeat) or (isinstance(s, t.Loop) and not s.unrolled):
                self.go(s.body)
            else:
                super().go([s])


def applied(variant: variants.Variant) -> Counter[str]:
    """How often the texts of a variant's leaves apply each function."""
    program, arch = programs.get(variant.op), get_arch(variant.arch)
    schedule = program.declare(SimpleNamespace(**variant.knobs), arch)
    counted = Counter[str]()
    for part in program.recorded(variant.knobs, arch, schedule).parts.values():
        for s in t.walk(part):
            if isinstance(s, t.Call) and s.leaf.text is not None:
                walk = Applied({"thread": 0, "lane": 0, "warp": 0})
                walk.counted = counted
                walk.go(work.text_of(s.leaf, s.arguments, schedule).statements)
    return counted


def copies(owner: dict[tuple[str, int], str]) -> None:
    """Print what a copy by the copy engine costs a warp of sm_100a."""
    counted, slots, clocks = (
        Counter[tuple[str, str]](),
        Counter[tuple[str, str]](),
        Counter[tuple[str, str]](),
    )
    for variant in variants.variants():
        folder = store.lookup(variant)
        if variant.arch != "sm_100a" or folder is None:
            continue
        for each in instructions(folder / "kernel.cubin"):
            by = SPELLED_BY.get(owner.get((each.file, each.line), each.file))
            if by is not None:
                slots[variant.backend, by] += 1
                clocks[variant.backend, by] += each.stall
                counted[variant.backend, by] += any(name in each.text for name in COPIES)
    print(
        "\n| DSL | kind of copy | copies | instructions of one | clocks of one |\n| --- | --- | --- | --- "
        "| --- |"
    )
    for (dsl, kind), count in sorted(counted.items()):
        if count:
            key = dsl, kind
            print(f"| {dsl} | {kind} | {count} | {slots[key] / count:.1f} | {clocks[key] / count:.1f} |")


def main() -> None:
    owner, of_function, times = functions(), Counter[str](), Counter[str]()
    sizes: dict[str, int] = {}
    stalls: list[float] = []
    for variant in variants.variants():
        folder = store.lookup(variant)
        if variant.arch != "sm_90a" or folder is None:
            continue
        listed = list(instructions(folder / "kernel.cubin"))
        sizes[variant.id] = len(listed)
        stalls.append(statistics.mean(each.stall for each in listed))
        if variant.backend == "cutedsl":
            of_function.update(owner.get((each.file, each.line), "") for each in listed)
            times.update(applied(variant))
    print("| function | applications | instructions of one | the clock's |\n| --- | --- | --- | --- |")
    for name, count in times.most_common():
        if of_function[name] and name in work._FUNCTIONS:
            print(f"| {name} | {count} | {of_function[name] / count:.1f} | {work._FUNCTIONS[name][0]} |")
    twins = [
        (name, sizes[name.replace("cutedsl", "tilelang")] / size)
        for name, size in sizes.items()
        if "cutedsl" in name and name.replace("cutedsl", "tilelang") in sizes
    ]
    print("\n| op | pairs | TileLang's instructions to CuTe DSL's, median |\n| --- | --- | --- |")
    for op in programs.names():
        if ratios := [ratio for name, ratio in twins if name.startswith(op)]:
            print(f"| {op} | {len(ratios)} | {statistics.median(ratios):.2f} |")
    rest = [ratio for name, ratio in twins if not name.startswith("gqa_forward")]
    if rest:
        print(f"| all but gqa_forward | {len(rest)} | {statistics.median(rest):.2f} |")
    if stalls:
        print(
            f"\nStall field, mean of a variant: median {statistics.median(stalls):.2f} clocks an instruction."
        )
    copies(owner)


if __name__ == "__main__":
    main()
