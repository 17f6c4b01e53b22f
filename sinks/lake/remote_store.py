"""The lake in an object store, through obstore: conditional puts decide who was first."""

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import obstore
import pyarrow as pa
import pyarrow.fs
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import from_url

from fleetscope.schema.errors import LakeAddressInvalid, LakeUnavailable, ObjectMissing
from fleetscope.sinks.lake.faults import fault_point
from fleetscope.sinks.lake.objects import Write


class RemoteStore:
    """ObjectStore over any obstore store. `url` is what deltalake opens (it reads the same environment variables)."""

    def __init__(self, store: Any, url: str) -> None:
        self._store = store
        self._url = url.rstrip("/")

    @classmethod
    def open(cls, url: str) -> "RemoteStore":
        """From an s3://, gs://, az:// or memory:// URL. Raises LakeAddressInvalid."""
        try:
            return cls(from_url(url), url)
        except (BaseError, ValueError) as error:
            raise LakeAddressInvalid(f"lake {urlsplit(url).scheme}://{urlsplit(url).netloc}: {error}") from error

    @property
    def url(self) -> str:
        return self._url

    @property
    def is_local(self) -> bool:
        return False

    @property
    def options(self) -> dict[str, str] | None:
        return None

    def location(self, key: str) -> str:
        return key

    def location_url(self, key: str) -> str:
        return f"{self._url}/{key}"

    def filesystem(self) -> Any:
        return pa.fs.PyFileSystem(_ReadOnly(self))

    def _put(self, key: str, data: bytes, mode: Literal["create", "overwrite"]) -> bool:
        fault_point("object.before_link")
        try:
            obstore.put(self._store, key, data, mode=mode)
        except AlreadyExistsError:
            return False
        except (BaseError, OSError) as error:
            raise LakeUnavailable(f"{key}: {error}") from error
        fault_point("object.linked")
        return True

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._put(key, data, "create")

    def put(self, key: str, data: bytes) -> None:
        self._put(key, data, "overwrite")

    def add_file(self, key: str, write: Write) -> int | None:
        buffer = pa.BufferOutputStream()
        write(buffer)
        fault_point("file.written")
        data = buffer.getvalue()
        return data.size if self._put(key, data.to_pybytes(), "create") else None

    def get(self, key: str) -> bytes:
        try:
            return bytes(obstore.get(self._store, key).bytes())
        except (NotFoundError, FileNotFoundError) as error:
            raise ObjectMissing(f"{key}: not in the lake") from error
        except (BaseError, OSError) as error:
            raise LakeUnavailable(f"{key}: {error}") from error

    def size(self, key: str) -> int | None:
        try:
            return int(obstore.head(self._store, key)["size"])
        except (NotFoundError, FileNotFoundError):
            return None
        except (BaseError, OSError) as error:
            raise LakeUnavailable(f"{key}: {error}") from error

    def _entries(self, prefix: str, after: str = "") -> list[Any]:
        try:
            stream = obstore.list(self._store, prefix.strip("/") or None, offset=after or None)
            return [entry for chunk in stream for entry in chunk]
        except (BaseError, OSError) as error:
            raise LakeUnavailable(f"{prefix}: {error}") from error

    def keys(self, prefix: str, after: str = "") -> list[str]:
        keys = (str(entry["path"]) for entry in self._entries(prefix, after))
        return sorted(key for key in keys if key > after and not key.rsplit("/", 1)[-1].startswith("."))

    def folders(self, prefix: str) -> list[str]:
        try:
            found = obstore.list_with_delimiter(self._store, prefix.strip("/") or None)
        except (BaseError, OSError) as error:
            raise LakeUnavailable(f"{prefix}: {error}") from error
        return sorted(str(path).rsplit("/", 1)[-1] for path in found["common_prefixes"])

    def modified(self, prefix: str) -> Mapping[str, float]:
        return {str(entry["path"]): entry["last_modified"].timestamp() for entry in self._entries(prefix)}

    def delete(self, key: str) -> None:
        try:
            obstore.delete(self._store, key)
        except (NotFoundError, FileNotFoundError):
            pass
        except (BaseError, OSError) as error:
            raise LakeUnavailable(f"{key}: {error}") from error


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
