"""The last line of every benchmark: one JSON object with the same first keys. Its exit code says the same as `ok`."""

import json
import sys
from collections.abc import Sequence


def report(
    name: str, value: float, unit: str, budget: float, *, failed: Sequence[str] | None = None, **facts: object
) -> int:
    """Print the result; the exit code: 0 within budget, 1 over it.

    `failed`: what is over budget or wrong, in words; None: `value` <= `budget` is all there is to judge.
    """
    wrong = [f"{value} {unit} over {budget}"] * (value > budget) if failed is None else list(failed)
    for line in wrong:
        print(f"over budget: {line}", file=sys.stderr)
    result = {"name": name, "value": value, "unit": unit, "budget": budget, "ok": not wrong, "failed": wrong, **facts}
    print(json.dumps(result))
    return 1 if wrong else 0
