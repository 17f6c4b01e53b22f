"""What the newest round of the lake holds, told to exporters through fleetscope.metrics.

Compared with what chains committed, it says whether the lake is folded; a coordinator that is gone says nothing more,
and the last that was said goes on being compared.
"""

from fleetscope.schema.metrics import metric
from fleetscope.schema.vocabulary import COORDINATOR_CHAIN
from fleetscope.schema.wire_pb2 import MetricsRecord
from fleetscope.sinks.lake.rounds import Round

KEY = b"coordinator"
"""Of the compacted topic. Keys of chains begin with a digit."""


def round_record(made: Round, now_ns: int) -> MetricsRecord:
    """`epoch` is the round's number: of two coordinators the one that made the newer round is right."""
    record = MetricsRecord(chain=COORDINATOR_CHAIN, epoch=made.number, now_ns=now_ns, event_ns=made.made_ns)
    record.samples.add(name=metric("fleetscope_lake_round").name, int_value=made.number, is_int=True)
    for chain, number in sorted(made.folded.items()):
        labels = {"chain": str(chain)}
        record.samples.add(
            name=metric("fleetscope_lake_folded_epoch").name, labels=labels, int_value=number, is_int=True
        )
    return record
