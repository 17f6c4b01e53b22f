"""Native code: the span recorder, the XSpace decoder, the PJRT shim. Of interest to builds: where the public header of
the recorder lies, `fleetscope/recorder.h`, and its CMake package.

>>> cmake_dir()  # doctest: +SKIP
'.../site-packages/fleetscope/native/cmake'
"""


def include_dir() -> str:
    """The folder to give a compiler for `#include <fleetscope/recorder.h>`."""
    return _installed("include")


def cmake_dir() -> str:
    """The folder to give CMake as `fleetscope_DIR` for `find_package(fleetscope)`."""
    return _installed("cmake")


def _installed(folder: str) -> str:
    import os

    from fleetscope.native import _recorder

    # Beside the shared object: an editable install has its Python files elsewhere.
    return os.path.join(os.path.dirname(str(_recorder.__file__)), folder)
