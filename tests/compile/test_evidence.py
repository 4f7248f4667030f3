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
from pathlib import Path

import pytest
from filelock import FileLock

from codegen.render import padded
from dsl_kernels import programs, variants
from dsl_kernels.arch import ArchSpec, get_arch
from dsl_kernels.dtypes import DTYPES
from dsl_kernels.expr import evaluate, names_in_all
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


@pytest.fixture(params=VARIANTS, ids=lambda v: v.id)
def variant(request) -> Variant:
    return request.param


@pytest.fixture
def artifact(variant, compiled) -> Artifact:
    outcome = compiled[variant.id]
    if outcome.error is not None:
        raise outcome.error
    return outcome.artifact


@pytest.fixture
def arch(variant) -> ArchSpec:
    return get_arch(variant.arch)


@pytest.fixture
def schedule(variant, arch) -> Schedule:
    return programs.get(variant.op).schedule(variant.knobs, arch)


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


@pytest.fixture
def sass(artifact, compiled, tmp_path_factory):
    """The SASS of the variant."""
    base = tmp_path_factory.getbasetemp()
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return lambda: listing(compiled[artifact.variant].folder, run / "sass")


def test_operands_are_the_problem_s(variant, artifact):
    """A variant takes what its problem names, whichever DSL compiled it."""
    wanted = programs.get(variant.op).operands(variant.knobs)
    assert [(o.name, o.kind, o.dtype, o.shape) for o in artifact.operands] == [
        (o.name, o.kind, o.dtype, o.shape) for o in wanted
    ]
    for lowered, declared in zip(artifact.operands, wanted, strict=True):
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


def test_nothing_spills_to_local_memory(artifact) -> None:
    resources = artifact.resources
    assert (resources.spill_stores, resources.spill_loads) == (0, 0)
    assert {name: artifact.evidence[name] for name in LOCAL_MEMORY if name in artifact.evidence} == {}


def test_the_launch_is_the_declared_one(artifact, schedule) -> None:
    assert artifact.block == (schedule.threads, 1, 1)
    assert artifact.cluster == schedule.cluster
    grid = tuple(map(text_of, (*schedule.grid, 1, 1)[:3]))
    sizes = {name: 3 + index for index, name in enumerate(sorted(names_in_all((*grid, *artifact.grid))))}
    assert [evaluate(text, sizes) for text in artifact.grid] == [evaluate(text, sizes) for text in grid]


def test_shared_memory_holds_what_is_declared_and_fits(artifact, schedule, arch) -> None:
    declared = schedule.smem_bytes() + barrier_plan(schedule).smem_bytes
    total = artifact.resources.static_smem + artifact.resources.dynamic_smem
    assert artifact.dynamic_smem == artifact.resources.dynamic_smem
    assert declared <= total <= arch.smem_per_cta
    assert schedule.ctas_per_sm * (total + RESERVED_A_CTA) <= arch.smem_per_sm


def test_shared_memory_leaves_no_room_for_a_cta_too_many(artifact, schedule, arch) -> None:
    """Only for kernels with dependent launches: all others find every SM empty."""
    if artifact.programmatic_launch and schedule.max_ctas_per_sm:
        assert (schedule.max_ctas_per_sm + 1) * (artifact.dynamic_smem + RESERVED_A_CTA) > arch.smem_per_sm


def test_what_products_read_begins_where_its_swizzle_does(variant, artifact, schedule, compiled) -> None:
    """TileLang lays out shared memory itself; CuTe DSL has the alignment in the type."""
    if variant.backend == "tilelang":
        source = (compiled[variant.id].folder / "kernel.cu").read_text()
        begins = {
            name: int(at) for name, at in re.findall(r"void\* (\w+) = .*buf_dyn_shmem \+ (\d+)", source)
        }
        for buffer in schedule.buffers:
            if buffer.swizzle and buffer.name in {name for mma in schedule.mmas for name in (mma.a, mma.b)}:
                assert begins[buffer.alias or buffer.name] % (8 * buffer.swizzle) == 0, buffer.name


def test_nothing_in_global_memory_is_touched_before_the_wait(artifact, sass) -> None:
    """The text has the wait first, but a compiler might move a load of memory that it considers constant."""
    if not artifact.programmatic_launch:
        return
    before, wait, behind = sass().partition("ACQBULK")
    assert wait and not GLOBAL_ACCESS.search(before) and GLOBAL_ACCESS.search(behind)


