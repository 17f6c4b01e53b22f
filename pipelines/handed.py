"""Partition states on their way between stages of one process: by reference, not as JSON.

A state is read from the manifest, goes from `Read` through Beam's shuffle to `Commit`, is packed there and read again
for the counters. Where all stages are in this process (EmbeddedGraph) only the packing is left: text and back cost
120 us a source each epoch. Elsewhere nothing is found here, and the text goes the way of everything else.
"""

from fleetscope.pipelines.state import PartitionState

_epochs: dict[str, dict[int, PartitionState]] = {}
"""Attempt -> partition -> state of an epoch all of whose stages run here."""

_packed: dict[bytes, PartitionState] = {}
"""What the newest epoch packed; nobody changes it any more."""


def begin(attempt: str) -> None:
    """All stages of this epoch run in this process, until `end`."""
    _packed.clear()
    _epochs[attempt] = {}


def end(attempt: str) -> None:
    _epochs.pop(attempt, None)


def hand(attempt: str, partition: int, state: PartitionState) -> bool:
    """Leave a state for `take`, to whom it then belongs; False where the epoch's stages are elsewhere."""
    waiting = _epochs.get(attempt)
    if waiting is None:
        return False
    waiting[partition] = state
    return True


def take(attempt: str, partition: int) -> PartitionState:
    """The state that was left here, once: whoever took it may have changed it. KeyError if there is none."""
    return _epochs[attempt].pop(partition)


def packed(data: bytes, state: PartitionState) -> None:
    """Note that `data` is `state`, if it is an epoch of this process."""
    if _epochs:
        _packed[data] = state


def unpacked(data: bytes) -> PartitionState | None:
    """The state that was packed as `data` here; None: it must be read. To look at, not to change."""
    return _packed.pop(data, None)
