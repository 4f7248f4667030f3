"""`python -m dsl_kernels`."""

from .cli import main

if __name__ == "__main__":
    main()
