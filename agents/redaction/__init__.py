"""Names of processes before they leave the host: kept, replaced by a keyed digest, or dropped (docs/redaction.md)."""

from fleetscope.agents.redaction.messages import admitted, answered
from fleetscope.agents.redaction.policy import DROPPED, KEEP_ALL, Redaction
from fleetscope.agents.redaction.programs import redacted

__all__ = ["DROPPED", "KEEP_ALL", "Redaction", "admitted", "answered", "redacted"]
