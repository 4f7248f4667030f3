"""What README.md and docs/ladder.md show of examples/: excerpts, what a DSL gets of them, pictures; and README's times."""

from __future__ import annotations

import ast
from pathlib import Path

import walkthrough

from codegen.sketch import Sketch, sketches
from dsl_kernels.timing import report

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
# Of each rung, from the first on, what its part of the page shows.
RUNGS = {
    "row_softmax": ("declare", "exponentials", "weigh"),
    "ring": ("declare", "load", "add"),
    "wgmma": ("declare", "multiply"),
    "attention": ("online_softmax", "attend"),
    "cluster": ("load",),
    "tcgen05": ("declare", "multiply", "write"),
}
# The kernel that README.md shows, with what CuTe DSL gets of it.
SHOWN, FUNCTIONS = "ring", ("load", "add")
GPU = "NVIDIA H200"
# README's times: what it says of a point, and the point as benchmarks name it.
TIMES = (
    ("scoring, 16 sequences of 32K tokens", "lightning_indexer", "decode", {"b": 16, "len": 32768, "heads": 64}),
    ("selection, 2048 of 32K, 64 rows", "topk_selector", "default", {"rows": 64, "len": 32768, "k": 2048}),
    ("attention, bf16, 64 queries of 16 heads", "sparse_mla", "bf16", {"t": 64, "heads": 16, "pages": 4096}),
    ("attention, fp8, 128 queries of 128 heads", "sparse_mla", "fp8", {"t": 128, "heads": 128, "pages": 4096}),
)  # fmt: skip


def sketch(rung: str) -> Sketch:
    (found,) = sketches(EXAMPLES / f"{rung}.py")
    return found


def excerpt(rung: str) -> str:
    """Functions of an example, in its order."""
    return walkthrough.excerpt(EXAMPLES / f"{rung}.py", *RUNGS[rung])


def kernel() -> str:
    """The bodies that README.md shows."""
    return walkthrough.excerpt(EXAMPLES / f"{SHOWN}.py", *FUNCTIONS)


def printed(dsl: str = "cutedsl") -> str:
    """The same functions in the module that a DSL gets."""
    source = sketch(SHOWN).source(dsl)
    lines = source.splitlines()
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    parts = (functions[name] for name in FUNCTIONS)
    return "\n\n\n".join("\n".join(lines[f.decorator_list[0].lineno - 1 : f.end_lineno]) for f in parts)


def times() -> str:
    """Ours beside the fastest peer's, of one run."""
    peers = report.peers_of(GPU)
    rows = ["| | dsl_kernels | fastest peer | |", "| --- | --- | --- | --- |"]
    for title, op, form, sizes in TIMES:
        peer = peers.of({"op": op, "form": form, **sizes})
        if peer is not None and peer.ours_us is not None:
            rows.append(f"| {title} | {peer.ours_us:.1f} | {peer.us:.1f} | {peer.peer} |")
    return "\n".join([*rows, "", f"Microseconds on {peers.source} ({peers.ours})."])
