"""The same PTX on a GPU and in the emulator.

    python -m tests.emulator.hardware record FOLDER          # on a Hopper GPU: record what probes write
    python -m tests.emulator.hardware programs               # on a Hopper GPU: run the hand-written programs
    python -m tests.emulator.hardware expect FILE            # anywhere: record what the emulator writes
    python -m tests.emulator.hardware compare FOLDER [FILE]  # print every difference

``launch`` here has the emulator's signature: with ``EMULATOR_TESTS_ON_HARDWARE=1`` pytest runs the layout,
conversion and copy tests, which have independent references, on the GPU itself. Needs numpy and
cuda-bindings.
"""

# ruff: noqa: T201 - a command-line script prints
from __future__ import annotations

import argparse
import ctypes
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ptx_emulator import Interleaving, LaunchError, TensorMap
from ptx_emulator import launch as emulate
from ptx_emulator.arguments import as_array
from ptx_emulator.launch import _parse

from . import kernels
from .probes import Probe, probes

RECORDED = Path(__file__).parent / "recorded_sm90.json"
SECONDS = 10.0  # after which a probe on the GPU counts as hanging
LOST = 2  # times that probes of a group may destroy the context before the rest of the group is skipped

SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3, "128B_atom_32B": 4}
TYPES = {
    "u8": 0, "s8": 0, "e4m3": 0, "e5m2": 0, "u16": 1, "s16": 1, "u32": 2, "s32": 3, "u64": 4, "s64": 5,
    "f16": 6, "f32": 7, "f64": 8, "bf16": 9, "tf32": 11,
}  # fmt: skip


class DriverError(RuntimeError):
    """The CUDA driver refused a call."""


def _ok(result: Any) -> Any:
    error, *values = result
    if int(error) != 0:
        raise DriverError(str(error))
    return values[0] if len(values) == 1 else values


class _Device:
    def __init__(self) -> None:
        from cuda.bindings import driver

        self.driver = driver
        _ok(driver.cuInit(0))
        device = _ok(driver.cuDeviceGet(0))
        _ok(driver.cuCtxSetCurrent(_ok(driver.cuDevicePrimaryCtxRetain(device))))
        name = _ok(driver.cuDeviceGetName(96, device))
        self.name = bytes(name).split(b"\0")[0].decode()
        self.version = int(_ok(driver.cuDriverGetVersion()))


_device: _Device | None = None
_cubins: Path | None = None  # the folder that `assemble` filled


def device() -> _Device:
    """Device 0, opened at first use."""
    global _device
    _device = _device or _Device()
    return _device


def _cubin(ptx: str, folder: Path) -> Path:
    return folder / f"{hashlib.sha256(ptx.encode()).hexdigest()[:24]}.cubin"


def assemble(texts: Iterable[str], folder: Path) -> None:
    """Assemble with ptxas, in parallel; without ptxas the driver assembles each text when it is loaded."""
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        return

    def one(ptx: str) -> None:
        source = _cubin(ptx, folder).with_suffix(".ptx")
        source.write_text(ptx)
        command = [ptxas, "-arch=sm_90a", "-o", str(_cubin(ptx, folder)), str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(done.stderr)

    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, dict.fromkeys(texts)))


@functools.lru_cache(maxsize=64)
def _loaded(ptx: str) -> Any:
    d = device().driver
    if _cubins is not None and (file := _cubin(ptx, _cubins)).exists():
        return _ok(d.cuModuleLoadData(file.read_bytes()))
    return _ok(d.cuModuleLoadData(ptx.encode() + b"\0"))


