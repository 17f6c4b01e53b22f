"""Where the lake's bytes are kept, and the one operation everything rests on: create a key only if it is not there.

Two implementations behind one protocol: a local folder (hard link + fsync, durable when it returns) and an object store
(conditional put). Keys are relative, '/'-separated, and never begin with '.'; names that do are unfinished writes.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fleetscope.sinks.lake.address import parse_address

Write = Callable[[Any], None]
"""Writes a whole file into a pyarrow NativeFile."""


class ObjectStore(Protocol):
    """Safe to use from several threads and processes. Raises ObjectMissing, LakeFull, LakeUnavailable (nothing
    happened), LakeDenied."""

    @property
    def url(self) -> str:
        """Path or URL of the root, as deltalake and people write it."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """True: the key is now there with exactly these bytes, durably. False: it was there already, untouched."""

    def put(self, key: str, data: bytes) -> None:
        """Create or replace, never seen half-written."""

    def get(self, key: str) -> bytes:
        """All bytes of an object. Raises ObjectMissing."""

    def size(self, key: str) -> int | None:
        """Bytes of the object, None if there is none."""

    def keys(self, prefix: str, after: str = "") -> list[str]:
        """Keys under a folder (all levels), sorted, those > `after` only. A folder that is not there is empty."""

    def folders(self, prefix: str) -> list[str]:
        """Names of the folders directly in a folder, sorted: one look however much lies below."""

    def modified(self, prefix: str) -> Mapping[str, float]:
        """Key -> Unix time (s) of its last write, unfinished writes included, for sweeping."""

    def delete(self, key: str) -> None:
        """Deleting what is not there is no error."""

    def add_file(self, key: str, write: Write) -> int | None:
        """Create an immutable file from `write`; its size, or None if the key was there already (then nothing
        changed)."""

    @property
    def is_local(self) -> bool:
        """Whether `location` is a path any program on this machine can open."""

    def filesystem(self) -> Any:
        """A pyarrow FileSystem whose paths are `location(key)`."""

    def location(self, key: str) -> str:
        """What `filesystem()` calls the key; for a local folder also a path."""

    def location_url(self, key: str) -> str:
        """What deltalake calls the key."""

    @property
    def options(self) -> dict[str, str] | None:
        """Storage options for deltalake."""


_remote: dict[str, ObjectStore] = {}
"""By URL: a store keeps connections, and stages that know no more than the URL share what a role opened with its
options."""


def open_store(url: str | Path, options: Mapping[str, str] | None = None) -> ObjectStore:
    """A path or file:// URL -> local folder (made if missing); s3://, gs://, az://, memory:// -> object store.

    `options` are those of `address`; without them the ones this process opened the URL with before, else the store's
    usual environment variables. Raises LakeAddressInvalid.
    """
    address = parse_address(url, options)
    if address.folder is not None:
        from fleetscope.sinks.lake.local_store import LocalFolder

        return LocalFolder(address.folder)
    known = _remote.get(address.url)
    if known is not None and (options is None or known.options == (dict(address.options) or None)):
        return known
    from fleetscope.sinks.lake.remote_store import RemoteStore

    store = RemoteStore.open(address)
    if not address.url.startswith("memory:"):
        _remote[address.url] = store
    return store
