"""Hostile rows through the top-k of every installed engine: wrong rows, order, differences of a repeat.

    python benchmarks/topk_exactness.py                  # without a GPU, ours and torch's on the CPU
    python benchmarks/topk_exactness.py --engine dsl_kernels --engine "torch.topk, masked" --out exact.json

A row is wrong if the scores of its ids are not the k largest of its columns, if an id repeats or is outside
the row, or if there are fewer ids than the row has. Which of equal scores an engine selects is not an error;
the table says which. NaN counts as larger than all numbers, as in torch.topk. Columns after the end of a row
are NaN or infinite. torch.topk gets rows whose ends are masked with -inf, as in the torch backends of vLLM
and SGLang, and therefore may select masked columns as scores of -inf.

The reference of this project, a stable sort of each row, is listed beside the engines. TileLang's selector is
an example in its repository and not in its wheel: put that checkout's examples/deepseek_v32 into PYTHONPATH.
DeepGEMM has no top-k.

Each engine runs in a process of its own, so one that crashes or breaks its CUDA context does not affect the
others. Engines that are not installed are listed with the reason. The tables are Markdown.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dsl_kernels_lab.oracles.topk_selector import draw

Select = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""(scores [rows, columns], lengths [rows], k) to ids [rows, k], with -1 after the last id."""

LINE = "topk_exactness "
"""Prefix of the line by which a child reports its results."""


SIZES = {"rows": (16, 6), "columns": (131072, 5000), "k": (2048, 512), "repeat": (10, 2)}
"""Default sizes on a GPU, and on the CPU, where the interpreter runs ours."""


class AbsentError(Exception):
    """An engine that is not installed, with the reason."""


def ours(executor: str | None) -> tuple[str, Select]:
    import dsl_kernels
    from dsl_kernels import ops

    return dsl_kernels.__version__, lambda scores, lengths, k: ops.topk_selector(
        scores, lengths, k, executor=executor
    )


def reference(executor: str | None) -> tuple[str, Select]:
    import dsl_kernels
    from dsl_kernels_lab import oracles

    problem = oracles.get("topk_selector")

    def select(scores: torch.Tensor, lengths: torch.Tensor, k: int) -> torch.Tensor:
        whole = {"logits": scores, "row_starts": torch.zeros_like(lengths), "row_ends": lengths}
        form = {**whole, "k": k, "page_size": 0, "absolute": 0, "next_n": 1}
        return problem.reference("default", form)["indices"]

    return dsl_kernels.__version__, select


def torch_topk(executor: str | None) -> tuple[str, Select]:
    def select(scores: torch.Tensor, lengths: torch.Tensor, k: int) -> torch.Tensor:
        outside = torch.arange(scores.shape[1], device=scores.device) >= lengths[:, None]
        ids = scores.masked_fill(outside, -torch.inf).topk(k, dim=1).indices.int()
        # Masked columns that were selected are not ids of the row: they become -1, at the end.
        kept = ids < lengths[:, None]
        order = (~kept).int().argsort(dim=1, stable=True)
        return torch.where(kept, ids, -1).gather(1, order)

    return torch.__version__, select


def vllm_op(name: str) -> Callable[[str | None], tuple[str, Select]]:
    def load(executor: str | None) -> tuple[str, Select]:
        version = _import("vllm", "vllm._custom_ops")
        op = getattr(torch.ops._C, name, None)
        if op is None:
            raise AbsentError(f"vllm {version} has no {name} here")

        def select(scores: torch.Tensor, lengths: torch.Tensor, k: int) -> torch.Tensor:
            ids = torch.empty(len(scores), k, dtype=torch.int32, device=scores.device)
            if name == "top_k_per_row_decode":
                op(scores, 1, lengths, ids, len(scores), *scores.stride(), k)
            elif name == "top_k_per_row_prefill":
                op(scores, torch.zeros_like(lengths), lengths, ids, len(scores), *scores.stride(), k)
            else:
                scratch = torch.empty(1 << 20, dtype=torch.uint8, device=scores.device)
                op(scores, lengths, ids, scratch, k, scores.shape[1])
            return ids

        return version, select

    return load


def sgl_fast_topk(executor: str | None) -> tuple[str, Select]:
    version = _import("sglang-kernel", "sgl_kernel")
    from sgl_kernel import fast_topk_v2  # type: ignore[import-not-found]

    return version, lambda scores, lengths, k: fast_topk_v2(scores, lengths, k)


def flashinfer_ragged(deterministic: bool) -> Callable[[str | None], tuple[str, Select]]:
    def load(executor: str | None) -> tuple[str, Select]:
        version = _import("flashinfer-python", "flashinfer")
        import flashinfer  # type: ignore[import-not-found]

        return version, lambda scores, lengths, k: flashinfer.top_k_ragged_transform(
            scores, torch.zeros_like(lengths), lengths, k, deterministic=deterministic
        )

    return load


