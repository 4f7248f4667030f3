"""Every committed variant compiles to what its schedule declares: threads, memory, launch, instructions.

All expectations come from the schedule. Variants that are not in the cache are compiled first, in parallel.
"""

from __future__ import annotations

import functools
import gzip
import itertools
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock

from codegen.render import padded
from dsl_kernels import programs, variants
from dsl_kernels.arch import ArchSpec, get_arch
from dsl_kernels.dtypes import DTYPES
from dsl_kernels.expr import evaluate, names_in_all
from dsl_kernels.kernels.gqa_forward.program.hopper import overlaps
from dsl_kernels.runtime import pool, toolkit
from dsl_kernels.runtime.artifact import Artifact
from dsl_kernels.runtime.storage import write_atomically
from dsl_kernels.tile import Engine, Schedule, Space, barrier_plan
from dsl_kernels.tile.expressions import text_of
from dsl_kernels.variants import Variant

pytestmark = pytest.mark.compile

VARIANTS = variants.variants()

# SASS stem of each tensor-core unit by bytes of an operand: fp8 types share one, and so do 16-bit types.
TENSOR_CORE = {
    ("wgmma", 2): "HGMMA",
    ("wgmma", 1): "QGMMA",
    ("tcgen05", 2): "UTCHMMA",
    ("tcgen05", 1): "UTCQMMA",
    ("tcgen05", 0.5): "UTCOMMA",
    ("mma.sync", 2): "HMMA",
    ("mma.sync", 1): "QMMA",
}
INTEGER = {"IGMMA", "IMMA", "UTCIMMA", "OMMA", "DMMA", "BMMA"}
BULK_COPIES = {"UTMALDG", "UBLKCP"}
LOCAL_MEMORY = ("LDL", "STL")
RESERVED_A_CTA = 1024
# Opcodes that access global memory, including those that copy it to shared memory.
GLOBAL_ACCESS = re.compile(r"\b(?:LDG|STG|ATOMG|REDG|RED|LD|ST|ATOM|LDGSTS|UTMALDG|UTMASTG|UBLKCP|UBLKPF)\b")


@pytest.fixture(autouse=True)
def cache_dir():
    """The user's own cache, as the library launches the artifacts in it."""


