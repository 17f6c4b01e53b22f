"""One identity for an op, whether its spans came before its op table or after: pieces of SQL around OPS, a CTE."""

from fleetscope.sinks.lake.views import OP_IDENTITY as OPS

__all__ = ["ABOUT", "JOIN", "LOADED", "NAME", "OP", "OPS", "PROGRAM", "RAN", "TABLED", "TABLES"]

TABLES = ("ops", "programs", "program_loads")

JOIN = "LEFT JOIN op_identity i ON i.process = s.process AND i.seen_program = s.program AND i.seen_op = s.op"
"""To rows `s` with process, program and op."""

PROGRAM, OP = "coalesce(i.program, s.program)", "coalesce(i.op, s.op)"

LOADED = "LEFT JOIN program_loads l ON l.process = s.process AND l.program_id = s.program"
"""To rows `s` of executions, which may name a program by the label it was loaded under."""

RAN = "coalesce(l.program, s.program)"

SOURCE = "CASE WHEN o.source_file != '' THEN o.source_file || ':' || o.source_line END"

TABLED = """LEFT JOIN ops o ON o.program = {alias}.program AND o.op = {alias}.op
             LEFT JOIN programs m ON m.program = {alias}.program"""
"""To rows `alias` with program and op as they really are."""

ABOUT = f"m.module, {SOURCE} AS source, nullif(o.op_name, '') AS op_name, nullif(o.shape, '') AS shape"
"""Columns of an op that its program's table tells."""

NAME = "coalesce(nullif(o.name, ''), coalesce(nullif(m.module, ''), '#' || {alias}.program) || ' op ' || {alias}.op)"
"""SQL of an op's name; module and ordinal until its table is there."""
