"""The identity of a program over restarts, processes, folders and edits.

    python benchmarks/fingerprint.py [--restarts N]

The programs of hlo_programs.py are compiled in processes of their own. A restart, another folder, moved lines, a
comment, other programs compiled before and another order must give the same fingerprint; each edit of what runs another
one; and no two programs share one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import report

CHILD = """
import json, sys
{before}
import jax, jax.numpy as jnp
sys.path.insert(0, sys.argv[1])
import hlo_programs as p
from fleetscope.agents.programs.optable import read_program
def train(w, x):
    def loss(w):
        return ((jnp.{act}(x @ w[{first}]) @ w[1]) ** 2).{total}() * {scale}
    g = jax.grad(loss)(w)
    return w - 0.1 * g
cases = [p.transformer(), p.resnet(), p.moe(), p.transposed(), p.lstm(), p.rematerialised(), *p.loops()]
cases = [(c.name, c.function, c.args) for c in cases if {all}]
cases.append(("edited", train, (p.of(2, {width}, {width}), p.of(16, {width}))))
out = {{}}
for name, function, args in {order}(cases):
    module = jax.jit(function).lower(*args).compile().runtime_executable().hlo_modules()[0]
    out[name] = read_program(module.as_serialized_hlo_module_proto()).program
print(json.dumps(out))
"""

PLAIN = {
    "before": "", "act": "tanh", "first": "0", "total": "sum", "scale": "1.0", "width": "64", "all": "True",
    "order": "list",
}  # fmt: skip
SAME: dict[str, dict[str, str]] = {
    "restart": {},
    "other programs before": {"before": "import jax as j; j.jit(lambda x: x * 3)(j.numpy.ones(7))"},
    "moved lines and a comment": {"before": "\n\n# nothing\n\n"},
    "another order": {"order": "reversed"},
}
EDITS: dict[str, dict[str, str]] = {
    "another function": {"act": "sin"},
    "another operand": {"first": "1"},
    "another reduction": {"total": "mean"},
    "another constant": {"scale": "1.5"},
    "another shape": {"width": "72"},
}


def programs(change: dict[str, str]) -> dict[str, int]:
    """Name -> fingerprint, from a process of its own in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "program.py"
        script.write_text(CHILD.format(**{**PLAIN, **change}))
        command = [sys.executable, str(script), str(Path(__file__).resolve().parent)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, cwd=folder)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", type=int, default=3, help="plain restarts beside the variations")
    options = parser.parse_args()
    begin = time.monotonic()
    failed: list[str] = []
    plain = programs({})
    if len(set(plain.values())) != len(plain):
        failed.append("two programs share a fingerprint")
    variations = [("restart", {})] * (options.restarts - 1) + list(SAME.items())
    for name, change in variations:
        again = programs(change)
        differing = sorted(program for program in plain if again[program] != plain[program])
        if differing:
            failed.append(f"{name}: {', '.join(differing)} changed")
        print(f"{'FAIL' if differing else 'ok  '} {name}: {len(plain) - len(differing)} of {len(plain)} equal")
    seen = {plain["edited"]}
    for name, change in EDITS.items():
        edited = programs({**change, "all": "False"})["edited"]
        if edited in seen:
            failed.append(f"{name}: the same fingerprint")
        print(f"{'FAIL' if edited in seen else 'ok  '} {name}: another program")
        seen.add(edited)
    return report(
        "fingerprint", len(failed), "wrong", 0, failed=failed, programs=len(plain), same=len(variations),
        edits=len(EDITS), wall_s=round(time.monotonic() - begin, 1),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
