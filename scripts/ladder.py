"""What README.md and docs/ladder.md show of examples/: excerpts, printed modules and README's times."""

from __future__ import annotations

import ast
from pathlib import Path

import walkthrough

from codegen.sketch import Sketch, sketches
from dsl_kernels_lab.timing import results

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
# For each rung, the functions that its section of the page shows.
RUNGS = {
    "row_softmax": ("declare", "exponentials", "weigh"),
    "ring": ("declare", "load", "add"),
    "wgmma": ("declare", "multiply"),
    "attention": ("online_softmax", "attend"),
    "cluster": ("load",),
    "tcgen05": ("declare", "multiply", "write"),
}
# The kernel of README.md, and the functions that README.md shows of it and of its module in CuTe DSL.
SHOWN, FUNCTIONS = "ring", ("load", "add")
GPU = "NVIDIA H200"
# Rows of README's table of times: its words, and the section, operation and point of the recorded row.
TIMES = (
    (
        "scoring, 16 sequences of 32K tokens",
        "scoring lightning_indexer decode b=16 len=32768 heads=64 next_n=1",
    ),
    ("selection, 2048 of 32K, 64 rows", "selection topk_selector default rows=64 len=32768 k=2048"),
    ("attention, bf16, 64 queries of 16 heads", "attention sparse_mla bf16 t=64 heads=16 pages=4096"),
    (
        "dense attention, fp16, causal, 4 x 4096, 64 heads",
        "dense gqa_forward fp16 b=4 sq=4096 skv=4096 heads=64 kv_heads=8 dim=128 causal=1",
    ),
)


def sketch(rung: str) -> Sketch:
    (only,) = sketches(EXAMPLES / f"{rung}.py")
    return only


def excerpt(rung: str) -> str:
    """Functions of an example, in its order."""
    return walkthrough.excerpt(EXAMPLES / f"{rung}.py", *RUNGS[rung])


def kernel() -> str:
    """The bodies that README.md shows."""
    return walkthrough.excerpt(EXAMPLES / f"{SHOWN}.py", *FUNCTIONS)


def printed(dsl: str = "cutedsl") -> str:
    """The same functions in the module printed for a DSL."""
    source = sketch(SHOWN).source(dsl)
    lines = source.splitlines()
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    parts = (functions[name] for name in FUNCTIONS)
    return "\n\n\n".join("\n".join(lines[f.decorator_list[0].lineno - 1 : f.end_lineno]) for f in parts)


def times() -> str:
    """Our times beside those of the fastest peer, of one run, as a Markdown table.

    Raises:
        LookupError: the recorded results of `GPU` lack a row, or a peer in a row.
    """
    recorded = results.read(results.path_of(GPU, ROOT))
    by_key = {row.key: row for row in recorded.rows} if recorded else {}
    rows = ["| | dsl_kernels | fastest peer | |", "| --- | --- | --- | --- |"]
    for title, key in TIMES:
        row = by_key.get(key)
        if recorded is None or row is None or row.fastest is None:
            raise LookupError(
                f"{key}: expected a row with a peer in the results of {GPU}; run `bench --record`"
            )
        rows.append(f"| {title} | {row.us:.1f} | {row.fastest.us:.1f} | {row.fastest.name} |")
    taken = f"Microseconds on an {GPU}, {recorded.runs[0].date}, dsl_kernels at {recorded.commit[:12]}"
    page = f"docs/results_{results.short_name(GPU)}.md"
    return "\n".join(
        [
            *rows,
            "",
            f"{taken}: ours and the peers in turns, every row checked before it was timed ([all "
            f"rows]({page})).",
        ]
    )
