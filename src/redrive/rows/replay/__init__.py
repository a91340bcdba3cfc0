"""Replay of letters through a pipeline: `reprocess` is the target, and `row_groups` groups rows of the same columns."""
