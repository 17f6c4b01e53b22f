"""The PJRT shim: every plugin that jaxlib loads is wrapped on its way, so that each execution is recorded.

One place catches all of them: jaxlib.xla_client.load_pjrt_plugin_dynamically (libtpu, CUDA, ROCm, whatever is
registered), and its sibling for tables a program brings itself. jax's built-in CPU never comes by. What cannot be
wrapped is loaded as if we were not there, and counted; what cannot be loaded fails with jaxlib's own error, because
jaxlib itself is asked. $FLEETSCOPE_PJRT_SHIM=0 keeps the shim out.
"""

import os
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

END_MS = 2000
"""What leaving waits at most for the shim's thread to come out of a plugin: static destructors follow."""

wrapped: "set[str]" = set()
"""jax's names of the platforms whose executions the shim records."""

refusals: "dict[str, str]" = {}
"""Plugins that run unwrapped, by jax's name, and why."""


def _shim() -> "Any":
    """The native half; imported with the first plugin, 0.1 MB that a process on the built-in CPU never loads."""
    import atexit

    from fleetscope.native import _pjrt_shim

    atexit.register(_pjrt_shim.stop, END_MS)
    return _pjrt_shim


def install(module: ModuleType) -> None:
    """Puts wrapping loaders into jaxlib.xla_client."""
    by_path, by_table = module.load_pjrt_plugin_dynamically, module.load_pjrt_plugin_with_c_api
    if os.environ.get("FLEETSCOPE_PJRT_SHIM") == "0" or getattr(by_path, "__fleetscope__", False):
        return
    native: Any = None

    def load(name: "Any", source: "Any") -> "tuple[Any, Any] | None":
        """Our table for `source` and what jaxlib gives for it; None: `source` itself is to be loaded."""
        nonlocal native
        try:
            native = native or _shim()
            table = native.wrap(name, source)
            if not isinstance(table, str):
                result = by_table(name, table)
                wrapped.add(name)
                return table, result
            refusals[str(name)] = table
        except Exception as error:
            refusals[str(name)] = f"{type(error).__name__}: {error}"
        return None

    def count_refusal() -> None:
        """Only once the real load has succeeded: a plugin that nobody can load was not refused."""
        if native is not None:
            native.refused()

    def load_pjrt_plugin_dynamically(plugin_name: str, library_path: str) -> "Any":
        ours = load(plugin_name, library_path)
        if ours is not None:
            return ours[0]
        real = by_path(plugin_name, library_path)
        count_refusal()
        return real

    def load_pjrt_plugin_with_c_api(plugin_name: str, c_api: "Any") -> "Any":
        ours = load(plugin_name, c_api)
        if ours is not None:
            return ours[1]
        result = by_table(plugin_name, c_api)
        count_refusal()
        return result

    for ours, real in ((load_pjrt_plugin_dynamically, by_path), (load_pjrt_plugin_with_c_api, by_table)):
        ours.__module__, ours.__qualname__, ours.__doc__ = real.__module__, real.__qualname__, real.__doc__
        ours.__fleetscope__ = True  # type: ignore[union-attr]
    module.load_pjrt_plugin_dynamically = load_pjrt_plugin_dynamically  # type: ignore[attr-defined]
    module.load_pjrt_plugin_with_c_api = load_pjrt_plugin_with_c_api  # type: ignore[attr-defined]
