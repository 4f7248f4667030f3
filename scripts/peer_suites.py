"""Run a peer's test suite over `dsl_kernels.compat`: python scripts/peer_suites.py SUITE PATH [--limit S]
[--out F].

| SUITE | PATH | tests |
| --- | --- | --- |
| flash_mla | a checkout of deepseek-ai/FlashMLA | tests/test_flash_mla_sparse_decoding.py |
| flash_mla_prefill | the same | tests/test_flash_mla_sparse_prefill.py |
| deep_gemm | a checkout of deepseek-ai/DeepGEMM | tests/test_attention.py, its scores |
| vllm_topk | a checkout of vllm-project/vllm, or its sdist | tests/kernels/test_top_k_per_row.py |
| sgl_topk | a checkout of sgl-project/sglang | sgl-kernel/tests/test_topk.py |

The tests are imported from the checkout; the peer need not be installed, and none of its code is copied here.
Needs a GPU. A case passes if the suite's own check says so. It counts as refused if one of our typed errors
is raised. Reasons for refused and skipped cases are printed.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import io
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest
import torch
import typer
from rich.console import Console
from rich.table import Table

from dsl_kernels import compat
from dsl_kernels.errors import DslKernelError

Case = tuple[str, Callable[[], bool]]


def flash_mla(root: Path, skipped: Counter[str]) -> Iterator[Case]:
    """Sparse decode of deepseek-ai/FlashMLA, tests/test_flash_mla_sparse_decoding.py."""
    suite = _of_flash_mla(root, "test_flash_mla_sparse_decoding")
    for raw in suite.gen_testcase():
        case = raw.to_test_param()
        if case.num_runs:
            skipped[TIMED] += 1
        else:
            yield str(raw), lambda case=case: bool(suite.test_flash_mla(case).is_correct)


def flash_mla_prefill(root: Path, skipped: Counter[str]) -> Iterator[Case]:
    """Sparse prefill of deepseek-ai/FlashMLA, tests/test_flash_mla_sparse_prefill.py."""
    suite = _of_flash_mla(root, "test_flash_mla_sparse_prefill")
    for case in _cases_of_main(suite, "testcases"):
        if case.num_runs:
            skipped[TIMED] += 1
        else:
            yield str(case), lambda case=case: bool(suite.run_test(case))


TIMED = "timed by the names of FlashMLA's kernels"


def _of_flash_mla(root: Path, name: str) -> ModuleType:
    """Import a file of FlashMLA's tests over our functions, with the settings that it expects."""
    sys.path.insert(0, str(root / "tests"))
    compat.patch("flash_mla")
    suite = importlib.import_module(name)
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("cuda")
    torch.set_float32_matmul_precision("high")
    return suite


def _cases_of_main(suite: ModuleType, name: str) -> list[Any]:
    """The value of `name` in a file's `if __name__ == "__main__"` block, run up to its assignment."""
    main = next(
        node
        for node in ast.parse(Path(str(suite.__file__)).read_text()).body
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
    )
    scope = dict(vars(suite))
    for node in main.body:
        if isinstance(node, ast.Assign):
            exec(ast.unparse(node), scope)
            if name in scope:
                break
    cases: list[Any] = scope[name]
    return cases


def deep_gemm(root: Path, skipped: Counter[str]) -> Iterator[Case]:
    """Scores of deepseek-ai/DeepGEMM, tests/test_attention.py: each iteration of its loops, untimed."""
    package, extension = _module("deep_gemm"), _module("deep_gemm._C")
    package.__path__ = [str(root / "deep_gemm")]
    # Its helpers import names of the extension, which these tests do not call.
    vars(extension)["__getattr__"] = _not_here
    vars(package)["get_num_sms"] = lambda: torch.cuda.get_device_properties(0).multi_processor_count
    compat.patch("deep_gemm")
    sys.path.insert(0, str(root / "tests"))
    suite = importlib.import_module("test_attention")
    vars(suite)["bench_kineto"] = lambda *_, **__: (1.0, 1.0)
    for kind, test in (("prefill", suite.test_mqa_logits), ("paged", suite.test_paged_mqa_logits)):
        collected: list[tuple[Any, ...]] = []
        vars(suite)["sample_mqa_cases"] = lambda name, cases, into=collected: into.extend(cases) or []
        test()
        for case in collected:

            def run(test: Callable[[], None] = test, case: tuple[Any, ...] = case) -> bool:
                torch.manual_seed(0)
                vars(suite)["sample_mqa_cases"] = lambda name, cases: [case]
                test()
                return True

            yield f"{kind} {case}", run


def vllm_topk(root: Path, skipped: Counter[str]) -> Iterator[Case]:
    """Selection of vllm-project/vllm, tests/kernels/test_top_k_per_row.py."""
    if importlib.util.find_spec("vllm") is None:
        _module("vllm"), _module("vllm.utils")
        vars(_module("vllm.platforms"))["current_platform"] = _Nvidia
        vars(_module("vllm.utils.torch_utils"))["set_random_seed"] = torch.manual_seed
    compat.patch("vllm_topk")
    yield from _of_pytest(root / "tests/kernels/test_top_k_per_row.py")


