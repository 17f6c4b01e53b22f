"""The policy of `agent.redaction`: name -> what may be told of it, worked out once a distinct name."""

import hashlib
import re
import threading
from collections.abc import Callable
from pathlib import Path

from fleetscope.agents.batches import clean_text
from fleetscope.agents.redaction.words import OWN, VERBS, public_target, public_word, stem
from fleetscope.schema.config import Named, RedactionConfig, RedactionMode
from fleetscope.schema.errors import ConfigInvalid
from fleetscope.schema.patterns import Pattern

DROPPED = "(dropped)"
"""In place of a name that may not be told, where there has to be one."""
KEY_BYTES = 16
"""Least size of a key: below it, whoever has digests can try keys."""
KNOWN = 1 << 16
"""Names remembered. Beyond it they are worked out again: a process that invents names must not grow the agent."""

_TOLD = re.compile(r"~[0-9a-f]{20}")
_WORD = re.compile(r"[^/()]+")


def _key(path: Path | None) -> bytes:
    if path is None:
        return b""
    try:
        data = path.read_bytes().strip()
    except OSError as error:
        raise ConfigInvalid(f"agent.redaction.key_file {path}: {error.strerror}") from error
    if len(data) < KEY_BYTES:
        raise ConfigInvalid(f"agent.redaction.key_file {path}: {len(data)} bytes, at least {KEY_BYTES} are needed")
    return hashlib.blake2b(data, digest_size=32).digest()


class Redaction:
    """Safe from any thread. What it gave is given back as it is: a name is never hashed twice.

    Raises ConfigInvalid for a key file that cannot be read, or is too short.
    """

    def __init__(self, config: RedactionConfig | None = None) -> None:
        config = config or RedactionConfig()
        self._key = _key(config.key_file)
        self._modes: dict[str, RedactionMode] = {
            kind: getattr(config, kind) for kind in ("annotations", "programs", "ops", "sources", "commands", "runs")
        }
        self._rules = [(rule, Pattern(rule.pattern).found if rule.pattern else None) for rule in config.rules]
        self._hidden = frozenset(
            kind
            for kind, mode in self._modes.items()
            if mode != "keep" or any(kind in rule.of and rule.mode != "keep" for rule in config.rules)
        )
        self._known: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()
        self._originals: dict[str, dict[str, str]] = {"runs": {}, "programs": {}}
        """By kind, so that a process that invents programs costs nobody the name of a run, which is said once."""
        self.worked_out = 0
        """Distinct names so far."""

    def hides(self, kind: Named) -> bool:
        """Whether any name of the kind may be other than it was."""
        return kind in self._hidden

    @property
    def active(self) -> bool:
        return bool(self._hidden)

    def of(self, kind: Named, text: str) -> str:
        """What may be told of a name; "" stays."""
        return self._once(kind, kind, text, lambda: self._changed(kind, text))

    def original(self, kind: Named, told: str) -> str:
        """The run (or attempt) or program that `of` gave this for; `told` itself where that is not known. In memory
        alone: what the coordinator decides by such a name has to reach the process, which knows its own."""
        with self._lock:
            return self._originals[kind].get(told, told)

    def annotation(self, text: str) -> str:
        """Of the recorder's names. fleetscope's own stay, and so does what jax says it does to a function."""
        kind: Named = "annotations" if "annotations" in self._hidden else "programs"
        return self._once("annotation", kind, text, lambda: self._annotation(text))

    def instruction(self, text: str) -> str:
        """Of an HLO instruction: a name that the compiler made of opcodes stays, as do the numbers behind any."""
        return self._once("instruction", "ops", text, lambda: self._instruction(text))

    def scope(self, text: str) -> str:
        """op_name, jit(f)/jvp(Net)/dot_general: by words, so that scopes still nest and group. Words of jax stay."""
        return self._once("scope", "ops", text, lambda: self._scope(text))

    def target(self, text: str) -> str:
        """Of a custom call: those that libraries and compilers are called by stay, FLOPs are told by them."""
        return text if public_target(text) else self.of("ops", text)

    def _once(self, what: str, kind: Named, text: str, make: Callable[[], str]) -> str:
        if not text or kind not in self._hidden:
            return text
        known = self._known.get((what, text))
        if known is None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            known = self._known[what, text] = make()
            self.worked_out += 1
            # Topics say digests: what stays as it is must not stand where the name was.
            if what in self._originals and known != text:
                self._remember(self._originals[what], known, text)
        return known

    def _remember(self, originals: dict[str, str], told: str, text: str) -> None:
        with self._lock:
            # The newest last: then whatever `_known` still has is here as well.
            originals.pop(told, None)
            originals[told] = text
            if len(originals) > KNOWN:
                del originals[next(iter(originals))]

    def _mode(self, kind: str, text: str) -> RedactionMode:
        for rule, found in self._rules:
            if kind in rule.of and (found(text) if found is not None else text.startswith(rule.prefix)):
                return rule.mode
        return self._modes[kind]

    def _changed(self, kind: str, text: str) -> str:
        mode = self._mode(kind, text)
        if mode == "keep" or text == DROPPED or _TOLD.fullmatch(text):
            return text
        return DROPPED if mode == "drop" else self._digest(text)

    def _digest(self, text: str) -> str:
        # Of the text as it would have travelled: some come here before they are cleaned, some after.
        raw = clean_text(text).encode()
        return f"~{hashlib.blake2b(raw, key=self._key, digest_size=10).hexdigest()}"

    def _annotation(self, text: str) -> str:
        if text in OWN:
            return text
        verb, space, name = text.partition(" ")
        if space and verb in VERBS:
            return f"{verb} {self.of('programs', name)}"
        return self._changed("annotations", text)

    def _instruction(self, text: str) -> str:
        base, numbers = stem(text)
        return text if public_word(base) else self._changed("ops", base) + numbers

    def _scope(self, text: str) -> str:
        mode = self._mode("ops", text)
        if mode == "keep":
            return text

        def word(match: re.Match[str]) -> str:
            found = match[0]
            if public_word(found) or _TOLD.fullmatch(found):
                return found
            return "_" if mode == "drop" else self._digest(found)

        return _WORD.sub(word, text)


KEEP_ALL = Redaction()
