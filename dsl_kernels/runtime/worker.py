"""A compile worker: a JSON job on each line of standard input, a JSON reply on each line of standard output.

What a DSL prints goes to standard error instead, and the pool reports it if the worker dies.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import sys
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace

from dsl_kernels.errors import DslKernelError

from . import cache, speed


def main() -> None:
    """Serve jobs until standard input ends."""
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)
        speed.keep_memory()
        for line in sys.stdin:
            replies.write(json.dumps(_serve(json.loads(line))) + "\n")
            replies.flush()
            gc.collect()


def _serve(job: dict[str, str]) -> dict[str, str]:
    module = SimpleNamespace(id=job["id"], backend=job["backend"], arch=job["arch"], path=Path(job["path"]))
    try:
        speed.prepare(module.backend)
        return {"folder": str(cache.artifact_for(module, retry=bool(job["retry"])))}
    except Exception as error:
        typed = error if isinstance(error, DslKernelError) else cache.unforeseen(module, error)
        return {"error": b64encode(pickle.dumps(typed)).decode()}


if __name__ == "__main__":
    main()