@pytest.fixture(scope="module")
def compiled(request, tmp_path_factory) -> dict[str, pool.Outcome]:
    """The outcome of each variant; one test process compiles missing ones, in parallel."""
    wanted = {
        item.callspec.params["variant"].id: item.callspec.params["variant"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    }
    with FileLock(tmp_path_factory.getbasetemp().parent / "evidence.lock"):
        return {outcome.variant: outcome for outcome in pool.compile_all(wanted.values())}


@functools.cache
def listing(folder: Path, kept: Path) -> str:
    """SASS of a compiled variant, disassembled once for all processes of a run."""
    path = kept / f"{folder.name}.gz"
    if not path.exists():
        command = [str(toolkit.nvdisasm().path), "-c", "kernel.cubin"]
        done = subprocess.run(command, cwd=folder, capture_output=True, check=True)
        kept.mkdir(exist_ok=True)
        write_atomically(path, gzip.compress(done.stdout, 1))
    return gzip.decompress(path.read_bytes()).decode()


@dataclass(frozen=True)
class Evidence:
    """A variant, what its schedule declares, and what it was compiled to."""

    variant: Variant
    outcome: pool.Outcome
    listings: Path

    @cached_property
    def artifact(self) -> Artifact:
        if self.outcome.error is not None:
            raise self.outcome.error
        return self.outcome.artifact

    @cached_property
    def arch(self) -> ArchSpec:
        return get_arch(self.variant.arch)

    @cached_property
    def schedule(self) -> Schedule:
        return programs.get(self.variant.op).schedule(self.variant.knobs, self.arch)

    @property
    def folder(self) -> Path:
        return self.outcome.folder

    @property
    def sass(self) -> str:
        return listing(self.folder, self.listings)


@pytest.fixture(scope="module")
def listings(tmp_path_factory) -> Path:
    """A folder that all processes of a run share."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "sass"


CHECKS: list[Callable[[Evidence], None]] = []


def check(function: Callable[[Evidence], None]) -> Callable[[Evidence], None]:
    """Make the function one of those that each variant passes."""
    CHECKS.append(function)
    return function


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.id)
def test_it_is_what_its_schedule_declares(variant, compiled, listings) -> None:
    """All checks in one test: they share the compiled variant, and pytest takes longer than most of them."""
    evidence, failed = Evidence(variant, compiled[variant.id], listings), {}
    for passes in CHECKS:
        try:
            passes(evidence)
        except AssertionError as error:
            failed[passes.__name__] = str(error)
    assert not failed


@check
def operands_are_the_problem_s(of: Evidence) -> None:
    """A variant takes what its problem names, whichever DSL compiled it."""
    wanted = programs.get(of.variant.op).operands(of.variant.knobs)
    assert [(o.name, o.kind, o.dtype, o.shape) for o in of.artifact.operands] == [
        (o.name, o.kind, o.dtype, o.shape) for o in wanted
    ]
    for lowered, declared in zip(of.artifact.operands, wanted, strict=True):
        assert declared.strides in (None, lowered.strides), declared.name
        assert lowered.written or not declared.written, declared.name


def fills(schedule: Schedule) -> set[Engine]:
    return {pipe.fill for pipe in schedule.pipelines}


def engines(schedule: Schedule) -> set[Engine]:
    return fills(schedule) | {reader.engine for pipe in schedule.pipelines for reader in pipe.readers}


def claimed(schedule: Schedule) -> set[str]:
    """SASS stems of the tensor-core operations that a schedule declares."""
    sizes = {name: dtype.bytes / dtype.packed for name, dtype in DTYPES.items()}
    return {TENSOR_CORE[mma.unit, sizes[mma.dtype]] for mma in schedule.mmas}


@check
def nothing_spills_to_local_memory(of: Evidence) -> None:
    resources = of.artifact.resources
    assert (resources.spill_stores, resources.spill_loads) == (0, 0)
    assert {name: of.artifact.evidence[name] for name in LOCAL_MEMORY if name in of.artifact.evidence} == {}


@check
def the_launch_is_the_declared_one(of: Evidence) -> None:
    assert of.artifact.block == (of.schedule.threads, 1, 1)
    assert of.artifact.cluster == of.schedule.cluster
    grid = tuple(map(text_of, (*of.schedule.grid, 1, 1)[:3]))
    sizes = {name: 3 + index for index, name in enumerate(sorted(names_in_all((*grid, *of.artifact.grid))))}
    assert [evaluate(text, sizes) for text in of.artifact.grid] == [evaluate(text, sizes) for text in grid]


@check
def shared_memory_holds_what_is_declared_and_fits(of: Evidence) -> None:
    declared = of.schedule.smem_bytes() + barrier_plan(of.schedule).smem_bytes
    total = of.artifact.resources.static_smem + of.artifact.resources.dynamic_smem
    assert of.artifact.dynamic_smem == of.artifact.resources.dynamic_smem
    assert declared <= total <= of.arch.smem_per_cta
    assert of.schedule.ctas_per_sm * (total + RESERVED_A_CTA) <= of.arch.smem_per_sm


@check
def shared_memory_leaves_no_room_for_a_cta_too_many(of: Evidence) -> None:
    """Only for kernels with dependent launches: all others find every SM empty."""
    if of.artifact.programmatic_launch and of.schedule.max_ctas_per_sm:
        assert (of.schedule.max_ctas_per_sm + 1) * (
            of.artifact.dynamic_smem + RESERVED_A_CTA
        ) > of.arch.smem_per_sm


@check
def what_products_read_begins_where_its_swizzle_does(of: Evidence) -> None:
    """TileLang lays out shared memory itself; CuTe DSL has the alignment in the type."""
    if of.variant.backend == "tilelang":
        source = (of.folder / "kernel.cu").read_text()
        begins = {
            name: int(at) for name, at in re.findall(r"void\* (\w+) = .*buf_dyn_shmem \+ (\d+)", source)
        }
        for buffer in of.schedule.buffers:
            if buffer.swizzle and buffer.name in {
                name for mma in of.schedule.mmas for name in (mma.a, mma.b)
            }:
                assert begins[buffer.alias or buffer.name] % (8 * buffer.swizzle) == 0, buffer.name


@check
def nothing_in_global_memory_is_touched_before_the_wait(of: Evidence) -> None:
    """The text has the wait first, but a compiler might move a load of memory that it considers constant."""
    if not of.artifact.programmatic_launch:
        return
    before, wait, behind = of.sass.partition("ACQBULK")
    assert wait and not GLOBAL_ACCESS.search(before) and GLOBAL_ACCESS.search(behind)


@check
def a_score_is_rounded_before_a_maximum_is_taken_off(of: Evidence) -> None:
    """Fused with the subtraction, the product is not rounded: its remainder overflows at 2^64."""
    if of.variant.op != "sparse_mla":
        return
    made: dict[str, str] = {}
    fused = []
    for op, to, inputs in re.findall(r"\b([A-Z][A-Z0-9]+)[A-Z0-9_.]* (R\d+), ([^;]*);", of.sass):
        if op == "MUFU":
            made_by = made.get(inputs.split(".")[0].strip(" -|"), "")
            # The product of a sink with log2(e) may be fused.
            fused += [made_by] if made_by.startswith("FFMA") and "1.4426950" not in made_by else []
        made[to] = f"{op} {inputs}"
    assert not fused


@check
def registers_let_the_declared_ctas_be_resident(of: Evidence) -> None:
    assert of.artifact.resources.registers <= of.arch.registers_per_thread
    resident = max(of.schedule.ctas_per_sm, of.schedule.min_ctas_per_sm)
    assert of.artifact.resources.registers * of.schedule.threads * resident <= of.arch.registers_per_sm
    if any(role.registers is not None for role in of.schedule.roles):
        assert "USETMAXREG" in of.artifact.evidence


@check
def tensor_memory_is_what_is_declared(of: Evidence) -> None:
    columns, taken = of.schedule.tmem_columns(), of.artifact.resources.tmem_columns
    whole = max(32, 1 << (columns - 1).bit_length()) if columns else 0
    if of.artifact.backend == "tilelang" and whole > columns and padded(of.schedule) is None:
        # TileLang allocates buffer by buffer, and none of them can take what is left of a power of two.
        assert columns <= taken <= whole
    else:
        assert taken == whole
    read_by_threads = any(
        reader.engine is Engine.TMEM
        and any(of.schedule.buffer(name).space is Space.TENSOR for name in pipe.buffers)
        for pipe in of.schedule.pipelines
        for reader in pipe.readers
    )
    assert ("LDTM" in of.artifact.evidence) == read_by_threads


@check
def tensor_cores_are_those_declared_and_no_others(of: Evidence) -> None:
    tensor = {*TENSOR_CORE.values(), *INTEGER}
    assert {name for name in of.artifact.evidence if name in tensor} == claimed(of.schedule)


@check
def copies_and_commits_use_the_declared_engines(of: Evidence) -> None:
    evidence = set(of.artifact.evidence)
    sent = any(pipe.multicast and pipe.fill is Engine.THREADS for pipe in of.schedule.pipelines)
    assert (Engine.BULK in fills(of.schedule) or sent) == bool(evidence & BULK_COPIES)
    assert (Engine.CP_ASYNC in fills(of.schedule)) == ("LDGSTS" in evidence)
    assert (Engine.TCGEN05 in engines(of.schedule)) == ("UTCBAR" in evidence)


@check
def what_several_ctas_take_is_copied_once_for_all_of_them(of: Evidence) -> None:
    """Tensor cores that read such a copy release its slot in every CTA by their commit."""
    shared = [pipe for pipe in of.schedule.pipelines if pipe.multicast]
    committed = any(reader.engine is Engine.TCGEN05 for pipe in shared for reader in pipe.readers)
    if of.schedule.cluster != (1, 1, 1) and Engine.BULK in fills(of.schedule):
        assert bool(shared) == bool(re.search(r"\bUTMALDG\S*\.MULTICAST", of.sass))
        assert committed == bool(re.search(r"\bUTCBAR\.MULTICAST", of.sass))


@check
def one_lane_issues_all_copies_of_gathered_rows(of: Evidence) -> None:
    """An election before each copy would limit the one producer warp."""
    if "gather4" in of.artifact.variant:
        copies = re.findall(r"\bGATHER4\b|\bELECT\b", re.sub(r"UTMALDG\S*\.GATHER4", " GATHER4 ", of.sass))
        gathers = copies.count("GATHER4")
        # Between two gathers there may be elections for something else.
        apart = sum(pair == ("GATHER4", "ELECT") for pair in itertools.pairwise(copies))
        assert gathers >= 16 and apart < gathers / 4


@check
def products_of_a_group_are_in_flight_together(of: Evidence) -> None:
    """The compiler waits for each product unless it can prove that nothing else writes the accumulators."""
    if any(mma.unit == "wgmma" for mma in of.schedule.mmas):
        products, waits = (
            len(re.findall(stem, of.sass)) for stem in (r"\b[HQ]GMMA\b", r"\bWARPGROUP\.DEPBAR\b")
        )
        assert waits < products


@check
def softmax_runs_beside_its_own_warpgroup_s_product(of: Evidence) -> None:
    """The compiler moves exponentials after the wait for that product, unless something keeps the order."""
    if not of.variant.id.startswith("gqa_forward__cutedsl_sm90a"):
        return
    if overlaps(SimpleNamespace(**of.variant.knobs)):
        found = re.findall(r"\bHGMMA\b|\bMUFU\.EX2\b|\bgsb0, 0x[01]", of.sass)
        # From the wait for the scores to the next products, but for the tile after which none come.
        tiles = [list(tile) for _, tile in itertools.groupby(found, lambda name: name == "HGMMA")]
        tiles = [tile for tile in tiles if "gsb0, 0x1" in tile and "MUFU.EX2" in tile]
        assert tiles and all(tile[-1] == "gsb0, 0x0" for tile in tiles)
