"""The partial outputs that ranks of a sharded context leave, merged by their lse."""
