"""Exit codes of the command, and what an error means to the shell.

0 ok, 1 a finding (the command worked and found something wrong), 2 usage, 69 unavailable, 75 try again (sysexits.h).
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fleetscope.schema.errors import ConfigInvalid, FleetscopeError, Retryable, StateUnknown

OK = 0
FINDING = 1
USAGE = 2
UNAVAILABLE = 69
TRY_AGAIN = 75


def exit_code(error: FleetscopeError) -> int:
    """Code for an error that ends a command."""
    if isinstance(error, ConfigInvalid):
        return USAGE
    if isinstance(error, Retryable | StateUnknown):
        return UNAVAILABLE if type(error).__name__ in _AWAY else TRY_AGAIN
    return UNAVAILABLE


_AWAY = frozenset({"BrokerUnavailable", "AddressInUse"})
"""Retryable in a loop, but nothing the same command typed again in a second would cure."""


@contextmanager
def reported() -> Iterator[None]:
    """Turn errors of the project into one line on stderr and their exit code; a closed pipe ends quietly."""
    try:
        yield
    except FleetscopeError as error:
        print(f"fleetscope: {error}", file=sys.stderr)
        raise SystemExit(exit_code(error)) from error
    except BrokenPipeError:
        # The reader went away (| head): nothing is wrong, but Python would complain while flushing at exit.
        sys.stderr.close()
        raise SystemExit(OK) from None
