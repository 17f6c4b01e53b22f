"""What runs and hosts there are: to tell a wrong name from an empty answer."""

import difflib

from fleetscope.analysis.scope import Scope
from fleetscope.sinks.lake.read import Snapshot


def unknown_names(snapshot: Snapshot, scope: Scope) -> list[str]:
    """A sentence for each name in the scope that the lake does not know, with the nearest ones it does."""
    found = []
    with snapshot.duckdb(["processes", "hosts"]) as connection:
        asked = (
            ("run", scope.run, "SELECT run_name FROM processes UNION SELECT attempt_name FROM processes"),
            ("host", scope.host, "SELECT name FROM hosts"),
        )
        for what, name, query in asked:
            if name is None:
                continue
            known = sorted({row[0] for row in connection.sql(query).fetchall() if row[0]})
            if name in known:
                continue
            near = difflib.get_close_matches(name, known, 3, 0.5) or known[:5]
            there = f"; there is {', '.join(near)}" if near else ""
            found.append(f"no {what} {name!r} in the lake{there}{', ...' if len(known) > len(near) else ''}")
    return found
