"""Write prepared batches: used by runs, and parts of it by replays.

`writer` writes one batch after another, in the thread of `thread`. `dedup` chooses one row of each key, `effect` finds
which rows are in the sink, and `batch_outcome` is what is saved with the checkpoint. `written_keys` are the keys that
the run has written before, and `superseded` marks letters whose key was written later.
"""