def launch(
    ptx: str,
    grid: Sequence[int] | int,
    block: Sequence[int] | int,
    args: Sequence[Any] = (),
    *,
    dynamic_smem: int = 0,
    cluster: Sequence[int] | int | None = None,
    **_: object,
) -> None:
    """Run the kernel on device 0; arrays are copied in before and out after it. Raises DriverError."""
    module = _parse(ptx)
    if not module.target.startswith("sm_90"):
        import pytest

        pytest.skip("this probe is not for a Hopper GPU")
    d = device().driver
    loaded = _loaded(ptx)
    entry = next(iter(module.entries.values()))
    function = _ok(d.cuModuleGetFunction(loaded, entry.name.encode()))
    if dynamic_smem:
        attribute = d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _ok(d.cuFuncSetAttribute(function, attribute, dynamic_smem))
    buffers: list[tuple[int, np.ndarray]] = []
    values: list[Any] = []  # keeps what the pointers point to alive until the launch
    pointers: list[int] = []

    def upload(array: np.ndarray) -> int:
        pointer = int(_ok(d.cuMemAlloc(max(array.nbytes, 16))))
        _ok(d.cuMemcpyHtoD(pointer, array.ctypes.data, array.nbytes))
        buffers.append((pointer, array))
        return pointer

    try:
        for p, a in zip(entry.params, args, strict=True):
            if isinstance(a, TensorMap):
                described = as_array(a.array, p.name)
                if described is None or not isinstance(a.array, np.ndarray) or not a.array.flags.c_contiguous:
                    raise LaunchError("only contiguous numpy arrays are described to the driver here")
                encoded = _tensor_map(d, a, described, upload(a.array))
                values.append(ctypes.create_string_buffer(192))  # 128 bytes at a multiple of 64
                pointers.append(ctypes.addressof(values[-1]) + 63 & ~63)
                ctypes.memmove(pointers[-1], int(encoded.getPtr()), 128)
            else:
                x = upload(a) if isinstance(a, np.ndarray) else int(a) & ((1 << 8 * p.size) - 1)
                values.append(ctypes.create_string_buffer(x.to_bytes(p.size, "little"), p.size))
                pointers.append(ctypes.addressof(values[-1]))
        config = d.CUlaunchConfig()
        sizes = [(x,) if isinstance(x, int) else tuple(x) for x in (grid, block, cluster or 1)]
        g, b, c = ((*x, 1, 1)[:3] for x in sizes)
        config.gridDimX, config.gridDimY, config.gridDimZ = g
        config.blockDimX, config.blockDimY, config.blockDimZ = b
        config.sharedMemBytes, config.hStream = dynamic_smem, d.CUstream(0)
        attributes = []
        if c != (1, 1, 1):
            attribute = d.CUlaunchAttribute()
            attribute.id = d.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            value = d.CUlaunchAttributeValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = c
            attribute.value = value
            attributes = [attribute]
        config.attrs, config.numAttrs = attributes, len(attributes)
        parameters = (ctypes.c_void_p * len(pointers))(*pointers)
        _ok(d.cuLaunchKernelEx(config, function, ctypes.addressof(parameters), 0))
        _ok(d.cuCtxSynchronize())
        for pointer, array in buffers:
            _ok(d.cuMemcpyDtoH(array.ctypes.data, pointer, array.nbytes))
    finally:
        for pointer, _array in buffers:
            d.cuMemFree(pointer)


def _tensor_map(d: Any, t: TensorMap, a: Any, pointer: int) -> Any:
    """The emulator's tensor map, encoded by the driver."""
    row = t.row(0, pointer, a, "map")
    rank, base = row[2], row[1]
    dims, strides, box = row[4 : 4 + rank], row[10 : 9 + rank], row[14 : 14 + rank]
    u32, u64 = d.cuuint32_t, d.cuuint64_t
    if t.im2col is not None:
        return _ok(
            d.cuTensorMapEncodeIm2col(
                d.CUtensorMapDataType(TYPES[t.dtype or a.type]), rank, base, [u64(x) for x in dims],
                [u64(x) for x in strides],
                row[29 : 27 + rank], row[32 : 30 + rank], u32(box[0]), u32(row[28]),
                [u32(x) for x in row[19 : 19 + rank]],
                d.CUtensorMapInterleave(0), d.CUtensorMapSwizzle(SWIZZLES[t.swizzle]),
                d.CUtensorMapL2promotion(0),
                d.CUtensorMapFloatOOBfill(int(t.fill == "nan")),
            )
        )  # fmt: skip
    return _ok(
        d.cuTensorMapEncodeTiled(
            d.CUtensorMapDataType(TYPES[t.dtype or a.type]),
            rank,
            base,
            [u64(x) for x in dims],
            [u64(x) for x in strides] or [u64(16)],
            [u32(x) for x in box],
            [u32(1)] * rank,
            d.CUtensorMapInterleave(0),
            d.CUtensorMapSwizzle(SWIZZLES[t.swizzle]),
            d.CUtensorMapL2promotion(0),
            d.CUtensorMapFloatOOBfill(int(t.fill == "nan")),
        )
    )


