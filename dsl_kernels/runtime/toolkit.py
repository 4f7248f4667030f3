"""The CUDA compiler and binary tools on this machine: where they are, which version, and how to run them.

None of this needs a GPU or a driver. `nvcc` is looked up in `CUDA_HOME`/`CUDA_PATH`, then on PATH, then in
NVIDIA's Python wheels; the disassembler in its wheel, then on PATH.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from ..arch import RESERVED_SMEM
from ..arguments import checked
from ..errors import CacheError, CompileError, ToolchainError

INSTALL_NVCC = "install the CUDA toolkit and set CUDA_HOME, or `pip install 'dsl-kernels[toolkit]'`"
INSTALL_INSPECT = "`pip install 'dsl-kernels[inspect]'`, or put the CUDA toolkit's bin folder on PATH"
INSTALL_CXX = "install a C++ compiler (Debian: `apt-get install g++`), or set CXX"
FREE_SPACE = "free space there and in TMPDIR, or set DSL_KERNELS_CACHE_DIR to another folder"
MINIMUM_NVCC = (13, 0)
_NVCC_NEEDED = ".".join(map(str, MINIMUM_NVCC))

# `CompileError` code of a killed compiler, which says nothing about the module: it may succeed next time.
KILLED = "COMPILE_KILLED"
# `CompileError` code if no compiler diagnosed the source: the machine or the compiler is at fault.
UNFINISHED = "COMPILE_UNFINISHED"
# `CompileError` code if the assembler's output is wrong although the source is right.
LOST = "COMPILE_LOST_PREDICATE"
CHECK_MACHINE = "see to what it says, or check the compiler: `python -m dsl_kernels doctor`"

# How a compiler reports an error in the source; a failure without it is not the source's fault.
_DIAGNOSIS = re.compile(r"\(\d+\): (?:catastrophic )?error|line \d+; error|:\d+:\d+: error|ptxas error")
_NO_ROOM = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
# CuTe DSL's refusal of options: of ours, only the temporary folder differs, and it must have no space.
_OPTIONS = "CONFIG_MALFORMED_COMPILE_OPTIONS"
_NO_RESOURCES = tuple(
    os.strerror(number)
    for number in (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EIO, errno.EROFS)
)

# Opcode families that are also counted by full mnemonic: the modifiers say which shape or mode is used.
DETAILED = frozenset(
    {
        "HGMMA", "QGMMA", "IGMMA", "HMMA", "QMMA", "IMMA", "OMMA", "UTCHMMA", "UTCQMMA", "UTCIMMA", "UTCBAR",
        "UTCCP", "LDTM", "STTM", "UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP", "LDGSTS", "LDSM", "STSM",
    }
)  # fmt: skip

_SEPARATOR = r"(?:,|\n\.b8 )"
_INTERNAL_NAME = re.compile(r"(_INTERNAL_)[0-9a-f]{8}_")
_INTERNAL_BYTES = re.compile(
    rf"({_SEPARATOR.join(str(byte) for byte in b'_INTERNAL_')}{_SEPARATOR})((?:\d+{_SEPARATOR}){{8}})"
)
_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)((?:\.[\w:]+)*)")
_PROPERTIES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
# A setmaxnreg.inc up to its retry, and the moves that save a uniform predicate to a register and restore it.
_TRY_ALLOC = re.compile(r"USETMAXREG\.TRY_ALLOC\S* (UP\d)(.*?)\bBRA\b", re.DOTALL)
_PREDICATE_MOVES = re.compile(
    r"UP2UR (UR\d+), UPR, URZ, (0x[0-9a-f]+)|UISETP\.NE\S* (UP\d), UPT, (UR\d+), URZ"
)
_USED = re.compile(
    r"Used (\d+) registers(?:, used (\d+) barriers)?"
    r"(?:, \d+ bytes cumulative stack size)?(?:, (\d+) bytes smem)?"
)
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)")
_LOCAL = re.compile(r"\b(STL|LDL)(?:\.(?!64|128)\w+)*(?:\.(64|128))?\b")
_TMEM_ALLOC = re.compile(r"tcgen05\.alloc[\w.:]*\s+\[[^\]]+\],\s*(\w+|%\w+)\s*;")


@dataclass(frozen=True)
class Tool:
    """One program: its path, its version and where it was found."""

    name: str
    path: Path
    version: str
    origin: str


@dataclass(frozen=True)
class AssemblerReport:
    """What ptxas -v says about one module."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    barriers: int
    static_smem: int


