"""The compiled core under AddressSanitizer and UndefinedBehaviorSanitizer: with EMULATOR_TESTS_SANITIZED=1.

The tests of this folder and about a hundred mutants of PTX run in a process of their own, which the core ends
at the first bad access or undefined operation. Compiling that core takes a minute, running it a few more.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = """
import sys
import pytest
from ptx_emulator import build
build.FLAGS = (*(flag for flag in build.FLAGS if flag != "-O2"), "-O1", "-g", "-fno-omit-frame-pointer", \
"-fsanitize=address,undefined", "-fno-sanitize-recover=all")
from tests.fuzz.ptx import fuzz_ptx
counts = fuzz_ptx(600, 1)
assert not counts.untyped, counts.examples
skipped = ["test_build.py", "test_sanitized.py", "test_plugin.py", "public"]
sys.exit(pytest.main(["tests/emulator", "-q", "-s", "-p", "no:faulthandler", \
*(f"--ignore=tests/emulator/{name}" for name in skipped)]))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("EMULATOR_TESTS_SANITIZED") != "1", reason="asked for with EMULATOR_TESTS_SANITIZED=1"
)
def test_the_core_does_nothing_undefined():
    from ptx_emulator import build

    libraries = [
        subprocess.run(
            [build.compiler(), f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    env = {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python leaks
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run([sys.executable, "-c", RUN], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