def outputs(p: Probe) -> list[np.ndarray]:
    """The arrays to compare: all of them, as a stray write may hit an input."""
    return [np.ascontiguousarray(a) for a in p.arrays()]


def digest(arrays: Sequence[np.ndarray]) -> str:
    h = hashlib.sha256()
    for a in arrays:
        h.update(a.tobytes())
    return h.hexdigest()[:20]


def identity(p: Probe) -> str:
    """A hash of the program and its inputs: a recording is only valid for the same ones."""
    h = hashlib.sha256(p.ptx.encode())
    h.update(repr((p.grid, p.block, p.cluster, p.smem)).encode())
    for a in p.args:
        if isinstance(a, TensorMap):
            h.update(repr((a.box, a.swizzle, a.dims, a.strides, a.fill, a.dtype, a.offset)).encode())
        elif not isinstance(a, np.ndarray):
            h.update(repr(a).encode())
    for a in p.arrays():
        h.update(a.tobytes())
    return h.hexdigest()[:20]


def run_emulated(p: Probe) -> str | None:
    """Run a probe in the emulator, in place; returns its refusal or findings, if any."""
    report = emulate(p.ptx, p.grid, p.block, p.args, cluster=p.cluster, dynamic_smem=p.smem, check="report")
    return None if report.ok else str(next(f for f in report.findings if f.error))


def _worker(folder: Path, start: int) -> int:
    """Run the probes from an index on, one file of results each; ends the process if the context is lost."""
    global _cubins
    _cubins = folder / "cubins"
    (folder / "device.json").write_text(json.dumps({"gpu": device().name, "driver": device().version}))
    lost = Counter((folder / "lost").read_text().splitlines())
    for i, p in enumerate(probes()):
        if i < start or lost[p.group] >= LOST:
            continue
        (folder / "current").write_text(str(i))
        try:
            launch(p.ptx, p.grid, p.block, p.args, dynamic_smem=p.smem, cluster=p.cluster)
        except (DriverError, LaunchError) as e:
            (folder / f"{i}.txt").write_text(f"{p.name}: {type(e).__name__}: {e}")
            if int(device().driver.cuCtxSynchronize()[0]) != 0:  # the context is lost
                return 2
            continue
        np.savez(folder / f"{i}.npz", *outputs(p))
    (folder / "current").write_text("done")
    return 0


def record(folder: Path, limit: float) -> int:
    """Run all probes on the GPU; the ones after a hang or a crash run in a new process."""
    folder.mkdir(parents=True, exist_ok=True)
    begin, start = time.monotonic(), 0
    total = len(probes())
    (folder / "lost").touch()
    assemble([p.ptx for p in probes()], folder / "cubins")
    print(f"assembled after {time.monotonic() - begin:.0f} s")
    while start < total:
        (folder / "current").write_text(str(start))
        command = [
            sys.executable,
            "-m",
            "tests.emulator.hardware",
            "worker",
            str(folder),
            "--start",
            str(start),
        ]
        process = subprocess.Popen(command)
        seen, since = "", time.monotonic()
        while process.poll() is None:
            time.sleep(0.05)
            now = (folder / "current").read_text()
            if now != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - since > SECONDS or time.monotonic() - begin > limit:
                process.kill()
                process.wait()
        current = (folder / "current").read_text()
        if current == "done":
            break
        failed = int(current or start)
        with (folder / "lost").open("a") as f:
            f.write(f"{probes()[failed].group}\n")
        if not (folder / f"{failed}.txt").exists():
            (folder / f"{failed}.txt").write_text(
                f"{probes()[failed].name}: the process ended with {process.returncode}"
            )
        start = failed + 1
        if time.monotonic() - begin > limit:
            print(f"stopped after {limit} s at probe {failed} of {total}")
            break
    info = json.loads((folder / "device.json").read_text())
    found: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for i, p in enumerate(probes()):
        entry: dict[str, Any] = {"identity": identity(p)}
        if (folder / f"{i}.npz").exists():
            with np.load(folder / f"{i}.npz") as z:
                written = [z[k] for k in z.files]
            entry["digest"] = digest(written)
            for k, (a, before) in enumerate(zip(written, outputs(p), strict=True)):
                if not np.array_equal(a.view(np.uint8), before.view(np.uint8)):
                    arrays[f"{p.name}/{k}"] = a
        elif (folder / f"{i}.txt").exists():
            entry["failed"] = (folder / f"{i}.txt").read_text()
        else:
            entry["failed"] = "not run"
        found[p.name] = entry
    np.savez_compressed(folder / "results.npz", **arrays)  # type: ignore[arg-type]
    (folder / "results.json").write_text(json.dumps({**info, "probes": found}, indent=1))
    lost = {n: e["failed"] for n, e in found.items() if "failed" in e}
    print(
        f"{info['gpu']}, driver {info['driver']}: {len(found) - len(lost)} of {total} probes ran in "
        f"{time.monotonic() - begin:.0f} s"
    )
    for why, times in Counter(lost.values()).items():
        print(f"  {why}{f' ({times} probes)' if times > 1 else ''}")
    return 0


