"""The lake in an object store, through obstore: conditional puts decide who was first.

A put whose answer is lost may have happened. Each conditional put therefore carries a mark of its own in the object's
metadata: who finds the key taken, or hears nothing, looks whether the mark is his.
"""

import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.fs
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from fleetscope.schema.errors import LakeAddressInvalid, LakeUnavailable, ObjectMissing
from fleetscope.sinks.lake.address import Address, parse_address
from fleetscope.sinks.lake.failures import translate, why
from fleetscope.sinks.lake.faults import fault_point
from fleetscope.sinks.lake.objects import Write

MARK = "fleetscope-put"
_RETRY: Any = {"max_retries": 6, "retry_timeout": timedelta(seconds=20)}
"""0.1 s doubling: a store that refuses holds a caller for 3-6 s, one that is silent for 30 s and a look. Roles then try
again by themselves."""
_CLIENT: Any = {"timeout": timedelta(seconds=30), "connect_timeout": timedelta(seconds=4)}
_PROBE_RETRY: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=3)}
_PROBE_CLIENT: Any = {"timeout": timedelta(seconds=3), "connect_timeout": timedelta(seconds=2)}


def _connect(address: Address, client: Any, retry: Any) -> Any:
    if address.url.startswith("memory:"):
        return from_url(address.url)
    http = address.options.get("AWS_ALLOW_HTTP") == "true"
    # what obstore has no name for is deltalake's alone
    config: Any = {name: value for name, value in address.options.items() if name != "AWS_ALLOW_HTTP"}
    options: Any = {**client, "allow_http": True} if http else client
    try:
        return from_url(address.url, config=config or None, client_options=options, retry_config=retry)
    except (BaseError, ValueError) as error:
        raise LakeAddressInvalid(f"lake {address.url}: {why(error)}") from None


def probe(address: Address) -> None:
    """One look at the bucket, at most ~4 s, nothing repeated. Raises LakeAddressInvalid, LakeDenied,
    LakeUnavailable."""
    store = _connect(address, _PROBE_CLIENT, _PROBE_RETRY)
    try:
        obstore.list_with_delimiter(store, "rounds")
    except (BaseError, OSError) as error:
        raise translate(error, f"lake {address.url}") from None


class RemoteStore:
    """ObjectStore over any obstore store. `address`: what deltalake opens, and with which options."""

    def __init__(self, store: Any, address: Address) -> None:
        self._store = store
        self._address = address

    @classmethod
    def open(cls, address: Address) -> "RemoteStore":
        """Connects to nothing yet. Raises LakeAddressInvalid."""
        return cls(_connect(address, _CLIENT, _RETRY), address)

    @classmethod
    def over(cls, store: Any, url: str) -> "RemoteStore":
        """Over a store made by the caller."""
        return cls(store, parse_address(url))

    @property
    def url(self) -> str:
        return self._address.url

    @property
    def is_local(self) -> bool:
        return False

    @property
    def options(self) -> dict[str, str] | None:
        return dict(self._address.options) or None

    def location(self, key: str) -> str:
        return key

    def location_url(self, key: str) -> str:
        return f"{self.url}/{key}"

    def filesystem(self) -> Any:
        return pa.fs.PyFileSystem(_ReadOnly(self))

    def _create(self, key: str, data: bytes) -> bool:
        fault_point("object.before_link")
        mark = uuid.uuid4().hex if self._address.has_marks else ""
        more: Any = {"attributes": {MARK: mark}} if mark else {}
        try:
            obstore.put(self._store, key, data, mode="create", **more)
        except AlreadyExistsError:
            # the library repeats a put that was not answered, and then finds it done
            if not self._is_own(key, mark):
                return False
        except (BaseError, OSError) as error:
            failure = translate(error, key)
            if not isinstance(failure, LakeUnavailable) or not self._is_own(key, mark):
                raise failure from None
        fault_point("object.linked")
        return True

    def _is_own(self, key: str, mark: str) -> bool:
        if not mark:
            return False
        try:
            found: Any = obstore.get(self._store, key, options={"head": True}).attributes
        except (BaseError, OSError) as error:
            failure = translate(error, key)
            if isinstance(failure, ObjectMissing):
                return False
            raise failure from None
        return bool(found.get(MARK) == mark)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._create(key, data)

    def put(self, key: str, data: bytes) -> None:
        fault_point("object.before_link")
        try:
            obstore.put(self._store, key, data)
        except (BaseError, OSError) as error:
            raise translate(error, key) from None
        fault_point("object.linked")

    def add_file(self, key: str, write: Write) -> int | None:
        buffer = pa.BufferOutputStream()
        write(buffer)
        fault_point("file.written")
        data = buffer.getvalue()
        return data.size if self._create(key, data.to_pybytes()) else None

    def get(self, key: str) -> bytes:
        try:
            return bytes(obstore.get(self._store, key).bytes())
        except (BaseError, OSError) as error:
            raise translate(error, key) from None

    def size(self, key: str) -> int | None:
        try:
            return int(obstore.head(self._store, key)["size"])
        except (BaseError, OSError) as error:
            failure = translate(error, key)
            if isinstance(failure, ObjectMissing):
                return None
            raise failure from None

    def _entries(self, prefix: str, after: str = "") -> list[Any]:
        try:
            stream = obstore.list(self._store, prefix.strip("/") or None, offset=after or None)
            return [entry for chunk in stream for entry in chunk]
        except (BaseError, OSError) as error:
            raise translate(error, prefix or self.url) from None

    def keys(self, prefix: str, after: str = "") -> list[str]:
        keys = (str(entry["path"]) for entry in self._entries(prefix, after))
        return sorted(key for key in keys if key > after and not key.rsplit("/", 1)[-1].startswith("."))

    def folders(self, prefix: str) -> list[str]:
        try:
            found = obstore.list_with_delimiter(self._store, prefix.strip("/") or None)
        except (BaseError, OSError) as error:
            raise translate(error, prefix or self.url) from None
        return sorted(str(path).rsplit("/", 1)[-1] for path in found["common_prefixes"])

    def modified(self, prefix: str) -> Mapping[str, float]:
        return {str(entry["path"]): entry["last_modified"].timestamp() for entry in self._entries(prefix)}

    def delete(self, key: str) -> None:
        try:
            obstore.delete(self._store, key)
        except (BaseError, OSError) as error:
            failure = translate(error, key)
            if not isinstance(failure, ObjectMissing):
                raise failure from None


class _ReadOnly(pa.fs.FileSystemHandler):  # type: ignore[misc]
    """As much of a pyarrow file system as reading Parquet files by name needs."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store

    def get_type_name(self) -> str:
        return "fleetscope"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[Any]:
        found = []
        for path in paths:
            size = self._store.size(path)
            kind = pa.fs.FileType.NotFound if size is None else pa.fs.FileType.File
            found.append(pa.fs.FileInfo(path, kind, size=size))
        return found

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        return self.get_file_info(self._store.keys(selector.base_dir))

    def open_input_file(self, path: str) -> Any:
        try:
            return pa.BufferReader(self._store.get(path))
        except ObjectMissing as error:
            raise FileNotFoundError(path) from error

    def open_input_stream(self, path: str) -> Any:
        return self.open_input_file(path)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise PermissionError("the lake is written through ObjectStore only")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse
