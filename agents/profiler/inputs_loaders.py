"""Loaders we know: the wait for their next batch is a region, exact, on the training thread and without a sample.

Only where the program imports them, by an entry in the class they all share: what a loader does, raises, pickles to or
says of itself stays what it was. A loader that feeds another one counts once, as the outermost; one that runs on a
thread of its own (prefetching) is not what the program waits for and counts nothing.
"""

from _thread import _local
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from fleetscope.native import _recorder


class _Within(_local):
    """Whether this thread is inside a loader already."""

    loader = False


_within = _Within()
_MARK = "_fleetscope_waits"


def watch(kind: type, library: str) -> None:
    """Makes `kind.__next__`, where the class has one of its own, a DATA_WAIT region named after the library."""
    original: Callable[[Any], Any] | None = kind.__dict__.get("__next__")
    if original is None or hasattr(original, _MARK) or getattr(original, "__isabstractmethod__", False):
        return
    annotation = _recorder.annotate(f"data_wait ({library})")

    @wraps(original)
    def __next__(self: Any) -> Any:
        if _within.loader or not _recorder.leads():
            return original(self)
        _within.loader = True
        try:
            with annotation:
                return original(self)
        finally:
            _within.loader = False

    setattr(__next__, _MARK, True)
    kind.__next__ = __next__  # type: ignore[attr-defined]


def _classes(library: str, *names: str) -> Callable[[ModuleType], None]:
    def hook(module: ModuleType) -> None:
        for name in names:
            kind = getattr(module, name, None)
            if isinstance(kind, type):
                watch(kind, library)

    return hook


def _grain_datasets(module: ModuleType) -> None:
    """Every iterator of a dataset is a class of its own below this one, most of them made later.

    Only grain's: a class of the user's may be pickled by value, for a worker process, and our entry with it.
    """
    base = module.DatasetIterator

    def watch_all(kind: type[Any]) -> None:
        if kind.__module__.partition(".")[0] == base.__module__.partition(".")[0]:
            watch(kind, "grain")
        for below in kind.__subclasses__():
            watch_all(below)

    def __init_subclass__(cls: type[Any], /, **kwargs: Any) -> None:
        super(base, cls).__init_subclass__(**kwargs)
        watch_all(cls)

    watch_all(base)
    if "__init_subclass__" not in base.__dict__:
        base.__init_subclass__ = classmethod(__init_subclass__)


LOADERS: dict[str, Callable[[ModuleType], None]] = {
    "torch.utils.data.dataloader": _classes("torch", "_BaseDataLoaderIter"),
    "grain._src.python.data_loader": _classes("grain", "DataLoaderIterator", "PyGrainDatasetIterator"),
    "grain._src.python.dataset.dataset": _grain_datasets,
    "tensorflow.python.data.ops.iterator_ops": _classes("tf.data", "OwnedIterator"),
    "tensorflow.python.data.ops.dataset_ops": _classes("tf.data", "NumpyIterator", "_NumpyIterator"),
}
"""Module -> what is done once its code has run."""
