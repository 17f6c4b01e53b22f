"""A fleet of clocks with ground truth, seeded: numpy alone, nothing of what it judges (docs/design/0021).

True time is int64 ns from the begin of the simulation; what a clock shows is an int64 of its own.
"""
