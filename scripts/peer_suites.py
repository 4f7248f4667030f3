"""Run a peer's own test suite over `dsl_kernels.compat`: python scripts/peer_suites.py SUITE PATH [--limit S] [--out F].

| SUITE | PATH | tests |
| --- | --- | --- |
| flash_mla | a checkout of deepseek-ai/FlashMLA | tests/test_flash_mla_sparse_decoding.py |
| flash_mla_prefill | the same | tests/test_flash_mla_sparse_prefill.py |
| deep_gemm | a checkout of deepseek-ai/DeepGEMM | tests/test_attention.py, its scores |
| vllm_topk | a checkout of vllm-project/vllm, or its sdist | tests/kernels/test_top_k_per_row.py |
| sgl_topk | a checkout of sgl-project/sglang | sgl-kernel/tests/test_topk.py |

The tests are imported as they are, and the peer need not be installed; nothing of theirs is here. Needs a GPU. A case counts
as passed if the suite's own check says so, and as refused if one of our typed errors says so. What is refused or skipped is
said with its reason.
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
    """Sparse prefill of deepseek-ai/FlashMLA, tests/test_flash_mla_sparse_prefill.py: `out`, `max_logits` and `lse`."""
    suite = _of_flash_mla(root, "test_flash_mla_sparse_prefill")
    for case in _cases_of_main(suite, "testcases"):
        if case.num_runs:
            skipped[TIMED] += 1
        else:
            yield str(case), lambda case=case: bool(suite.run_test(case))


TIMED = "timed by the names of FlashMLA's kernels"


def _of_flash_mla(root: Path, name: str) -> ModuleType:
    """A file of FlashMLA's tests over our functions, with the settings that it runs under."""
    sys.path.insert(0, str(root / "tests"))
    compat.patch("flash_mla")
    suite = importlib.import_module(name)
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("cuda")
    torch.set_float32_matmul_precision("high")
    return suite


def _cases_of_main(suite: ModuleType, name: str) -> list[Any]:
    """What a file gives a name only where it is run: by the assignments of its `if __name__ == "__main__"`, up to that one."""
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
    found: list[Any] = scope[name]
    return found


def deep_gemm(root: Path, skipped: Counter[str]) -> Iterator[Case]:
    """Scores of deepseek-ai/DeepGEMM, tests/test_attention.py, a case of its loops at a time; its timing is left out."""
    package, extension = _module("deep_gemm"), _module("deep_gemm._C")
    package.__path__ = [str(root / "deep_gemm")]
    # Its helpers import names of the extension that these tests do not call.
    vars(extension)["__getattr__"] = _not_here
    vars(package)["get_num_sms"] = lambda: torch.cuda.get_device_properties(0).multi_processor_count
    compat.patch("deep_gemm")
    sys.path.insert(0, str(root / "tests"))
    suite = importlib.import_module("test_attention")
    vars(suite)["bench_kineto"] = lambda *_, **__: (1.0, 1.0)
    for kind, test in (("prefill", suite.test_mqa_logits), ("paged", suite.test_paged_mqa_logits)):
        found: list[tuple[Any, ...]] = []
        vars(suite)["sample_mqa_cases"] = lambda name, cases, found=found: found.extend(cases) or []
        test()
        for case in found:

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
    """What vLLM's tests ask of its platform."""

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
    """A plugin of pytest that keeps the names of tests, or why the last one ended as it did."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.error: BaseException | None = None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.names = [item.nodeid for item in items]

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.excinfo is not None:
            self.error = call.excinfo.value


def _of_pytest(path: Path) -> Iterator[Case]:
    """The tests of a file, which sees no configuration of its project."""
    options = [
        "-q", "--noconftest", "--import-mode=importlib", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir",
        str(path.parent),
    ]  # fmt: skip
    watch = _Watch()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        status = pytest.main([*options, "--collect-only", str(path)], plugins=[watch])
    if status != pytest.ExitCode.OK:
        raise typer.BadParameter(f"{path} cannot be collected:\n{said.getvalue()}")
    for name in watch.names:

        def run(name: str = name) -> bool:
            watch = _Watch()
            # Tests that set it leave it set, and do not expect it of another.
            torch.set_default_device(None)
            status = pytest.main([*options, str(path.parent / name)], plugins=[watch])
            if watch.error is not None:
                raise watch.error
            return status == pytest.ExitCode.OK

        yield name, run


def _module(name: str) -> ModuleType:
    """An empty module in the place of one of a peer."""
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
    name: Annotated[str, typer.Argument(help="One of those above.")],
    root: Annotated[Path, typer.Argument(help="A checkout of the peer.")],
    limit: Annotated[float, typer.Option(help="Begin no case after so many seconds; 0 for none.")] = 0,
    shuffle: Annotated[bool, typer.Option(help="Take the cases in a random order of seed 0.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the counts and the failures here, as JSON.")] = None,
) -> None:
    """Run one suite; status 1 if a case fails."""
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
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                right = run()
        except DslKernelError as error:
            refused[f"{error.subject}: expected {error.expected.splitlines()[0]}"] += 1
            continue
        except pytest.skip.Exception as reason:
            skipped[str(reason)] += 1
            continue
        except (Exception, pytest.fail.Exception) as error:
            right = False
            print(f"{type(error).__name__}: {error}", file=said)
        passed += right
        if not right:
            failures[label] = (said.getvalue().strip() or "without a word").splitlines()[-1]
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
        found: dict[str, Any] = {"suite": name, "gpu": torch.cuda.get_device_name(), "passed": passed}
        out.write_text(
            json.dumps({**found, "failed": failures, "refused": refused, "skipped": skipped}, indent=1)
        )
    raise typer.Exit(bool(failures))


if __name__ == "__main__":
    typer.run(main)
