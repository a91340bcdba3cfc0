"""The task runtime: graphs of tasks, run in processes that can be killed, over a state that survives everything."""