def sgl_topk(root: Path, skipped: Counter[str]) -> Iterator[Case]:
    """Selection of sgl-project/sglang, sgl-kernel/tests/test_topk.py."""
    compat.patch("sgl_topk")
    yield from _of_pytest(root / "sgl-kernel/tests/test_topk.py")


class _Nvidia:
    """The part of vLLM's platform that its tests call."""

    @staticmethod
    def is_cuda() -> bool:
        return True

    @staticmethod
    def is_rocm() -> bool:
        return False

    @staticmethod
    def has_device_capability(at_least: int) -> bool:
        major, minor = torch.cuda.get_device_capability()
        return major * 10 + minor >= at_least

    @staticmethod
    def is_device_capability_family(family: int) -> bool:
        return torch.cuda.get_device_capability()[0] == family // 10


class _Watch:
    """A pytest plugin that keeps the ids of collected tests, and the exception that ended the last one."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.error: BaseException | None = None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.names = [item.nodeid for item in items]

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.excinfo is not None:
            self.error = call.excinfo.value


def _of_pytest(path: Path) -> Iterator[Case]:
    """The tests of a file, without its project's configuration."""
    options = [
        "-q", "--noconftest", "--import-mode=importlib", "-p", "no:cacheprovider", "-c", os.devnull,
        "--rootdir",
        str(path.parent),
    ]  # fmt: skip
    watch = _Watch()
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = pytest.main([*options, "--collect-only", str(path)], plugins=[watch])
    if status != pytest.ExitCode.OK:
        raise typer.BadParameter(f"{path} cannot be collected:\n{output.getvalue()}")
    for name in watch.names:

        def run(name: str = name) -> bool:
            watch = _Watch()
            # Tests that set the default device neither restore it nor expect one set.
            torch.set_default_device(None)
            status = pytest.main([*options, str(path.parent / name)], plugins=[watch])
            if watch.error is not None:
                raise watch.error
            return status == pytest.ExitCode.OK

        yield name, run


def _module(name: str) -> ModuleType:
    """Put an empty module in the place of one of the peer."""
    sys.modules[name] = made = ModuleType(name)
    parent, _, last = name.rpartition(".")
    if parent:
        vars(sys.modules[parent])[last] = made
    return made


def _not_here(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> None:
        raise NotImplementedError(f"{name} of the peer's extension, which is not loaded")

    return missing


SUITES = {
    "flash_mla": flash_mla,
    "flash_mla_prefill": flash_mla_prefill,
    "deep_gemm": deep_gemm,
    "vllm_topk": vllm_topk,
    "sgl_topk": sgl_topk,
}


def main(
    name: Annotated[str, typer.Argument(help="A suite of the table above.")],
    root: Annotated[Path, typer.Argument(help="A checkout of the peer.")],
    limit: Annotated[float, typer.Option(help="Begin no case after this many seconds; 0: no limit.")] = 0,
    shuffle: Annotated[bool, typer.Option(help="Run the cases in a random order, with seed 0.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write counts and failures to this JSON file.")] = None,
) -> None:
    """Run one suite; exits with 1 if a case fails."""
    if name not in SUITES:
        raise typer.BadParameter(f"{name} is none of {', '.join(SUITES)}")
    skipped: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    cases = list(SUITES[name](root, skipped))
    if shuffle:
        random.Random(0).shuffle(cases)
    failures: dict[str, str] = {}
    passed, begun = 0, time.monotonic()
    for label, run in cases:
        if limit and time.monotonic() - begun > limit:
            skipped["the limit of time"] += 1
            continue
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                right = run()
        except DslKernelError as error:
            refused[f"{error.subject}: expected {error.expected.splitlines()[0]}"] += 1
            continue
        except pytest.skip.Exception as reason:
            skipped[str(reason)] += 1
            continue
        except (Exception, pytest.fail.Exception) as error:
            right = False
            print(f"{type(error).__name__}: {error}", file=output)
        passed += right
        if not right:
            failures[label] = (output.getvalue().strip() or "without a word").splitlines()[-1]
    table = Table("suite", "passed", "failed", "refused", "skipped")
    table.add_row(name, str(passed), *(str(n) for n in (len(failures), refused.total(), skipped.total())))
    console = Console()
    console.print(table)
    for what, counts in (("refused", refused), ("skipped", skipped)):
        for why, count in counts.most_common():
            console.print(f"{count} {what}: {why}", markup=False)
    for label, why in list(failures.items())[:20]:
        console.print(f"failed: {label}\n  {why}", markup=False)
    if out is not None:
        summary: dict[str, Any] = {"suite": name, "gpu": torch.cuda.get_device_name(), "passed": passed}
        out.write_text(
            json.dumps({**summary, "failed": failures, "refused": refused, "skipped": skipped}, indent=1)
        )
    raise typer.Exit(bool(failures))


if __name__ == "__main__":
    typer.run(main)
