"""What was slow and why: one module a tool, each a pure function from one moment of the lake to a result table."""
