"""Broken PTX: one slip in the PTX of a variant must be caught by the emulator.

A mutant is caught if the emulator reports an error or the result is wrong, under one of 20 interleavings over
the workloads that reach the changed line. If no workload reaches it, the mutant counts as unreached. Any
other survivor is listed with the reason why it is no bug.

    python tests/numerics/ptx_mutants.py [VARIANT ...]

tries every mutant of these variants, by default of all, and prints those that nothing catches, and a row per
variant.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from dsl_kernels import variants
from dsl_kernels.errors import DslKernelError
from dsl_kernels.executors import Emulator
from dsl_kernels.runtime import bundle, store
from dsl_kernels.variants import Variant
from dsl_kernels_lab.oracles import Workload
from dsl_kernels_lab.verification import reach, trial
from ptx_emulator import Interleaving, interleavings

INTERLEAVINGS = 20
# At most this many sites of a slip in a variant, drawn by their names: the same in every run.
SITES = 2


@dataclass(frozen=True)
class Instruction:
    """One instruction of the text: its guard with the space after it, its opcode and its operands."""

    guard: str
    opcode: str
    operands: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.guard}{self.opcode} {', '.join(self.operands)};"

    def operand(self, at: int, value: str) -> Instruction:
        changed = list(self.operands)
        changed[at] = value
        return Instruction(self.guard, self.opcode, tuple(changed))

    def renamed(self, old: str, new: str) -> str | None:
        return (
            None
            if old not in self.opcode
            else str(Instruction(self.guard, self.opcode.replace(old, new, 1), self.operands))
        )


#: The changed instruction; None if there is nothing to break in it.
Change = Callable[[Instruction], str | None]


def dropped(i: Instruction) -> str:
    return ""


def twice(i: Instruction) -> str:
    return f"{i}\n{i}"


def added(at: int, number: int) -> Change:
    """Add a number to an operand."""

    def change(i: Instruction) -> str:
        return (
            f"{{ .reg .b32 mutant; add.s32 mutant, {i.operands[at]}, {number}; {i.operand(at, 'mutant')} }}"
        )

    return change


def one_group_more(i: Instruction) -> str:
    return str(i.operand(0, str(int(i.operands[0]) + 1)))


def other_parity(i: Instruction) -> str:
    return f"{{ .reg .b32 mutant; xor.b32 mutant, {i.operands[2]}, 1; {i.operand(2, 'mutant')} }}"


def passes(i: Instruction) -> str:
    """A wait that does not wait."""
    return f"{i.guard}setp.eq.u32 {i.operands[0]}, 0, 0;"


def every_lane(i: Instruction) -> str:
    return f"{i.guard}setp.eq.u32 {i.operands[0].rpartition('|')[2]}, 0, 0;"


def otherwise(i: Instruction) -> str | None:
    """A product that accumulates where it should begin anew, and the reverse."""
    at = next((n for n, text in enumerate(i.operands) if re.fullmatch(r"%?p\w*", text)), None)
    if at is None:
        return None
    return f"{{ .reg .pred mutant; not.pred mutant, {i.operands[at]}; {i.operand(at, 'mutant')} }}"


def inverted(i: Instruction) -> str | None:
    if not i.guard:
        return None
    guard = i.guard.replace("@!", "@") if i.guard.startswith("@!") else i.guard.replace("@", "@!")
    return str(Instruction(guard, i.opcode, i.operands))


def shifted(i: Instruction) -> str | None:
    """Shift the address of a store by the store's width."""
    wide = {"b8": 1, "u8": 1, "b16": 2, "u16": 2, "b64": 8, "u64": 8, "f64": 8}.get(
        i.opcode.split(".")[-1], 4
    )
    step = wide * int((re.search(r"\.v(\d)", i.opcode) or [1, 1])[1])
    return str(i.operand(0, i.operands[0].replace("]", f"+{step}]") if "+" not in i.operands[0] else re.sub(
        r"\+(\d+)\]", lambda m: f"+{int(m[1]) + step}]", i.operands[0])))  # fmt: skip


