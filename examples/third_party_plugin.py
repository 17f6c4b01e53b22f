"""A platform that fleetscope has never heard of: its PJRT plugin, recorded, and shown by jax.profiler and XProf.

    pip install fastatomstruct-xla-cpu   # stands in for your plugin: an unmodified XLA:CPU behind the PJRT C API
    python examples/third_party_plugin.py --logdir /tmp/trace
    python examples/third_party_plugin.py --library /path/to/libpjrt_yours.so --platform yours --logdir /tmp/trace

The plugin needs nothing of ours: it exports GetPjrtApi, like any other. It is wrapped when jaxlib loads it, because the
profiler was started before; `fleetscope run -- python train.py` does that for a program that does not know of us. A
plugin without a profiler extension of its own gets one, so that the trace has a device plane with one event for each
execution; `tensorboard --logdir` or `xprof --logdir` shows it.
"""

import argparse
import glob
import importlib.util
import os
import sys
from pathlib import Path


def stand_in() -> str:
    found = importlib.util.find_spec("fastatomstruct_xla_cpu")
    if found is None or found.origin is None:
        raise SystemExit("give --library, or install fastatomstruct-xla-cpu to stand in for it")
    return str(Path(found.origin).with_name("libpjrt_cpu.so"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", default="", help="the plugin's shared object")
    parser.add_argument("--platform", default="yours", help="the name it gets in jax")
    parser.add_argument("--logdir", required=True)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = args.platform

    from fleetscope.agents import profiler

    profiler.start(early=True)  # before jax: `fleetscope run` does the same

    import jax
    import jax.numpy as jnp
    from jax._src import xla_bridge  # a vendor's package does this in its `jax_plugins` entry point

    xla_bridge.register_plugin(args.platform, library_path=args.library or stand_in())
    step = jax.jit(lambda w: w - 0.01 * jnp.tanh(w @ w))
    w = step(jnp.ones((400, 400))).block_until_ready()
    with jax.profiler.trace(args.logdir):
        for _ in range(args.steps):
            w = step(w)
        w.block_until_ready()

    shown = False
    newest = max(glob.glob(f"{args.logdir}/**/*.xplane.pb", recursive=True), key=os.path.getmtime)
    for plane in jax.profiler.ProfileData.from_file(newest).planes:
        if plane.name.startswith("/device:"):
            for line in plane.lines:
                events = list(line.events)
                busy_ms = sum(event.duration_ns for event in events) / 1e6
                print(f"{plane.name}  {line.name}: {len(events)} executions, {busy_ms:.1f} ms")
                shown = True
    if not shown:
        print("no device plane: the plugin was not wrapped; `fleetscope doctor` says what is there", file=sys.stderr)
    return 0 if shown else 1


if __name__ == "__main__":
    sys.exit(main())
