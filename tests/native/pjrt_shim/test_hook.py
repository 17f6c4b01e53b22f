"""The hook at jaxlib's loaders: what it falls back to, what it counts, and that it stays out of the way of errors."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fleetscope.agents.profiler import pjrt

pytestmark = pytest.mark.unit


class Native:
    """Stands in for _pjrt_shim."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.refusals, self.asked = answer, 0, []

    def wrap(self, name: str, source: Any) -> Any:
        self.asked.append((name, source))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def refused(self) -> None:
        self.refusals += 1

    def stop(self, timeout_ms: int) -> bool:
        return True


class Loaders:
    """jaxlib.xla_client, as far as the hook sees it."""

    def __init__(self, path_error: Exception | None = None, table_error: Exception | None = None) -> None:
        self.calls: list[tuple[str, str, Any]] = []

        def load_pjrt_plugin_dynamically(plugin_name: str, library_path: str) -> Any:
            self.calls.append(("path", plugin_name, library_path))
            if path_error:
                raise path_error
            return "real"

        def load_pjrt_plugin_with_c_api(plugin_name: str, c_api: Any) -> None:
            self.calls.append(("table", plugin_name, c_api))
            if table_error:
                raise table_error

        self.module: Any = SimpleNamespace(
            load_pjrt_plugin_dynamically=load_pjrt_plugin_dynamically,
            load_pjrt_plugin_with_c_api=load_pjrt_plugin_with_c_api,
        )


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pjrt, "refusals", {})
    monkeypatch.setattr(pjrt, "wrapped", set())


def hooked(monkeypatch: pytest.MonkeyPatch, native: Native, loaders: Loaders) -> Any:
    monkeypatch.setattr(pjrt, "_shim", lambda: native)
    pjrt.install(loaders.module)
    return loaders.module


def test_a_wrapped_table_goes_to_jaxlib(monkeypatch: pytest.MonkeyPatch) -> None:
    native, loaders = Native(object()), Loaders()
    module = hooked(monkeypatch, native, loaders)
    assert module.load_pjrt_plugin_dynamically("tpu", "/libtpu.so") is native.answer
    assert loaders.calls == [("table", "tpu", native.answer)]
    assert native.asked == [("tpu", "/libtpu.so")]
    assert (pjrt.wrapped, native.refusals) == ({"tpu"}, 0)


def test_a_table_of_the_programs_own_is_wrapped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    native, loaders = Native(object()), Loaders()
    module = hooked(monkeypatch, native, loaders)
    assert module.load_pjrt_plugin_with_c_api("own", "capsule") is None
    assert loaders.calls == [("table", "own", native.answer)]
    assert native.asked == [("own", "capsule")]


@pytest.mark.parametrize("answer", ["a table of 8 bytes", ImportError("no native half")])
def test_a_refusal_runs_the_real_plugin_and_is_counted(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    native, loaders = Native(answer), Loaders()
    module = hooked(monkeypatch, native, loaders)
    assert module.load_pjrt_plugin_dynamically("tpu", "/libtpu.so") == "real"
    assert loaders.calls == [("path", "tpu", "/libtpu.so")]
    assert (native.refusals, pjrt.wrapped) == (1, set())
    assert "bytes" in pjrt.refusals["tpu"] or "no native half" in pjrt.refusals["tpu"]


def test_a_plugin_nobody_can_load_fails_with_its_own_error_and_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("libtpu.so: cannot open shared object file")
    native, loaders = Native("it cannot be loaded"), Loaders(path_error=error)
    module = hooked(monkeypatch, native, loaders)
    with pytest.raises(RuntimeError) as caught:
        module.load_pjrt_plugin_dynamically("tpu", "/libtpu.so")
    assert caught.value is error
    assert native.refusals == 0


def test_a_table_jaxlib_does_not_want_is_dropped_for_the_real_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    native, loaders = Native(object()), Loaders(table_error=RuntimeError("no"))
    module = hooked(monkeypatch, native, loaders)
    assert module.load_pjrt_plugin_dynamically("tpu", "/libtpu.so") == "real"
    assert [call[0] for call in loaders.calls] == ["table", "path"]
    assert native.refusals == 1


def test_it_is_installed_once_and_can_be_kept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    native, loaders = Native(object()), Loaders()
    module = hooked(monkeypatch, native, loaders)
    first = module.load_pjrt_plugin_dynamically
    pjrt.install(module)
    assert module.load_pjrt_plugin_dynamically is first
    monkeypatch.setenv("FLEETSCOPE_PJRT_SHIM", "0")
    untouched = Loaders()
    before = untouched.module.load_pjrt_plugin_dynamically
    pjrt.install(untouched.module)
    assert untouched.module.load_pjrt_plugin_dynamically is before


def test_the_native_half_is_loaded_with_the_first_plugin_only(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[ModuleType] = []
    native, loaders = Native("no"), Loaders()

    def shim() -> Native:
        loads.append(sys)
        return native

    monkeypatch.setattr(pjrt, "_shim", shim)
    pjrt.install(loaders.module)
    assert loads == []
    loaders.module.load_pjrt_plugin_dynamically("a", "/a.so")
    loaders.module.load_pjrt_plugin_dynamically("b", "/b.so")
    assert len(loads) == 1