def nvcc() -> Tool:
    """The CUDA compiler, or a `ToolchainError` that says how to get one."""
    return _nvcc(os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), os.environ.get("PATH"))


@lru_cache(maxsize=8)
def _nvcc(cuda_home: str | None, cuda_path: str | None, path: str | None) -> Tool:
    for variable, root in (("CUDA_HOME", cuda_home), ("CUDA_PATH", cuda_path)):
        if root:
            candidate = Path(root) / "bin" / "nvcc"
            if not candidate.is_file():
                raise ToolchainError(
                    variable,
                    expected="the root of a CUDA toolkit",
                    got=f"{root} without bin/nvcc",
                    fix=f"correct or unset {variable}",
                )
            return _checked_nvcc(candidate, variable)
    if compiler := shutil.which("nvcc", path=path):
        return _checked_nvcc(Path(compiler), "PATH")
    for wheel in wheel_roots():
        if (wheel / "bin" / "nvcc").is_file():
            return _checked_nvcc(wheel / "bin" / "nvcc", "wheel nvidia-cuda-nvcc")
    raise ToolchainError("nvcc", expected=f"nvcc {_NVCC_NEEDED} or newer", got="none found", fix=INSTALL_NVCC)


def _checked_nvcc(path: Path, origin: str) -> Tool:
    version = _version(path)
    numbers = tuple(int(n) for n in version.split(".")[:2]) if version[:1].isdigit() else (0, 0)
    if numbers < MINIMUM_NVCC:
        raise ToolchainError(
            f"nvcc at {path}",
            expected=f"version {_NVCC_NEEDED} or newer",
            got=version or "no version",
            fix=INSTALL_NVCC,
        )
    return Tool("nvcc", path, version, origin)


def host_compiler() -> Tool:
    """The C++ compiler that nvcc preprocesses with."""
    for name in filter(None, (os.environ.get("CXX"), "g++", "c++")):
        if compiler := shutil.which(name):
            return Tool(
                "g++",
                Path(compiler),
                _version(Path(compiler)),
                "CXX" if name == os.environ.get("CXX") else "PATH",
            )
    raise ToolchainError("g++", expected="a C++ compiler", got="none found", fix=INSTALL_CXX)


def nvdisasm() -> Tool:
    """The cubin disassembler."""
    return _binary("nvdisasm", "the CUDA disassembler")


def cuobjdump() -> Tool:
    """The reader of a cubin's resource records."""
    return _binary("cuobjdump", "CUDA's cuobjdump")


def _binary(name: str, what: str) -> Tool:
    """A tool that has a wheel of its own: from that wheel, from PATH, or from nvcc's folder."""
    for root in wheel_roots():
        path = root / "bin" / name
        if path.is_file():
            return Tool(name, path, _version(path), f"wheel nvidia-cuda-{name}")
    if binary := shutil.which(name):
        return Tool(name, Path(binary), _version(Path(binary)), "PATH")
    with contextlib.suppress(ToolchainError):
        beside = Path(os.path.realpath(nvcc().path)).parent / name
        if beside.is_file():
            return Tool(name, beside, _version(beside), "beside nvcc")
    raise ToolchainError(name, expected=what, got="none found", fix=INSTALL_INSPECT)


def wheel_roots() -> list[Path]:
    """`site-packages/nvidia/cu<major>` folders, newest first."""
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or []) if spec else []
    return sorted((root for place in places for root in Path(place).glob("cu[0-9]*")), reverse=True)


def describe() -> list[dict[str, str]]:
    """One row for each tool, for `doctor`: name, version, origin, path, and the fix if it is missing."""
    rows = []
    for name, find in (
        ("nvcc", nvcc),
        ("g++", host_compiler),
        ("nvdisasm", nvdisasm),
        ("cuobjdump", cuobjdump),
    ):
        try:
            tool = find()
            rows.append(
                {
                    "tool": name,
                    "ok": "yes",
                    "version": tool.version,
                    "origin": tool.origin,
                    "path": str(tool.path),
                    "fix": "",
                }
            )
        except ToolchainError as error:
            rows.append(
                {"tool": name, "ok": "no", "version": error.got, "origin": "", "path": "", "fix": error.fix}
            )
    return rows


def cuda_to_ptx(
    source: Path, ptx: Path, arch: str, flags: Sequence[str], *, roots: Sequence[Path] = ()
) -> None:
    """Compile CUDA to PTX that is the same on every machine: its line information is relative to `roots`."""
    host_compiler()
    _run(
        [str(nvcc().path), "--ptx", f"-arch={arch}", *flags, "-o", ptx.name, source.name],
        source.parent,
        source.stem,
    )
    ptx.write_text(without_traces(ptx.read_text(), [source.parent, *roots]))