def renamed(old: str, new: str) -> Change:
    return lambda i: i.renamed(old, new)


#: name -> (pattern of the opcode, change of the instruction)
SLIPS: Mapping[str, tuple[str, Change]] = {
    "a wait that passes": (r"mbarrier\.(?:try|test)_wait", passes),
    "a wait for the other parity": (r"mbarrier\.(?:try|test)_wait\.parity", other_parity),
    "no arrival": (r"mbarrier\.arrive(?!\.expect)", dropped),
    "an arrival twice": (r"mbarrier\.arrive(?!\.expect)", twice),
    "no bytes announced": (r"mbarrier\.(?:arrive\.)?expect_tx", dropped),
    "16 bytes too many announced": (r"mbarrier\.(?:arrive\.)?expect_tx", added(-1, 16)),
    "16 bytes too few announced": (r"mbarrier\.(?:arrive\.)?expect_tx", added(-1, -16)),
    "an arrival too many expected": (r"mbarrier\.init", added(1, 1)),
    "an arrival too few expected": (r"mbarrier\.init", added(1, -1)),
    "no fence after barriers are set up": (r"fence\.mbarrier_init", dropped),
    "no barrier": (r"(?:bar|barrier)\.(?:cta\.)?(?:sync|arrive)", dropped),
    "no barrier of the cluster": (r"barrier\.cluster", dropped),
    "no barrier of the warp": (r"bar\.warp\.sync", dropped),
    "no proxy fence": (r"fence\.proxy\.async", dropped),
    "no fence before wgmma": (r"wgmma\.fence", dropped),
    "no commit of wgmma": (r"wgmma\.commit_group", dropped),
    "no wait for wgmma": (r"wgmma\.wait_group", dropped),
    "a wait for one wgmma group less": (r"wgmma\.wait_group", one_group_more),
    "no commit of a bulk store": (r"cp\.async\.bulk\.commit_group", dropped),
    "no wait for a bulk store": (r"cp\.async\.bulk\.wait_group", dropped),
    "no commit of cp.async": (r"cp\.async\.commit_group", dropped),
    "no wait for cp.async": (r"cp\.async\.wait_(?:group|all)", dropped),
    "no arrival of cp.async": (r"cp\.async\.mbarrier\.arrive", dropped),
    "no commit of tcgen05": (r"tcgen05\.commit", dropped),
    "no wait for loads of tensor memory": (r"tcgen05\.wait::ld", dropped),
    "no wait for stores to tensor memory": (r"tcgen05\.wait::st", dropped),
    "no tcgen05 fence": (r"tcgen05\.fence", dropped),
    "tensor memory kept": (r"tcgen05\.dealloc", dropped),
    "a product that accumulates otherwise": (r"(?:tcgen05\.mma|wgmma\.mma_async)", otherwise),
    "a copy that is left out": (r"cp\.async\.(?:bulk\.(?:tensor|shared|global)|c[ag])", dropped),
    "a branch the other way": (r"bra\b", inverted),
    "a store to the place after": (r"st\.shared", shifted),
    "a release that is none": (r"(?:red|atom|st)\.[\w.]*release", renamed("release", "relaxed")),
    "an acquire that is none": (r"ld\.[\w.]*acquire", renamed("acquire", "relaxed")),
    "every lane elected": (r"elect\.sync", every_lane),
}
#: Variants whose survivors are all explained.
VARIANTS = (
    "gqa_forward__cutedsl_sm90a__bf16_d128_n160_st2_o1_c1_z2",
    "gqa_forward__cutedsl_sm100a__bf16_d128_n64_st3_c1_z2",
    "sparse_mla__tilelang_sm90a__h8_bf16_bt64_st2_cl1",
    "gqa_forward__cutedsl_sm100a__bf16_d128_n64_st3_c2_z2",
    "sparse_mla__cutedsl_sm100a__h16_bf16_bt64_cl1_cp_async",
    "sparse_mla__cutedsl_sm90a__h16_bf16_bt64_st2_cl2",
    "lightning_indexer__cutedsl_sm100a__prefill_h32_q8_t128_st6_c1_e0",
    "lightning_indexer__cutedsl_sm90a__decode_h32_q1_t64_st3_c4_e1",
)


