"""Context types of links: what an id counts, so that ids of two kinds of things never meet."""


class ContextType:
    """The types of XLA's TraceMe (tsl profiler context_types.h), by their numbers there. Others below 2^24 are yours.

    No enum: it would be the only import of it in a process that imports nothing else of us.
    """

    GENERIC = 0
    LEGACY = 1
    TF_EXECUTOR = 2
    TFRT_EXECUTOR = 3
    SHARED_BATCH_SCHEDULER = 4
    PJRT = 5
    ADAPTIVE_SHARED_BATCH_SCHEDULER = 6
    TFRT_TPU_RUNTIME = 7
    TPU_EMBEDDING_ENGINE = 8
    GPU_LAUNCH = 9
    BATCHER = 10
    TPU_STREAM = 11
    TPU_LAUNCH = 12
    PATHWAYS_EXECUTOR = 13
    PJRT_LIBRARY_CALL = 14
    THREADPOOL_EVENT = 15
    JAX_SERVING_EXECUTOR = 16
    SC_OFFLOAD = 17
