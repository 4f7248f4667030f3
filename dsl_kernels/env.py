"""A typed table of every environment variable that the project reads, at call time, never at import."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ._discover import package_names
from .arguments import is_path, shown
from .errors import CacheError, InvalidArgumentError, UnknownNameError, did_you_mean

T = TypeVar("T")


@dataclass(frozen=True)
class EnvVar(Generic[T]):
    """One variable: its name, how its text becomes a value, the default and what it does."""

    name: str
    parse: Callable[[str], T]
    default: T
    doc: str
    expected: str

    def get(self) -> T:
        text = os.environ.get(self.name, "")
        if text == "":
            return self.default
        try:
            return self.parse(text)
        except (ValueError, RuntimeError):  # RuntimeError: a tilde without a home directory
            raise InvalidArgumentError(
                self.name,
                expected=self.expected,
                got=shown(text),
                fix=f"unset {self.name} or give {self.expected}",
            ) from None


def _flag(text: str) -> bool:
    lowered = text.lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise ValueError(text)


def _forced(text: str) -> dict[str, str]:
    operations = package_names([str(Path(__file__).with_name("kernels"))], "problem")
    pairs = [item.split("=", 1) for item in text.split(",") if item.strip()]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(text)
    forced = {op.strip(): variant.strip() for op, variant in pairs}
    if unknown := [op for op in forced if op not in operations]:
        raise UnknownNameError(
            "DSL_KERNELS_FORCE",
            expected="operations of the library",
            got=repr(unknown[0]),
            fix=did_you_mean(unknown[0], operations),
        )
    return forced


def _positive(text: str) -> int:
    value = int(text)
    if not 1 <= value < 2**31:
        raise ValueError(text)
    return value


def _folder(text: str) -> Path:
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:  # "~name" of an unknown user, or no home directory at all
        raise ValueError(text) from error
    if not is_path(str(path)):
        raise ValueError(text)
    return path


def watch(*variables: EnvVar[Any]) -> Callable[[], tuple[object, ...]]:
    """A function that returns the variables' raw text, by which every call of an op notices a change.

    `os.environ` takes almost a microsecond to encode the name and decode the value at each access, so this
    reads the dictionary below it.
    """
    raw: Mapping[Any, object] = getattr(os.environ, "_data", os.environ)
    encode: Callable[[str], Any] = os.environ.encodekey if raw is not os.environ else str
    keys = [encode(variable.name) for variable in variables]
    return lambda: tuple(map(raw.get, keys))


CACHE_DIR = EnvVar[Path | None](
    "DSL_KERNELS_CACHE_DIR",
    _folder,
    None,
    "Root of every cache (artifacts, the DSLs' own caches, the emulator's core); "
    "the platform's user cache by default.",
    "a folder",
)
GENERATED_DIR = EnvVar[Path | None](
    "DSL_KERNELS_GENERATED_DIR",
    _folder,
    None,
    "Folder with a manifest.json and generated modules, instead of the packaged set.",
    "a folder that holds manifest.json",
)
BUNDLE_DIR = EnvVar[Path | None](
    "DSL_KERNELS_BUNDLE_DIR",
    _folder,
    None,
    "Folder of compiled variants (`bundle write`) that is looked up before the cache.",
    "a folder that holds bundle.json",
)
TUNED_DIR = EnvVar[Path | None](
    "DSL_KERNELS_TUNED_DIR",
    _folder,
    None,
    "Folder of the user's own tuned tables (`tune`), read before the shipped ones; "
    "the platform's user data by default.",
    "a folder",
)
DISABLE_JIT = EnvVar(
    "DSL_KERNELS_DISABLE_JIT",
    _flag,
    False,
    "Never compile at run time: a missing artifact is an error.",
    "0 or 1",
)
FORCE = EnvVar[dict[str, str]](
    "DSL_KERNELS_FORCE",
    _forced,
    {},
    "Override selection, by operation: `sparse_mla=<variant id>,topk_selector=<variant id>`.",
    "op=variant pairs separated by commas",
)
EXECUTOR = EnvVar(
    "DSL_KERNELS_EXECUTOR",
    str,
    "",
    "Executor for ops that name none: cuda, interpreter or emulator. "
    "Default: cuda for CUDA tensors, else an error.",
    "cuda, interpreter or emulator",
)
CHECK_VALUES = EnvVar(
    "DSL_KERNELS_CHECK_VALUES",
    _flag,
    False,
    "Read index and length operands back and check their ranges before each launch "
    "(synchronises; debugging only).",
    "0 or 1",
)
JOBS = EnvVar[int | None](
    "DSL_KERNELS_JOBS",
    _positive,
    None,
    "Compile workers; by default what the cores and the memory carry.",
    "an integer >= 1",
)
COMPILE_TIMEOUT = EnvVar(
    "DSL_KERNELS_COMPILE_TIMEOUT",
    _positive,
    600,
    "Seconds one variant may compile before it is given up.",
    "an integer >= 1",
)
LOG_LEVEL = EnvVar(
    "DSL_KERNELS_LOG_LEVEL",
    str.upper,
    "WARNING",
    "Level of the `dsl_kernels` logger in the CLI.",
    "a level name",
)


def table() -> list[dict[str, Any]]:
    """All variables with their present values, for `python -m dsl_kernels env`."""
    rows = []
    for var in (v for v in globals().values() if isinstance(v, EnvVar)):
        rows.append({"name": var.name, "value": var.get(), "set": var.name in os.environ, "doc": var.doc})
    return rows


def cache_root() -> Path:
    """The one folder of all caches: DSL_KERNELS_CACHE_DIR, or the user's cache folder on this platform.

    Raises:
        CacheError: code CACHE_HOME; neither exists (no home directory and no passwd entry).
    """
    configured = CACHE_DIR.get()
    root = configured.absolute() if configured is not None else _platform_folder("user_cache_path")
    if root is not None:
        return root
    raise CacheError(
        "the cache folder",
        expected="a home directory, XDG_CACHE_HOME or DSL_KERNELS_CACHE_DIR",
        got="none of them",
        fix="set DSL_KERNELS_CACHE_DIR to a folder that can be written",
        code="CACHE_HOME",
    )


def tuned_root() -> Path | None:
    """The folder of the user's tuned tables; None without a home directory.

    It is DSL_KERNELS_TUNED_DIR, or a folder in the user's data on this platform.
    """
    configured = TUNED_DIR.get()
    if configured is not None:
        return configured.absolute()
    data = None
    with contextlib.suppress(ImportError):
        data = _platform_folder("user_data_path")
    return data / "tuned" if data is not None else None


def _platform_folder(kind: str) -> Path | None:
    import platformdirs

    # Without a home directory, newer versions of platformdirs raise RuntimeError and older ones leave the
    # tilde.
    with contextlib.suppress(RuntimeError):
        folder: Path = getattr(platformdirs, kind)("dsl_kernels", appauthor=False)
        if folder.is_absolute():
            return folder
    return None