@dataclass(frozen=True)
class Mutant:
    """A slip at one place of the text, with the module's source line of that place."""

    slip: str
    line: int
    ptx: str

    def __str__(self) -> str:
        return f"{self.slip}, PTX line {self.line}"


def operands(text: str) -> tuple[str, ...]:
    """Split operands at commas outside brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "[{(") - (c in "]})")
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return tuple(x.strip() for x in parts if x.strip())


def sites(ptx: str, slip: str) -> Iterator[tuple[re.Match[str], str]]:
    """Every instruction to which a slip applies, with the changed instruction."""
    pattern, change = SLIPS[slip]
    for m in re.finditer(
        rf"(?<![\w.:%$])(@!?[%\w$]+\s+)?({pattern}[\w.:]*)([^;{{}}]*(?:\{{[^}}]*\}}[^;{{}}]*)*);", ptx
    ):
        new = change(Instruction(m[1] or "", m[2], operands(m[3])))
        if new is not None:
            yield m, new


@cache
def text(name: str) -> str:
    _, code = store.fetch(variants.get(name), bundle.PTX)
    return code.decode()


def mutants(name: str) -> list[Mutant]:
    ptx, out = text(name), []
    for slip in SLIPS:
        places = list(sites(ptx, slip))
        for m, new in random.Random(f"{name} {slip}").sample(places, min(SITES, len(places))):
            line = ptx.count("\n", 0, m.start(2)) + 1
            out.append(Mutant(slip, line, ptx[: m.start()] + new + ptx[m.end() :]))
    return out


Run = tuple[Workload, dict[str, int]]


@cache
def reached(name: str) -> list[tuple[Run, frozenset[int]]]:
    """The workloads of a variant, each with the PTX lines that it executes."""
    variant, out = variants.get(name), []
    for run in reach.workloads(variant):
        executor = Emulator(Interleaving.lockstep(), strict=True)
        result = trial.run(
            variant, run[0], executor, example=trial.cached_example(variant.op, run[0]), launch=run[1]
        )
        assert result.comparison.ok
        coverage = executor.report.coverage
        body = coverage.program.entry.body
        out.append((run, frozenset(st.line for st, ran in zip(body, coverage.executed, strict=True) if ran)))
    return out


@dataclass(frozen=True)
class Outcome:
    """The outcome of a mutant: "caught", "unreached", "explained" or "survives", and how."""

    mutant: Mutant
    by: str
    how: str


def caught(variant: Variant, mutant: Mutant, runs: list[Run]) -> str | None:
    """The error or the difference that reveals a mutant, or None."""
    for n, interleaving in enumerate(interleavings(INTERLEAVINGS)):
        workload, launch = runs[n % len(runs)]
        executor = Emulator(interleaving, edit=lambda _: mutant.ptx, strict=True)
        example = trial.cached_example(variant.op, workload)
        try:
            result = trial.run(variant, workload, executor, example=example, launch=launch)
        except DslKernelError as error:
            return str(error)
        if not result.comparison.ok:
            return result.comparison.failures[0]
    return None


def outcome(name: str, mutant: Mutant) -> Outcome:
    runs = [run for run, lines in reached(name) if mutant.line in lines]
    if not runs:
        return Outcome(mutant, "unreached", "no workload executes the line")
    how = caught(variants.get(name), mutant, runs)
    if how is not None:
        return Outcome(mutant, "caught", how)
    reason = explained(name, mutant)
    return Outcome(mutant, "explained" if reason else "survives", reason or context(name, mutant))


NONE_IN_FLIGHT = (
    r"\n>source: +warpgroup\.wait_group\(0\)[\s\S]*queries_empty",
    "every product was waited for where its scores were read: none is in flight",
)
#: slip -> pairs of a pattern of the `surroundings` and the reason why the kernel computes the same.
EXPLAINED: Mapping[str, tuple[tuple[str, str], ...]] = {
    "no fence after barriers are set up": (
        (
            r"^\w+_(?:c1|cl1)(?:_|\n)",
            "clusters of one CTA: no other uses its barriers, and bar.sync orders them in it",
        ),
        (
            r"fence\.mbarrier_init[\s\S]*barrier\.cluster\.arrive;\s*barrier\.cluster\.wait;",
            "a barrier of the cluster follows, which releases and acquires",
        ),
        (
            r"^(?:lightning_indexer__\w+_decode_\w+_c4_e1"
            r"|sparse_mla__cutedsl_sm90a__h16_bf16_bt64_st2_cl2)\n",
            "the CTAs of a cluster use their own mbarriers alone, and bar.sync orders them in each",
        ),
    ),
    "no barrier of the warp": (
        (
            r"(?:wgmma\.wait_group|tcgen05\.wait::ld)[\s\S]*bar\.warp\.sync[\s\S]*elect\.sync",
            "the elected lane tells the end of asynchronous reads, for which the whole warp waits by one "
            "aligned instruction",
        ),
    ),
    "a wait that passes": (
        (
            r"source: +# A commit may arrive late",
            "one of the last waits before the CTA ends: commits of a thread arrive in their order here, so "
            "that others cover it; "
            "PTX promises no order of their arrivals, and the kernel waits for each",
        ),
        (
            r"kv_empty[\s\S]*\n>source: +cute\.arch\.mbarrier_wait\(pe_empty",
            "the last wait for a unit's slot is for a commit of two tiles ago, after the product that read "
            "these rope dims: it covers "
            "all that its thread had issued",
        ),
    ),
    "no proxy fence": (
        (
            r"load_queries[\s\S]*\n>source: +cute\.arch\.fence_proxy",
            "each thread has a fence after its wait for the first rows, and that covers the queries too",
        ),
        (
            r"^sparse_mla__tilelang_sm90a__h8_[\s\S]*(?:st\.shared\.u32\s[^;]*;\s*){4}[^\n]*\s*// begin "
            r"inline asm\s*>ptx:\s*fence\.proxy\.async",
            "each thread has a fence after its wait for the first rows, and that covers the queries too",
        ),
    ),
    "no tcgen05 fence": (
        (
            r">ptx:\s*tcgen05\.fence::after_thread_sync;(?:(?!tcgen05\.(?:ld|st|mma|cp|shift))[\s\S])*?"
            r"tcgen05\.fence::before_thread_sync",
            "its thread touches no tensor memory before its next arrival; the products that it would order "
            "are ordered as they are issued",
        ),
        (
            r">ptx:\s*tcgen05\.fence::after_thread_sync;(?:(?!tcgen05\.(?:ld|st|mma|cp|shift))[\s\S])*?"
            r"mbarrier\.try_wait(?:(?!tcgen05\.(?:ld|st|mma|cp|shift))[\s\S])*?"
            r"tcgen05\.fence::after_thread_sync",
            "another wait follows, and its fence stands before the thread's next instruction of tensor "
            "memory too",
        ),
        (
            r">ptx:\s*tcgen05\.fence::after_thread_sync;(?:(?!tcgen05\.(?:ld|st|mma|cp|shift))[\s\S])*?"
            r"tcgen05\.dealloc",
            "the next instruction of tensor memory frees it, ordered by the CTA's barrier after what every "
            "role has waited for",
        ),
        (
            r"^sparse_mla__cutedsl_sm100a__\w+_cp_async\n[\s\S]*mbarrier_wait\(\nsource: "
            r"+kv_full[\s\S]*\n>source: +nvvm\.tcgen05_fence",
            "the warps that it waits for copy by cp.async and touch no tensor memory; the scores' columns "
            "have the fence after their wait",
        ),
    ),
    "no wait for loads of tensor memory": (
        (r">ptx:\s*tcgen05\.wait::ld\.sync\.aligned;\s*tcgen05\.wait::ld", "it stands there twice"),
        (
            r"^sparse_mla__cutedsl_sm100a__[\s\S]*>ptx:\s*tcgen05\.wait::ld\.sync\.aligned;"
            r"\s*tcgen05\.wait::st[\s\S]*mbarrier\.arrive",
            "every load of O was waited for where it was rescaled: none is in flight",
        ),
    ),
    "a wait for one wgmma group less": (NONE_IN_FLIGHT,),
    "no wait for wgmma": (NONE_IN_FLIGHT,),
    "no fence before wgmma": (
        (
            r"^gqa_forward__cutedsl_sm90a__[\s\S]*mbarrier\.try_wait[\s\S]*>ptx:\s*wgmma\.fence"
            r"[\s\S]*\{%r\d+, %r\d+, %r\d+, %r\d+\}, %rd\d+, p",
            "the fence of the next tile's scores comes after the last write of O and of the weights",
        ),
    ),
    "a branch the other way": (
        (
            r"^lightning_indexer__\w+_decode_\w+\n[\s\S]*setp\.lt\.s32\s+%p\d+, %r\d+, "
            r"2;[\s\S]*>ptx:\s*@%p\d+ bra[\s\S]*rcp\.approx",
            "all CTAs share each sequence, in place of few sharing one of several: either way each tile is "
            "scored once",
        ),
    ),
}


def surroundings(name: str, mutant: Mutant) -> str:
    """The variant's name, the lines of its module and of the PTX around the place, which `>` marks."""
    ptx = text(name).splitlines()
    before = [line for line in ptx[max(mutant.line - 60, 0) : mutant.line - 1] if line.strip()]
    after = [line for line in ptx[mutant.line : mutant.line + 60] if line.strip() and ".loc" not in line]
    # Lines within an assembly string are numbered on from the line that contains it.
    begin = next((i for i in range(len(before) - 1, -1, -1) if "inline asm" in before[i]), -1)
    outside = before[:begin] if begin >= 0 and "begin" in before[begin] else before
    place = next((m for line in reversed(outside) if (m := re.match(r"\s*\.loc\s+1 (\d+) ", line))), None)
    source, at = variants.get(name).path.read_text().splitlines(), int(place[1]) if place else 0
    numbers = range(max(at - 8, 1), min(at + 6, len(source) + 1))
    lines = [f"{'>' if n == at else ''}source: {source[n - 1]}" for n in numbers]
    kept = [line for line in before[-24:] if ".loc" not in line]
    return "\n".join([name, *lines, *kept, f">ptx: {ptx[mutant.line - 1]}", *after])