def run_programs() -> int:
    """Run the tests' hand-written programs on the GPU, each in a process of its own."""
    failed = 0
    for name, (ptx, run) in kernels.PROGRAMS.items():
        if ".target sm_90a" not in ptx:
            continue
        child = os.fork()
        if child == 0:
            kernels.launch = launch  # type: ignore[assignment]
            _, right = run(ptx, Interleaving())
            print(f"{name}: {'right' if right else 'WRONG'}", flush=True)
            os._exit(not right)
        failed += os.waitpid(child, 0)[1] != 0
    return 1 if failed else 0


def expect(file: Path) -> int:
    """Run all probes in the emulator, and record what they write."""
    begin = time.monotonic()
    arrays: dict[str, np.ndarray] = {}
    refused = {}
    for p in probes():
        before = [a.copy() for a in outputs(p)]
        try:
            why = run_emulated(p)
        except Exception as e:
            why = f"{type(e).__name__}: {e}"
        if why:
            refused[p.name] = why
        for k, (a, old) in enumerate(zip(outputs(p), before, strict=True)):
            if not np.array_equal(a.view(np.uint8), old.view(np.uint8)):
                arrays[f"{p.name}/{k}"] = a
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    file.with_suffix(".json").write_text(json.dumps(refused, indent=1))
    print(f"{len(probes())} probes emulated in {time.monotonic() - begin:.0f} s, {len(refused)} refused")
    for name, why in refused.items():
        print(f"  {name}: {why}")
    return 1 if refused else 0


