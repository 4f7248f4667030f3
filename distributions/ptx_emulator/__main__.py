"""`python -m ptx_emulator`."""

import sys

from .emulator.command import main

if __name__ == "__main__":
    sys.exit(main())
