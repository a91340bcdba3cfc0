"""Independent oracles: each works out what must be true without the code under test.

Those that check a store read it by redrive; what they expect of it they work out themselves.

channel_payloads  what Slack and PagerDuty document that they accept, as checks of a payload
csv_files         the records of a CSV file as Python's csv module and DuckDB read them
effects           a ledger in a file: which effects happened, how often, and which were lost or repeated
flow_states       the states of a flow's tasks, from how attempts ended and what an operator decided
intervals         what the text of an interval says, read word by word
letters           a queue of letters: each letter once, counts and audit log in agreement
row_loader        a table, rejected records and counts, loaded row by row in plain Python
rows              the store and the target of a pipeline behind each batch, and at the end
tasks             the store and the effects of a flow at any moment, and at the end
"""
