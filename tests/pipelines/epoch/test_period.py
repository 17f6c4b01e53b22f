"""How long a worker waits between epochs."""

import pytest

from fleetscope.pipelines.plan import QUIET_ROWS, next_period_s

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("last_run_s", "last_rows", "backlog", "expected"),
    [
        (0.1, 100_000, False, 2.0),
        (0.1, 38, False, 3.0),  # one host with one step a second: nearly nothing but the fixed cost
        (0.1, QUIET_ROWS, False, 2.0),
        (0.1, 0, False, 2.0),  # nothing yet: the first events are not kept waiting
        (2.0, 100_000, False, 3.0),
        (2.5, 38, False, 3.75),
        (60.0, 38, False, 5.0),
        (60.0, 100_000, True, 0.0),
    ],
)
def test_the_period_follows_what_the_last_epoch_was(
    last_run_s: float, last_rows: int, backlog: bool, expected: float
) -> None:
    assert next_period_s(2.0, 5.0, last_run_s, last_rows, backlog) == expected