def deep_select(executor: str | None) -> tuple[str, Select]:
    version = _import("vllm", "vllm._deepselect_C")
    layer = importlib.import_module("vllm.model_executor.layers.indexer_topk")
    return version, lambda scores, lengths, k: layer.deep_select_topk(scores, k, end=lengths)


def tilelang_example(executor: str | None) -> tuple[str, Select]:
    version = _import("tilelang", "topk_selector")
    selector = getattr(importlib.import_module("topk_selector"), "tl_topk", None)
    if selector is None:
        raise AbsentError(
            "topk_selector has no tl_topk: it is not the module of TileLang's examples/deepseek_v32"
        )

    def select(scores: torch.Tensor, lengths: torch.Tensor, k: int) -> torch.Tensor:
        ids = selector(scores, torch.zeros_like(lengths), lengths, k)
        # The example does not support rows of fewer than k columns, and leaves zeros there.
        return torch.where(torch.arange(k, device=ids.device) < lengths[:, None], ids, -1)

    return version, select


ENGINES: dict[str, Callable[[str | None], tuple[str, Select]]] = {
    "dsl_kernels": ours,
    "reference": reference,
    "torch.topk, masked": torch_topk,
    "vllm top_k_per_row_decode": vllm_op("top_k_per_row_decode"),
    "vllm top_k_per_row_prefill": vllm_op("top_k_per_row_prefill"),
    "vllm persistent_topk": vllm_op("persistent_topk"),
    "vllm cooperative_topk": vllm_op("cooperative_topk"),
    "vllm DeepSelect": deep_select,
    "sglang fast_topk_v2": sgl_fast_topk,
    "flashinfer top_k_ragged_transform": flashinfer_ragged(False),
    "flashinfer, deterministic": flashinfer_ragged(True),
    "tilelang example": tilelang_example,
}


def _import(package: str, module: str) -> str:
    """Import a module; returns the version of its package.

    Raises:
        AbsentError: it cannot be imported.
    """
    try:
        importlib.import_module(module)
        return importlib.metadata.version(package)
    except Exception as error:
        raise AbsentError(f"{module} does not import: {type(error).__name__}: {error}") from error


def scores_of(kind: str, rows: int, columns: int, k: int, generator: torch.Generator) -> torch.Tensor:
    """Scores of a kind: one of the problem's `draw`, or one of two that scoring itself produces."""
    normal = draw("normal", rows, columns, generator)
    if kind == "plateau":
        # ReLU leaves fewer than k scores above a plateau of exact zeros.
        kept = normal.abs() > normal.abs().quantile(max(0.0, 1 - 0.5 * k / columns), dim=1, keepdim=True)
        return torch.where(kept, normal.abs(), 0.0)
    if kind == "huge":
        return normal.sign() * 10.0 ** (normal * 15).clamp(-37, 37)
    return draw(kind, rows, columns, generator)


KINDS = (
    "normal", "ties", "plateau", "zeros", "equal", "tight", "bucket", "huge", "outlier", "negative",
    "specials",
    "ascending", "descending",
)  # fmt: skip


