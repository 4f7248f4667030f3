"""From a generated module to a running kernel: toolchain, artifacts, cache, compile pool and launcher."""
