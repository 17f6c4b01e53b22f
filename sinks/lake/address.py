"""The address of a lake: a folder, or a bucket with the options its store needs.

Options are named as the store's environment variables are, with or without prefix, in any case: `endpoint`,
`aws_region`, `AWS_ACCESS_KEY_ID`. What is not given comes from the environment. Two libraries open the same bucket and
read their options in different dialects; both are made here.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fleetscope.schema.errors import LakeAddressInvalid

_S3 = ("s3", "s3a")
REMOTE = (*_S3, "gs", "az", "abfs", "abfss", "memory")

_SYNONYMS = {"AWS_ENDPOINT": "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3": "AWS_ENDPOINT_URL"}
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")


@dataclass(frozen=True, slots=True)
class Address:
    """`folder` for a lake on disk, else None. `options`: name -> value for deltalake and obstore, credentials among
    them: never shown."""

    url: str
    folder: Path | None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def has_marks(self) -> bool:
        """Whether objects keep metadata, by which a writer knows its own."""
        return self.folder is None and not self.url.startswith("memory:")


def parse_address(url: str | Path, options: Mapping[str, str] | None = None) -> Address:
    """A path, file://, s3://bucket/prefix, gs://, az:// or memory:// address.

    Raises LakeAddressInvalid; its text repeats scheme and bucket only, since what stands in a wrong place may be a
    secret.
    """
    parts = urlsplit(str(url))
    if isinstance(url, Path) or "://" not in str(url):
        return Address(str(url), Path(url))
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise LakeAddressInvalid("lake file://: three slashes before the folder, and no host")
        return Address(str(url), Path(unquote(parts.path)))
    if parts.scheme not in REMOTE:
        raise LakeAddressInvalid(f"lake {parts.scheme}://: not a path, file://, s3://, gs:// or az:// address")
    where = f"lake {parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    if ("@" in parts.netloc and parts.scheme in _S3) or parts.password or parts.query or parts.fragment:
        raise LakeAddressInvalid(
            f"{where}: no credentials or options in an address; use the environment or lake.options"
        )
    if not parts.netloc and parts.scheme != "memory":
        raise LakeAddressInvalid(f"{where}: names no bucket")
    return Address(str(url).rstrip("/"), None, _options(parts.scheme, options or {}))


def _options(scheme: str, given: Mapping[str, str]) -> dict[str, str]:
    if scheme not in _S3:
        return dict(given)
    named = {_canonical(name): value for name, value in given.items()}
    endpoint = named.get("AWS_ENDPOINT_URL") or next((os.environ[n] for n in _ENDPOINTS if os.environ.get(n)), "")
    if endpoint:
        named["AWS_ENDPOINT_URL"] = endpoint.rstrip("/")
        # who writes http:// means it; both libraries would refuse without
        named.setdefault("AWS_ALLOW_HTTP", "true" if endpoint.startswith("http://") else "false")
        if not any(name in os.environ for name in ("AWS_REGION", "AWS_DEFAULT_REGION")):
            named.setdefault("AWS_REGION", "us-east-1")
    # deltalake: commits are created put-if-absent, as ours are
    named.setdefault("AWS_CONDITIONAL_PUT", "etag")
    return named


def _canonical(name: str) -> str:
    upper = name.strip().upper()
    upper = upper if upper.startswith("AWS_") else f"AWS_{upper}"
    return _SYNONYMS.get(upper, upper)
