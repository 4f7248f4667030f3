"""List a chip's hardware counters by name, as NVIDIA's host library reports them. Needs no GPU and no driver.

    pip download --no-deps nvidia-cuda-cupti==13.0.85 && unzip nvidia_cuda_cupti-*.whl
    python scripts/metric_catalogue.py nvidia/cu13/lib/libnvperf_host.so

Writes tests/unit/data/metrics_<chip>.txt.xz: one line per base metric, "<kind> <name>". Only names are kept.
The structures are those of the wheel's nvperf_host.h and nvperf_cuda_host.h; the first field of each is its
own size.
"""

from __future__ import annotations

import argparse
import ctypes
import lzma
from pathlib import Path
from typing import Any

CHIPS = ("GH100", "GB100")
KINDS = ("counter", "ratio", "throughput")
FOLDER = Path(__file__).resolve().parent.parent / "tests" / "unit" / "data"

POINTER, SIZE, TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p


def called(library: ctypes.CDLL, function: str, **values: Any) -> dict[str, Any]:
    """Call a function of the library with its structure, laid out by `FIELDS`; returns the fields it left."""
    fields = [("structSize", SIZE), ("pPriv", POINTER), *FIELDS[function]]
    kind = type(function, (ctypes.Structure,), {"_fields_": fields})
    parameters = kind(**values)
    last = getattr(kind, fields[-1][0])
    parameters.structSize = last.offset + last.size
    if status := getattr(library, f"NVPW_{function}")(ctypes.byref(parameters)):
        raise SystemExit(f"NVPW_{function} returned {status}")
    return {name: getattr(parameters, name) for name, _ in fields}


FIELDS: dict[str, list[tuple[str, Any]]] = {
    "InitializeHost": [],
    "CUDA_MetricsEvaluator_CalculateScratchBufferSize": [
        ("pChipName", TEXT),
        ("pCounterAvailabilityImage", POINTER),
        ("scratchBufferSize", SIZE),
    ],
    "CUDA_MetricsEvaluator_Initialize": [
        ("pScratchBuffer", POINTER),
        ("scratchBufferSize", SIZE),
        ("pChipName", TEXT),
        ("pCounterAvailabilityImage", POINTER),
        ("pCounterDataImage", POINTER),
        ("counterDataImageSize", SIZE),
        ("pMetricsEvaluator", POINTER),
    ],
    "MetricsEvaluator_GetMetricNames": [
        ("pMetricsEvaluator", POINTER),
        ("metricType", ctypes.c_uint8),
        ("pMetricNames", POINTER),
        ("pMetricNameBeginIndices", ctypes.POINTER(SIZE)),
        ("numMetrics", SIZE),
    ],
}


def names(library: ctypes.CDLL, chip: str) -> list[str]:
    """ "<kind> <name>" of every base metric of a chip, sorted."""
    text = chip.encode()
    size = called(library, "CUDA_MetricsEvaluator_CalculateScratchBufferSize", pChipName=text)[
        "scratchBufferSize"
    ]
    scratch = ctypes.create_string_buffer(size)
    evaluator = called(
        library,
        "CUDA_MetricsEvaluator_Initialize",
        pScratchBuffer=ctypes.addressof(scratch),
        scratchBufferSize=size,
        pChipName=text,
    )["pMetricsEvaluator"]
    lines = []
    for index, kind in enumerate(KINDS):
        answer = called(
            library, "MetricsEvaluator_GetMetricNames", pMetricsEvaluator=evaluator, metricType=index
        )
        for item in range(answer["numMetrics"]):
            at = answer["pMetricNames"] + answer["pMetricNameBeginIndices"][item]
            lines.append(f"{kind} {ctypes.string_at(at).decode()}")
    return sorted(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", help="libnvperf_host.so of the wheel nvidia-cuda-cupti or ncu-report")
    library = ctypes.CDLL(parser.parse_args().library)
    called(library, "InitializeHost")
    for chip in CHIPS:
        listed = names(library, chip)
        path = FOLDER / f"metrics_{chip.lower()}.txt.xz"
        path.write_bytes(lzma.compress(("\n".join(listed) + "\n").encode(), preset=9))
        print(f"{path.name}: {len(listed)} names, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
