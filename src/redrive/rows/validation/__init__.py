"""Validators of rows. `validator` has the protocol, and the validator of a plain function.

`model` validates records with pydantic, and `model_values` returns what a sink gets of a valid model. `schema`
validates frames with dataframely, after `casts` have converted their columns without changing a value.
"""