def cases(
    rows: int, columns: int, k: int, seed: int, device: str
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Each kind of scores, with rows of many lengths; after each row are NaN and infinities."""
    for number, kind in enumerate(KINDS):
        generator = torch.Generator().manual_seed(seed + number)
        scores = scores_of(kind, rows, columns, k, generator)
        lengths = torch.full((rows,), columns, dtype=torch.int32)
        short = (columns - 1, k + 1, k, k - 1, 1, 0)
        lengths[1::2] = torch.tensor([short[i % len(short)] for i in range(rows // 2)], dtype=torch.int32)
        outside = torch.arange(columns) >= lengths[:, None]
        garbage = torch.where(torch.rand(rows, columns, generator=generator) < 0.5, torch.nan, torch.inf)
        yield kind, torch.where(outside, garbage, scores).to(device), lengths.to(device)


def largest(scores: torch.Tensor, lengths: torch.Tensor, k: int) -> torch.Tensor:
    """Ascending positions of the k largest of each row, of equal ones the lower positions; then -1."""
    ids = torch.full((len(scores), k), -1, dtype=torch.int32)
    for row, n in enumerate(lengths.tolist()):
        # Adding zero turns -0 into 0, so that the two are equal, as for torch.topk.
        order = torch.sort(scores[row, :n].cpu() + 0.0, descending=True, stable=True).indices
        ids[row, : min(k, n)] = order[:k].sort().values.int()
    return ids


def judge(
    scores: torch.Tensor, lengths: torch.Tensor, ids: torch.Tensor, expected: torch.Tensor
) -> dict[str, Any]:
    """Judge the ids of a case.

    Returns:
        rows and wrong: counts; ascending and descending: whether every right row is in that order, of
        positions and of scores; lower: whether every right row has the lower positions of equal scores.
    """
    result: dict[str, Any] = {
        "rows": len(ids),
        "wrong": 0,
        "ascending": True,
        "descending": True,
        "lower": True,
    }
    for row, got, wanted in zip(scores.cpu(), ids.cpu(), expected, strict=True):
        want = wanted[wanted >= 0].long()
        have = got[: len(want)].long()
        right = bool((got[len(want) :] == -1).all()) and bool(((have >= 0) & (have < len(row))).all())
        if not right or len(have.unique()) != len(want) or not _same_scores(row[have], row[want]):
            result["wrong"] += 1
            continue
        result["ascending"] &= bool((have.diff() > 0).all())
        result["descending"] &= _same(row[have], row[have].sort(descending=True).values)
        result["lower"] &= torch.equal(have.sort().values, want)
    return result


def _same_scores(a: torch.Tensor, b: torch.Tensor) -> bool:
    return _same(a.sort(descending=True).values, b.sort(descending=True).values)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one engine over all cases, in this process."""
    try:
        version, select = ENGINES[name](options.executor)
    except AbsentError as error:
        return {"engine": name, "absent": str(error)}
    result: dict[str, Any] = {"engine": name, "version": version, "cases": {}}
    for kind, scores, lengths in cases(
        options.rows, options.columns, options.k, options.seed, options.device
    ):
        expected = largest(scores, lengths, options.k)
        try:
            # A copy, as some engines write into their scores.
            runs = [select(scores.clone(), lengths.clone(), options.k).cpu() for _ in range(options.repeat)]
        except Exception as error:
            result["cases"][kind] = {"error": (str(error).strip() or type(error).__name__).splitlines()[0]}
            continue
        sets = [ids.sort(dim=1).values for ids in runs]
        result["cases"][kind] = {
            **judge(scores, lengths, runs[0], expected),
            "other_sets": sum(not torch.equal(each, sets[0]) for each in sets[1:]),
            "other_order": sum(not torch.equal(each, runs[0]) for each in runs[1:]),
        }
    return result


def apart(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one engine over all cases, in a process of its own."""
    command = [sys.executable, __file__, "--child", name]
    for option in ("rows", "columns", "k", "repeat", "seed", "device"):
        command += [f"--{option}", str(getattr(options, option))]
    if options.executor:
        command += ["--executor", options.executor]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith(LINE)]
    if not lines:
        last = (done.stderr.strip() or "nothing").splitlines()[-1]
        return {"engine": name, "absent": f"its process ended with status {done.returncode}: {last}"}
    result: dict[str, Any] = json.loads(lines[-1].removeprefix(LINE))
    return result


def tables(results: list[dict[str, Any]], repeat: int) -> str:
    """Wrong rows by kind of scores, the behaviour of each engine, and the engines that are not installed."""
    here = [result for result in results if "cases" in result]
    lines = ["| scores | " + " | ".join(r["engine"] for r in here) + " |", "| --- |" + " --- |" * len(here)]
    for kind in KINDS:
        cells = [_cell(result["cases"][kind]) for result in here]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    head = "| engine | version | wrong rows | order of ids | of equal scores | repeats that differ, of "
    head += f"{(repeat - 1) * len(KINDS)}: ids, order |"
    lines += ["", head, "| --- | --- | --- | --- | --- | --- |"]
    for result in here:
        ran = [case for case in result["cases"].values() if "error" not in case]
        total = {
            key: sum(case[key] for case in ran) for key in ("wrong", "rows", "other_sets", "other_order")
        }
        every = {
            key: bool(ran) and all(case[key] for case in ran) for key in ("ascending", "descending", "lower")
        }
        order = "ascending" if every["ascending"] else "by score" if every["descending"] else "any"
        cells = [
            result["engine"], result["version"], f"{total['wrong']} of {total['rows']}", order,
            "the lower" if every["lower"] else "any", f"{total['other_sets']}, {total['other_order']}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *(f"{r['engine']} is not here: {r['absent']}" for r in results if "absent" in r)]
    return "\n".join(lines)


def _cell(case: dict[str, Any]) -> str:
    return case["error"].replace("|", "/") if "error" in case else f"{case['wrong']} of {case['rows']}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--executor", help="executor of dsl_kernels on the CPU: emulator, or interpreter (the default there)"
    )
    for name, (on_gpu, on_cpu) in SIZES.items():
        parser.add_argument(f"--{name}", type=int, help=f"{on_gpu} by default, {on_cpu} on the CPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", action="append", choices=list(ENGINES), help="all by default")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    parser.add_argument("--child", choices=list(ENGINES), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for name, sizes in SIZES.items():
        if getattr(options, name) is None:
            setattr(options, name, sizes[options.device == "cpu"])
    if not 2 <= options.k < options.columns or options.rows < 1 or options.repeat < 1:
        parser.error("expected 2 <= k < columns, and at least one row and one run")
    if options.device == "cpu":
        options.executor = options.executor or "interpreter"
    if options.child:
        print(LINE + json.dumps(run(options.child, options)))
        return
    results = [apart(name, options) for name in options.engine or ENGINES]
    where = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    print(f"{where}, rows of {options.columns}, k = {options.k}\n")
    print(tables(results, options.repeat))
    if options.out:
        options.out.write_text(json.dumps({"where": where, "results": results}, indent=1))


if __name__ == "__main__":
    main()