def ptx_to_cubin(ptx: Path, cubin: Path, arch: str, flags: Sequence[str]) -> AssemblerReport:
    """Assemble PTX through nvcc, which passes flags on to ptxas as it would in a single run."""
    command = [
        str(nvcc().path),
        "--cubin",
        f"-arch={arch}",
        *flags,
        "--ptxas-options=-v",
        "-o",
        str(cubin),
        str(ptx),
    ]
    # ptxas records the age of every source file that it finds relative to its working folder: give it none.
    with tempfile.TemporaryDirectory(dir=ptx.parent) as empty:
        return parse_assembler(_run(command, Path(empty), ptx.stem))


def without_traces(ptx: str, roots: Sequence[Path]) -> str:
    """The PTX without traces of where it was compiled.

    The absolute paths of `.file` directives become relative to the innermost root that contains them. nvcc
    puts a hash of the source's path into the names of internal symbols (as text and in the debug bytes): it
    becomes zero.
    """
    prefixes = sorted({os.path.realpath(r) for r in roots} | {str(r) for r in roots}, key=len, reverse=True)

    def shorten(match: re.Match[str]) -> str:
        path = match.group(2)
        for name in (path, os.path.realpath(path)):
            for prefix in prefixes:
                if name.startswith(prefix + os.sep):
                    return f'{match.group(1)}"{os.path.relpath(name, prefix)}"'
        return f'{match.group(1)}"{os.path.basename(path)}"'

    ptx = re.sub(r'^(\s*\.file\s+\d+\s+)"([^"]*)"(?:\s*,\s*\d+)*', shorten, ptx, flags=re.MULTILINE)
    ptx = _INTERNAL_NAME.sub(r"\g<1>00000000_", ptx)
    return _INTERNAL_BYTES.sub(
        lambda match: match.group(1) + re.sub(r"\d+(?=[,\n])", "48", match.group(2)), ptx
    )


def parse_assembler(log: str) -> AssemblerReport:
    """Registers, spills, stack, barriers and static shared memory from the text of ptxas -v."""
    properties = [tuple(map(int, m.groups())) for m in _PROPERTIES.finditer(log)]
    used = _USED.search(log)
    if used is None or not properties:
        raise CompileError(
            "ptxas",
            expected="a resource report (-v)",
            got=log.strip()[-400:] or "nothing",
            fix="check the nvcc version",
            code=UNFINISHED,
        )
    return AssemblerReport(
        registers=int(used.group(1)),
        spill_stores=sum(p[1] for p in properties),
        spill_loads=sum(p[2] for p in properties),
        stack=max(p[0] for p in properties),
        barriers=int(used.group(2) or 0),
        static_smem=int(used.group(3) or 0),
    )


def sass_counts(cubin: Path) -> dict[str, int]:
    """How often each SASS opcode occurs, by stem; families in `DETAILED` also by full mnemonic."""
    return _counted(_listing(cubin))


def inspect_cubin(cubin: Path) -> tuple[AssemblerReport, dict[str, int]]:
    """Resources and opcode counts of a cubin that came without an assembler's report.

    Spills are estimated: the bytes that one pass over the listing's local-memory instructions moves,
    including accesses to stack arrays.
    """
    usage = _run([str(cuobjdump().path), "-res-usage", cubin.name], cubin.parent, cubin.stem)
    listing = _listing(cubin)
    resources = _RESOURCES.search(usage)
    if resources is None:
        raise CompileError(
            cubin.stem,
            expected="a resource record",
            got=usage.strip()[-400:] or "nothing",
            fix="check the version of cuobjdump",
            code=UNFINISHED,
        )
    moved = Counter[str]()
    for name, width in _LOCAL.findall(listing):
        moved[name] += int(width or 32) // 8
    barriers = re.search(r"SHF_BARRIERS=(\d+)", listing)
    return AssemblerReport(
        registers=int(resources[1]),
        spill_stores=moved["STL"],
        spill_loads=moved["LDL"],
        stack=int(resources[2]),
        barriers=int(barriers[1]) if barriers else 0,
        static_smem=max(0, int(resources[3]) - RESERVED_SMEM),
    ), _counted(listing)