def differences(p: Probe, gpu: Sequence[np.ndarray], emulated: Sequence[np.ndarray]) -> Iterator[str]:
    """One line per differing row of a table, or array; with the sources of a table's row."""
    sources = list(p.arrays()[: len(gpu) - 1]) if p.rows and p.tolerance is None else []
    for k, (x, y) in enumerate(zip(gpu, emulated, strict=True)):
        if p.tolerance is not None:
            if np.array_equal(x.view(np.uint8), y.view(np.uint8)):
                continue
            rows = range(len(p.rows)) if p.rows else (None,)
            for r in rows:
                u, v = (
                    np.asarray(a if r is None else a[r]).view(p.approximate).astype(np.float64).ravel()
                    for a in (x, y)
                )
                same = (u == v) | (np.isnan(u) & np.isnan(v))
                with np.errstate(all="ignore"):
                    gap = np.where(
                        same,
                        0,
                        np.abs(u - v)
                        / (np.maximum(np.abs(u), np.abs(v)) if p.relative else np.nanmax(np.abs(u))),
                    )
                gap = np.where(np.isfinite(gap), gap, np.inf)
                if gap.max() > p.tolerance:
                    i = int(gap.argmax())
                    where = f"{p.name}, {p.rows[r]}" if r is not None else p.name
                    yield (
                        f"{where}: largest difference {gap.max():.3g} at {i}: gpu {u[i]!r}, emulator {v[i]!r}"
                    )
            continue
        if p.rows and x.ndim == 2 and len(x) == len(p.rows):
            for r, label in enumerate(p.rows):
                bad = np.flatnonzero(x[r] != y[r])
                if len(bad):
                    some = "; ".join(
                        f"{' '.join(f'{int(s[i % len(s)]):#x}' for s in sources if s.ndim == 1)} -> gpu "
                        f"{int(x[r][i]):#x} emulator {int(y[r][i]):#x}"
                        for i in bad[:8]
                    )  # fmt: skip
                    yield f"{p.name}, {label}: {len(bad)} of {len(x[r])} differ: {some}"
            continue
        u, v = x.view(np.uint8).ravel(), y.view(np.uint8).ravel()
        bad = np.flatnonzero(u != v)
        if len(bad):
            flat, other, size = x.ravel(), y.ravel(), x.itemsize
            at = np.unique(bad // size)
            some = "; ".join(
                f"{np.unravel_index(i, x.shape)!s} gpu {int(flat[i]):#x} emulator {int(other[i]):#x}"
                for i in at[:8]
            )
            yield f"{p.name}, array {k} {x.shape}: {len(at)} of {x.size} differ: {some}"


def compare(folder: Path, file: Path | None, write: bool) -> int:
    """Print every difference between a recording and the emulator, or its recorded output in a file."""
    recorded = json.loads((folder / "results.json").read_text())
    lines: list[str] = []
    worst: dict[str, float] = {}
    digests: dict[str, Any] = {}
    absent = 0
    with np.load(folder / "results.npz") as gpu:
        kept = np.load(file) if file else None
        for p in probes():
            entry = recorded["probes"].get(p.name, {"failed": "not recorded"})
            if "failed" in entry:
                if entry["failed"] in ("not run", "not recorded"):
                    absent += 1
                elif not p.optional:
                    lines.append(f"{p.name}: {entry['failed']}")
                continue
            if entry["identity"] != identity(p):
                lines.append(f"{p.name}: the probe has changed since it was recorded")
                continue
            before = [a.copy() for a in outputs(p)]
            if kept is None:
                try:
                    why = run_emulated(p)
                except Exception as e:
                    why = f"{type(e).__name__}: {e}"
                if why:
                    lines.append(f"{p.name}: the emulator refuses it: {why}")
                    continue
                emulated = [a.copy() for a in outputs(p)]
            else:
                emulated = [
                    kept[f"{p.name}/{k}"] if f"{p.name}/{k}" in kept.files else a
                    for k, a in enumerate(before)
                ]
            hardware = [
                gpu[f"{p.name}/{k}"] if f"{p.name}/{k}" in gpu.files else a for k, a in enumerate(before)
            ]
            for a, old in zip(outputs(p), before, strict=True):
                a[...] = old
            lines += differences(p, hardware, emulated)
            if p.tolerance is None:
                digests[p.name] = {"identity": entry["identity"], "digest": entry["digest"]}
            else:
                changed = [k for k, a in enumerate(before) if not np.array_equal(a, hardware[k])]
                u, v = (
                    np.concatenate([x[k].view(p.approximate).ravel() for k in changed]).astype(np.float64)
                    for x in (hardware, emulated)
                )
                with np.errstate(all="ignore"):
                    each = np.maximum(np.abs(u), np.abs(v))
                    largest = each if p.relative else np.full_like(u, np.abs(u[np.isfinite(u)]).max())
                    gap = np.where(u == v, 0, np.abs(u - v) / largest)
                worst[p.name] = float(np.nanmax(np.where(np.isfinite(gap), gap, 0)))
    print(
        f"{recorded['gpu']}, driver {recorded['driver']}: {len(digests)} probes compared bit for bit, "
        f"{len(worst)} within a tolerance, {len(lines)} differences"
    )
    for line in lines:
        print(f"  {line}")
    for name, largest_gap in worst.items():
        print(f"  largest difference {largest_gap:.2e} of {name}")
    if write:
        RECORDED.write_text(
            json.dumps({"gpu": recorded["gpu"], "driver": recorded["driver"], "probes": digests}, indent=0)
            + "\n"
        )
    return 1 if lines else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("record", "programs", "expect", "compare", "worker"))
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path("."),
        help="folder of a recording, or file of the emulator's results",
    )
    parser.add_argument("file", type=Path, nargs="?", help="results of `expect`, for compare")
    parser.add_argument("--one", help="record: run this probe alone, in this process")
    parser.add_argument("--start", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=300, help="seconds that recording may take")
    parser.add_argument(
        "--write", action="store_true", help=f"compare: keep the GPU's digests in {RECORDED.name}"
    )
    a = parser.parse_args()
    match a.what:
        case "record" if a.one:
            p = next(p for p in probes() if p.name == a.one)
            launch(p.ptx, p.grid, p.block, p.args, dynamic_smem=p.smem, cluster=p.cluster)
            return 0
        case "record":
            return record(a.folder, a.limit)
        case "programs":
            return run_programs()
        case "worker":
            return _worker(a.folder, a.start)
        case "expect":
            return expect(a.folder)
    return compare(a.folder, a.file, a.write)


if __name__ == "__main__":
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    sys.exit(main())
