"""What looks at the kernels and is not needed to run them: verification, timing, profiles, cases and claims.

`dsl_kernels` imports nothing of this package. Its commands are found by the entry point of `dsl-kernels-lab`.
"""

from pathlib import Path

RECORDS = Path(__file__).resolve().parent / "records"
"""Fingerprints, ceilings and peers' figures, a file for each kind of GPU."""
