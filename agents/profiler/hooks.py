"""Noticing that jax is imported, without importing it: a finder on sys.meta_path wraps the loaders of a few modules."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Hook = Callable[[ModuleType], None]

# The frozen importer: `import importlib.util` would cost a process without jax 5 ms.
_PathFinder: Any = sys.modules["_frozen_importlib_external"].PathFinder


class _Finder:
    def __init__(self, hooks: dict[str, Hook]) -> None:
        self.hooks = hooks

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        hook = self.hooks.get(name)
        if hook is None:
            return None
        spec: ModuleSpec | None = _PathFinder.find_spec(name, path, target)
        loader = spec.loader if spec is not None else None
        run = getattr(loader, "exec_module", None)
        if spec is None or run is None:
            return None
        del self.hooks[name]

        def exec_module(module: ModuleType) -> None:
            run(module)
            _call(hook, module)

        try:
            loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]
        except AttributeError:
            return None
        return spec


def _call(hook: Hook, module: ModuleType) -> None:
    """A jax we do not understand must import all the same."""
    try:
        hook(module)
    except Exception:
        return


def when_imported(hooks: Mapping[str, Hook]) -> None:
    """Calls each hook with its module: now if it is imported already, else right after its code has run."""
    waiting = {}
    for name, hook in hooks.items():
        module = sys.modules.get(name)
        if module is None:
            waiting[name] = hook
        else:
            _call(hook, module)
    if waiting:
        sys.meta_path.insert(0, _Finder(waiting))