def test_a_score_is_rounded_before_a_maximum_is_taken_off(variant, sass) -> None:
    """Fused with the subtraction, the product is not rounded: its remainder overflows at 2^64."""
    if variant.op != "sparse_mla":
        pytest.skip("its op has `max_logits`")
    made: dict[str, str] = {}
    fused = []
    for op, to, of in re.findall(r"\b([A-Z][A-Z0-9]+)[A-Z0-9_.]* (R\d+), ([^;]*);", sass()):
        if op == "MUFU":
            made_by = made.get(of.split(".")[0].strip(" -|"), "")
            # The product of a sink with log2(e) may be fused.
            fused += [made_by] if made_by.startswith("FFMA") and "1.4426950" not in made_by else []
        made[to] = f"{op} {of}"
    assert not fused


def test_registers_let_the_declared_ctas_be_resident(artifact, schedule, arch) -> None:
    assert artifact.resources.registers <= arch.registers_per_thread
    resident = max(schedule.ctas_per_sm, schedule.min_ctas_per_sm)
    assert artifact.resources.registers * schedule.threads * resident <= arch.registers_per_sm
    if any(role.registers is not None for role in schedule.roles):
        assert "USETMAXREG" in artifact.evidence


def test_tensor_memory_is_what_is_declared(artifact, schedule) -> None:
    columns, taken = schedule.tmem_columns(), artifact.resources.tmem_columns
    whole = max(32, 1 << (columns - 1).bit_length()) if columns else 0
    if artifact.backend == "tilelang" and whole > columns and padded(schedule) is None:
        # TileLang allocates buffer by buffer, and none of them can take what is left of a power of two.
        assert columns <= taken <= whole
    else:
        assert taken == whole
    read_by_threads = any(
        reader.engine is Engine.TMEM
        and any(schedule.buffer(name).space is Space.TENSOR for name in pipe.buffers)
        for pipe in schedule.pipelines
        for reader in pipe.readers
    )
    assert ("LDTM" in artifact.evidence) == read_by_threads


def test_tensor_cores_are_those_declared_and_no_others(artifact, schedule) -> None:
    tensor = {*TENSOR_CORE.values(), *INTEGER}
    assert {name for name in artifact.evidence if name in tensor} == claimed(schedule)


def test_copies_and_commits_use_the_declared_engines(artifact, schedule) -> None:
    evidence = set(artifact.evidence)
    sent = any(pipe.multicast and pipe.fill is Engine.THREADS for pipe in schedule.pipelines)
    assert (Engine.BULK in fills(schedule) or sent) == bool(evidence & BULK_COPIES)
    assert (Engine.CP_ASYNC in fills(schedule)) == ("LDGSTS" in evidence)
    assert (Engine.TCGEN05 in engines(schedule)) == ("UTCBAR" in evidence)


def test_what_several_ctas_take_is_copied_once_for_all_of_them(schedule, sass) -> None:
    """Tensor cores that read such a copy release its slot in every CTA by their commit."""
    shared = [pipe for pipe in schedule.pipelines if pipe.multicast]
    committed = any(reader.engine is Engine.TCGEN05 for pipe in shared for reader in pipe.readers)
    if schedule.cluster != (1, 1, 1) and Engine.BULK in fills(schedule):
        assert bool(shared) == bool(re.search(r"\bUTMALDG\S*\.MULTICAST", sass()))
        assert committed == bool(re.search(r"\bUTCBAR\.MULTICAST", sass()))


def test_one_lane_issues_all_copies_of_gathered_rows(artifact, sass) -> None:
    """An election before each copy would limit the one producer warp."""
    if "gather4" in artifact.variant:
        copies = re.findall(r"\bGATHER4\b|\bELECT\b", re.sub(r"UTMALDG\S*\.GATHER4", " GATHER4 ", sass()))
        gathers = copies.count("GATHER4")
        # Between two gathers there may be elections for something else.
        apart = sum(pair == ("GATHER4", "ELECT") for pair in itertools.pairwise(copies))
        assert gathers >= 16 and apart < gathers / 4


# ptxas (C7520) serialises products of these by a WG.AR in a path that it considers divergent. They are
# correct, and faster than the other variants of their sizes; docs/log/attention.md lists the attempts. Remove
# entries once they are fixed.
SERIALISED = {f"sparse_mla__cutedsl_sm90a__h{heads}_v4_bt64_st2_cl1_hb64" for heads in (64, 128)}


def test_products_of_a_group_are_in_flight_together(artifact, schedule, sass) -> None:
    """The compiler waits for each product unless it can prove that nothing else writes the accumulators."""
    if any(mma.unit == "wgmma" for mma in schedule.mmas):
        products, waits = (
            len(re.findall(stem, sass())) for stem in (r"\b[HQ]GMMA\b", r"\bWARPGROUP\.DEPBAR\b")
        )
        assert (waits < products) != (artifact.variant in SERIALISED)
