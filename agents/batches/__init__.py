"""From rows to the bytes of one `Batch`: drafts, order, cuts, numbers (DESIGN 3.1)."""

from fleetscope.agents.batches.announce import Announcer
from fleetscope.agents.batches.draft import Draft, sample_rows, span_rows
from fleetscope.agents.batches.number import NUMBERED_LOSSES, Numbered, Numberer, SourceState
from fleetscope.agents.batches.pack import HARD_BYTES, SOFT_BYTES, Packed, pack
from fleetscope.agents.batches.text import clean_text

__all__ = [
    "HARD_BYTES",
    "NUMBERED_LOSSES",
    "SOFT_BYTES",
    "Announcer",
    "Draft",
    "Numbered",
    "Numberer",
    "Packed",
    "SourceState",
    "clean_text",
    "pack",
    "sample_rows",
    "span_rows",
]
