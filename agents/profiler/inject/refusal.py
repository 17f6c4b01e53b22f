"""What on a command line keeps the profiler out: seen before the program runs, and refused with exit code 2."""

import os
import re
import shutil
from collections.abc import Sequence

_PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)*t?)?$")
_TAKE_A_VALUE = ("X", "W")


def obstacle(argv: Sequence[str]) -> str:
    """Why the profiler cannot get into `argv`, as far as its words show it; "" when nothing speaks against it.

    -I, -E and -S are there to keep the likes of us out, and stay obeyed. Looks through prefixes (env, nice, numactl)
    and launchers (srun, mpirun, torchrun, uv run) at the first Python they name, and at the first line of a script.
    """
    words = list(argv)
    if not words:
        return "there is no command"
    for place, word in enumerate(words):
        name = os.path.basename(word)
        if name == "env":
            why = _of_env(words[place + 1 :])
        elif name == "sudo":
            why = _of_sudo(words[place + 1 :])
        elif name == "srun" and any(option in words for option in ("--export=NONE", "--export=NIL")):
            why = "srun --export=NONE clears PYTHONPATH"
        elif _PYTHON.match(name):
            return _of_python(words[place + 1 :])
        else:
            continue
        if why:
            return why
    return _of_first_line(words[0])


def _of_env(words: Sequence[str]) -> str:
    """`env` clears all with -i, drops one with -u, sets one with NAME=VALUE."""
    place = 0
    while place < len(words):
        word = words[place]
        if word in ("-", "--ignore-environment") or re.fullmatch(r"-[0v]*i.*", word):
            return "env -i clears PYTHONPATH"
        if word in ("-u", "--unset"):
            if words[place + 1 : place + 2] == ["PYTHONPATH"]:
                return "env -u drops PYTHONPATH"
            place += 1
        elif word in ("-uPYTHONPATH", "--unset=PYTHONPATH"):
            return "env -u drops PYTHONPATH"
        elif word.startswith("PYTHONPATH="):
            return f"env replaces PYTHONPATH: {word}"
        elif not word.startswith("-") and "=" not in word:
            break
        place += 1
    return ""


def _of_sudo(words: Sequence[str]) -> str:
    for word in words:
        if not word.startswith("-"):
            break
        if word in ("-E", "--preserve-env"):
            return ""
    return "sudo clears PYTHONPATH"


def _of_python(words: Sequence[str]) -> str:
    """Flags may stand together (-uIB); after -c, -m, a script or -- come words of the program."""
    skip = False
    for word in words:
        if skip:
            skip = False
            continue
        if not word.startswith("-") or word in ("-", "--") or word.startswith("--"):
            break
        for place, flag in enumerate(word[1:], 2):
            if flag in "cm":
                return ""
            if flag in _TAKE_A_VALUE:
                skip = place == len(word)
                break
            if flag in "IES":
                effect = "skips sitecustomize" if flag == "S" else "ignores PYTHONPATH"
                return f"python -{flag} {effect}"
    return ""


def _of_first_line(program: str) -> str:
    """A console script names its Python, with flags, in its first line: `#!/usr/bin/python3 -Es`."""
    path = shutil.which(program)
    try:
        with open(path or program, "rb") as file:
            line = file.readline(512)
    except OSError:
        return ""
    if not line.startswith(b"#!"):
        return ""
    words = line[2:].decode("utf-8", "replace").split()
    if not words or not _PYTHON.match(os.path.basename(words[0])):
        return ""
    why = _of_python(words[1:])
    return f"{why} (first line of {path or program})" if why else ""
