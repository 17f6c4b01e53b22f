"""Other CPythons of this machine that the recorder is built for too: one line `suffix;include folder` each.

`fleetscope run` carries the profiler into environments of other Pythons; the recorder uses the C API alone, so a
compiler and a Python's headers are all it takes. Run by CMake with the Python of the build.
"""

import glob
import os
import shutil
import subprocess
import sys

MINORS = ("3.11", "3.12", "3.13")
ASK = (
    "import os, sys, sysconfig as c; path = c.get_path('include'); "
    "print(c.get_config_var('EXT_SUFFIX'), path, sep=';') "
    "if os.path.exists(os.path.join(path, 'Python.h')) and sys.implementation.name == 'cpython' else None"
)


def candidates(minor: str) -> list[str]:
    """Pythons called so on PATH, in pyenv and in uv's own folder."""
    home = os.path.expanduser("~")
    found = [shutil.which(f"python{minor}") or ""]
    for root in (os.environ.get("PYENV_ROOT", f"{home}/.pyenv") + "/versions", f"{home}/.local/share/uv/python"):
        found += sorted(glob.glob(f"{root}/*{minor}*/bin/python{minor}"), reverse=True)
    return [path for path in found if path]


def main() -> None:
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    for minor in MINORS:
        for path in candidates(minor) if minor != own else ():
            try:
                done = subprocess.run([path, "-I", "-c", ASK], capture_output=True, text=True, timeout=20)
            except (OSError, subprocess.TimeoutExpired):
                continue
            if done.returncode == 0 and done.stdout.strip():
                print(done.stdout.strip())
                break


if __name__ == "__main__":
    main()