def _listing(cubin: Path) -> str:
    """The SASS of a cubin; refuses a cubin in which ptxas has lost a value."""
    # -ndf skips the dataflow analysis that names the targets of indirect branches: nothing here reads them.
    listing = _run([str(nvdisasm().path), "-c", "-ndf", cubin.name], cubin.parent, cubin.stem)
    if (lost := _lost_predicate(listing)) is not None:
        raise CompileError(
            cubin.stem,
            expected="code that keeps its uniform predicates across setmaxnreg.inc",
            got=f"a value in {lost} that ptxas saves only after USETMAXREG has overwritten it",
            fix="compare less before the setmaxnreg and again after it (a shuffle keeps the two apart)",
            code=LOST,
        )
    return listing


def _lost_predicate(listing: str) -> str | None:
    """The uniform predicate, if any, that is live across USETMAXREG and restored from a copy made too late.

    If all seven are live across a setmaxnreg.inc, ptxas 13.0 frees one for the instruction's result, but
    saves it after the instruction instead of before, so that the result is what it later restores.
    """
    for predicate, until_retry in _TRY_ALLOC.findall(listing):
        results, restored = {predicate}, False
        for saved, mask, written, source in _PREDICATE_MOVES.findall(until_retry):
            if saved and int(mask, 16) != 1 << int(predicate.removeprefix("UP")):
                continue
            place, origin = (saved, predicate) if saved else (written, source)
            restored |= place == predicate
            results = results | {place} if origin in results else results - {place}
        if restored and predicate in results:
            return str(predicate)
    return None


def _counted(listing: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for match in _OPCODE.finditer(listing):
        stem, modifiers = match.groups()
        counts[stem] += 1
        if stem in DETAILED and modifiers:
            counts[stem + modifiers] += 1
    return dict(sorted(counts.items()))


def tmem_columns(ptx: str) -> int:
    """Tensor-memory columns that the kernel allocates: the sum over its `tcgen05.alloc` instructions."""
    total = 0
    for match in _TMEM_ALLOC.finditer(ptx):
        operand = match.group(1)
        if not operand.isdigit():
            moves = re.findall(rf"mov\.[bu]32\s+{re.escape(operand)},\s*(\d+);", ptx[: match.start()])
            operand = moves[-1] if moves else "0"
        total += int(operand)
    return total


def of_the_machine(error: BaseException) -> bool:
    """Whether an exception, or a cause of it, concerns this machine and not what was compiled."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (OSError, MemoryError, ImportError)):
            return True
        if any(text in str(cause) for text in (*_NO_ROOM, *_NO_RESOURCES, _OPTIONS, "std::bad_alloc")):
            return True
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return False


def _run(command: Sequence[str], folder: Path, subject: str) -> str:
    env = {**os.environ, "LC_ALL": "C"}
    for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"):
        env.pop(name, None)  # flags that are in no key
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise ToolchainError(
            command[0], expected="an executable", got=str(error), fix=INSTALL_NVCC
        ) from error
    if done.returncode != 0:
        text = (done.stderr + done.stdout).strip()
        if any(reason in text for reason in _NO_ROOM):
            raise CacheError(
                str(folder), expected="room for the compiler's files", got=text[-300:], fix=FREE_SPACE
            )
        lines = text.splitlines()
        errors = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()] or lines
        killed = done.returncode < 0 or done.returncode >= 128 or "died due to signal" in text
        fix, code = "correct the template; `show --source` prints the module", None
        if killed:
            fix, code = "free memory or lower DSL_KERNELS_JOBS", KILLED
        elif not _DIAGNOSIS.search(text) or any(reason in text for reason in _NO_RESOURCES):
            fix, code = CHECK_MACHINE, UNFINISHED
        raise CompileError(
            subject,
            expected=f"{Path(command[0]).name} {command[1]} to accept it",
            got=f"exit status {done.returncode}: " + " | ".join(errors[:6])[:1500],
            fix=fix,
            code=code,
        )
    return done.stdout + done.stderr


@checked
def version(package: str) -> str | None:
    """The installed version of a Python package, without importing it; None where it is not installed."""
    try:
        return metadata.version(package)
    except (metadata.PackageNotFoundError, ValueError):
        return None


def driver_version() -> str | None:
    """The version of the NVIDIA driver; None where nvidia-smi does not answer."""
    command = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else None


@lru_cache(maxsize=32)
def _version(path: Path) -> str:
    try:
        text = subprocess.run([str(path), "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
    match = re.search(r"\bV(\d+\.\d+\.\d+)", text) or re.search(r"(\d+\.\d+(?:\.\d+)?)", text)
    return match.group(1) if match else ""
