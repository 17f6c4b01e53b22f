"""A loader process, a trainer and the way of each batch between them.

    fleetscope up & fleetscope agent &
    python examples/flows.py --batches 200
    fleetscope steps --run flows            # the column `flow` of a slow step ...
    fleetscope steps --flow ID              # ... shows where its batch came from

Every twentieth batch takes the loader ten times as long; the step that trains on it waits, and its flow says for whom.
The program prints the id of the slowest batch by its own watch.
"""

import argparse
import multiprocessing
import os
import time

from fleetscope.agents import profiler

PREFETCH = 2


def load(batches, queue):
    """The loader process: an id goes along with each batch."""
    profiler.start(early=True)
    for number in range(batches):
        flow = profiler.new_flow()
        with profiler.annotate("load", producer=flow, batch=number):
            time.sleep(0.05 if number % 20 == 19 else 0.005)
        queue.put((number, flow))
    queue.put(None)
    profiler.stop()


def train(queue):
    """The trainer: each step goes on with one batch. The flow and wait of the slowest."""
    slowest = 0.0, 0
    for number in range(1 << 62):
        begin = time.monotonic()
        with profiler.annotate("data_wait"):
            got = queue.get()
        waited = time.monotonic() - begin
        if got is None:
            return slowest
        with profiler.step(number, consumer=got[1]):
            time.sleep(0.006)
        if number:  # the first waits for the loader process to begin
            slowest = max(slowest, (waited, got[1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=200)
    args = parser.parse_args()
    os.environ.setdefault("FLEETSCOPE_RUN", "flows")
    profiler.start(early=True)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue(PREFETCH)
    loader = context.Process(target=load, args=(args.batches, queue))
    loader.start()
    waited, flow = train(queue)
    loader.join()
    profiler.stop()
    print(f"slowest batch: {flow}, waited for {waited * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
