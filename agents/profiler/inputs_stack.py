"""What a stack says: is the program's loop waiting for the next item of an iterator?

A frame *waits* where its instruction is FOR_ITER (`for batch in loader:`) or a call of the builtin `next`. That alone
says little: a loader has loops of its own. So calls of jitted functions are looked at as well: a frame of their stack
that does not wait at that moment is a loop *body* (or something it calls). Code of such a frame seen waiting later is
a loop that feeds jitted functions and waits for what it feeds them.
"""

import sys
from opcode import opmap
from types import CodeType, FrameType

DEEPEST = 512
BODIES = 4096
"""Code objects remembered; a program that makes new ones for ever starts over."""

_FOR_ITER = opmap["FOR_ITER"]
_EXTENDED = opmap["EXTENDED_ARG"]
_CACHE = opmap.get("CACHE", -1)
_GLOBAL = opmap["LOAD_GLOBAL"]
_NAME = opmap["LOAD_NAME"]
_CALLS = frozenset(number for name, number in opmap.items() if name in ("PRECALL", "CALL", "CALL_KW"))


def waiting_places(code: CodeType) -> frozenset[int]:
    """Offsets, as of `f_lasti`, at which a frame of this code waits for an iterator."""
    raw = code.co_code
    positions = list(code.co_positions())
    places: set[int] = set()
    nexts: set[tuple[int | None, int | None]] = set()
    argument, kind = 0, -1
    for offset in range(0, len(raw), 2):
        op = raw[offset]
        place = positions[offset // 2] if offset // 2 < len(positions) else (None, None, None, None)
        if op == _CACHE:
            # A frame called from a specialised instruction may stand at its inline cache.
            if kind == _FOR_ITER or (kind in _CALLS and offset - 2 in places):
                places.add(offset)
            continue
        kind = op
        argument = argument << 8 | raw[offset + 1]
        if op == _EXTENDED:
            continue
        if op == _FOR_ITER:
            places.add(offset)
        elif op in (_GLOBAL, _NAME):
            index = argument >> 1 if op == _GLOBAL else argument
            if index < len(code.co_names) and code.co_names[index] == "next" and place[0] is not None:
                nexts.add((place[0], place[2]))
        elif op in _CALLS and place[0] is not None and (place[0], place[2]) in nexts:
            # A call begins where the name of what it calls begins.
            places.add(offset)
        argument = 0
    return frozenset(places)


class Stacks:
    """Remembers the bodies of loops that call jitted functions."""

    def __init__(self) -> None:
        self._bodies: set[CodeType] = set()
        self._places: dict[CodeType, frozenset[int]] = {}

    @property
    def known(self) -> bool:
        """A call has been looked at."""
        return bool(self._bodies)

    def _waits(self, frame: FrameType) -> bool:
        code = frame.f_code
        places = self._places.get(code)
        if places is None:
            if len(self._places) >= BODIES:
                self._places.clear()
            places = self._places[code] = waiting_places(code)
        return frame.f_lasti in places

    def called(self) -> None:
        """In the training thread, within a call of a jitted function."""
        frame: FrameType | None = sys._getframe(1)
        if len(self._bodies) >= BODIES:
            self._bodies.clear()
        for _ in range(DEEPEST):
            if frame is None:
                return
            if not self._waits(frame):
                self._bodies.add(frame.f_code)
            frame = frame.f_back

    def waits(self, frame: FrameType) -> bool:
        """The thread whose innermost frame this is waits for input."""
        at: FrameType | None = frame
        for _ in range(DEEPEST):
            if at is None:
                return False
            if at.f_code in self._bodies and self._waits(at):
                return True
            at = at.f_back
        return False