def context(name: str, mutant: Mutant) -> str:
    lines = text(name).splitlines()
    return "\n".join(lines[max(mutant.line - 8, 0) : mutant.line + 4])


def explained(name: str, mutant: Mutant) -> str | None:
    """Why a mutant need not be caught, or None."""
    return next(
        (reason for pattern,
         reason in EXPLAINED.get(mutant.slip, ()) if re.search(pattern, surroundings(name, mutant))),
        None,
    )  # fmt: skip


def row(name: str, results: Sequence[Outcome]) -> str:
    """A variant's row of the table in docs/emulator_evidence.md."""
    counts = Counter(o.by for o in results)
    return f"| {name} | {len(results)} | {counts['caught']} | {counts['unreached']} | {counts['explained']} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("variants", nargs="*", default=VARIANTS, help="ids of variants; those of VARIANTS")
    left = 0
    for name in parser.parse_args().variants:
        results = [outcome(name, mutant) for mutant in mutants(name)]
        for o in results:
            if o.by != "caught":
                print(f"{o.by}: {o.mutant}: {o.how}", flush=True)  # noqa: T201
        print(row(name, results), flush=True)  # noqa: T201
        left += sum(o.by == "survives" for o in results)
    return int(left > 0)


if __name__ == "__main__":
    sys.exit(main())
