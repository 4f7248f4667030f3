"""RMSNorm, a kernel in a folder of its own."""
