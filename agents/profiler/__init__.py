"""The profiler of a training process: annotations, steps, counters. `from fleetscope.agents import profiler`.

>>> from fleetscope.agents import profiler
>>> for number in range(2):
...     with profiler.step(number), profiler.annotate("load", shard=3):
...         pass
>>> profiler.counter("loss", 0.25)
>>> read = profiler.site("read", sample=3)  # once; `with` it again and again: the fastest, here one in 2^3 kept
>>> with read:
...     profiler.instant("retry")
>>> region = profiler.begin("request")  # ends elsewhere: of generators, tasks, callbacks
>>> profiler.end(region)
>>> batch = profiler.new_flow()  # an id that may go to another process with what it stands for
>>> with profiler.annotate("load", producer=batch):
...     pass
>>> with profiler.step(2):
...     profiler.link(consumer=batch)  # the step goes on with what "load" made: `fleetscope steps --flow ID`

Costs 30-120 ns a region and next to nothing without an agent on the host. Never raises into the caller, never waits,
never talks to the network; a forked child records nothing until it calls start(). Why: docs/design/0006-in-process.md.
"""

from fleetscope.agents.profiler.context import ContextType

try:
    from fleetscope.native._recorder import annotate, begin, counter, end, instant, link, new_flow, site, step
except ImportError:
    # Built for another Python, or not at all: training goes on without a profiler.
    from fleetscope.agents.profiler.absent import (  # type: ignore[assignment]
        annotate,
        begin,
        counter,
        end,
        instant,
        link,
        new_flow,
        site,
        start,
        step,
        stop,
    )
else:
    from fleetscope.agents.profiler.lifecycle import start, stop

__all__ = [
    "ContextType", "annotate", "begin", "counter", "end", "instant", "link", "new_flow", "site", "start", "step",
    "stop",
]  # fmt: skip
