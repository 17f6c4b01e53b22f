"""Exit codes of the command, and what an error means to the shell.

0 ok, 1 a finding (the command worked and found something wrong), 2 usage, 69 unavailable, 75 try again (sysexits.h).
"""

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fleetscope.schema.errors import FleetscopeError, Retryable, StateUnknown
from fleetscope.schema.secrets import masked

OK = 0
FINDING = 1
USAGE = 2
UNAVAILABLE = 69
TRY_AGAIN = 75


_WORDS = frozenset(
    {"ConfigInvalid", "BadLogUrl", "BadName", "FaultUnknown", "LakeAddressInvalid", "CredentialUnreadable"}
)
"""What was typed or configured is not understood."""

_AWAY = frozenset({"BrokerUnavailable", "AddressInUse", "AgentSilent"})
"""Retryable in a loop, but nothing the same command typed again in a second would cure."""


def exit_code(error: FleetscopeError) -> int:
    """Code for an error that ends a command."""
    name = type(error).__name__
    if name in _WORDS:
        return USAGE
    if isinstance(error, Retryable | StateUnknown):
        return UNAVAILABLE if name in _AWAY else TRY_AGAIN
    return UNAVAILABLE


@contextmanager
def reported() -> Iterator[None]:
    """Turn errors of the project and of the system into one line on stderr and their exit code; a closed pipe ends
    quietly."""
    try:
        yield
        # Within reach of the handlers below: at exit Python could only complain.
        sys.stdout.flush()
    except FleetscopeError as error:
        print(masked(f"fleetscope: {error}"), file=sys.stderr)
        raise SystemExit(exit_code(error)) from error
    except BrokenPipeError:
        # The reader went away (| head): nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(OK) from None
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        print(f"fleetscope: {error.strerror or error}{where}", file=sys.stderr)
        raise SystemExit(TRY_AGAIN if error.errno in (errno.ENOSPC, errno.EDQUOT) else UNAVAILABLE) from error
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        print(f"fleetscope: {error.name} is not installed: pip install 'fleetscope[{extra}]'", file=sys.stderr)
        raise SystemExit(UNAVAILABLE) from error


_EXTRAS = {
    "apache_beam": "pipeline", "obstore": "query", "grpc": "pipeline", "duckdb": "query", "deltalake": "query",
    "prometheus_client": "exporter", "psutil": "agent", "pynvml": "agent", "kafka": "agent",
}  # fmt: skip
"""Package -> the extra of fleetscope that brings it: a training host has no Beam and no query engine."""
