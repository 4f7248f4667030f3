"""Commands that need the laboratory: each public module here is a group of them, as in `dsl_kernels.cli`."""

from __future__ import annotations

OFFERED = {
    "runs": "dsl_kernels_lab.verification.runs",
    "fingerprints": "dsl_kernels_lab.profile.recorded",
    "timeline": "dsl_kernels_lab.profile.timeline",
    "profiler": "dsl_kernels_lab.profile.collect",
}
"""Modules that commands of the library use where the laboratory is installed."""

# The command line imports the modules of this package. First here, it lets each of them be imported alone.
import dsl_kernels.cli  # noqa: E402, F401
