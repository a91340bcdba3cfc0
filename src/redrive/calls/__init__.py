"""Guarded calls: `Service` retries, waits, rotates keys and stops at an open circuit.

`fast_path` runs a call while nothing is wrong. The first failure enters `retry_loop`, a generator of steps that knows
neither threads nor coroutines; `drivers` perform the steps. `invocation` is one call with its arguments, `attempts` a
block of code in place of a function, and `adapters` put a service below an HTTP client. `effects` finds out whether a
failed attempt may have had its effect. `circuit`, `credentials` and `tokens` hold the state of a service,
`shared_state` exchanges it with other processes, and `metrics` counts. `dead_letters` stores calls that fail for good.
"""
