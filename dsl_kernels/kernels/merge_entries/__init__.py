"""The entries that ranks of a sharded context found, put in order."""
