"""What redrive would do with an error, and what a policy amounts to: asked of the code itself, so that it cannot drift.

a question → reading → verdict (classify) → rehearsal (the flow of a call) → schedule (Retry.decide) → words
"""
