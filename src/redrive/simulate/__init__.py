"""Simulations of what a policy does to a contended or recovering service: discrete events, seeded, in virtual time.

Used by `redrive simulate`.
"""
