"""Errors of object stores and of deltalake in our own terms, without what must not be shown.

Their texts carry whole answers: an S3 error names the access key, and a presigned address holds a signature. Kept are
status and code.
"""

import re

from fleetscope.schema.errors import FleetscopeError, LakeDenied, LakeFull, LakeUnavailable, ObjectMissing

_CODE = re.compile(r"<Code>\s*([A-Za-z0-9.]{1,64})\s*</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_DENIED = frozenset(
    "AccessDenied InvalidAccessKeyId SignatureDoesNotMatch ExpiredToken InvalidToken TokenRefreshRequired "
    "AccountProblem AllAccessDisabled InvalidClientTokenId RequestTimeTooSkewed AuthorizationHeaderMalformed".split()
)
_MISSING = frozenset(("NoSuchBucket", "ContainerNotFound"))
_NO_CREDENTIALS = (
    "169.254.169.254",
    "/latest/api/token",
    "credential provider",
    "loading credentials",
    "CredentialsNotLoaded",
)
"""Without credentials both libraries ask the cloud's metadata address, which elsewhere refuses or does not answer."""


def code_of(error: BaseException) -> str:
    """The store's own code ("NoSuchBucket", "SlowDown"), "" if it gave none."""
    found = _CODE.search(str(error))
    return found[1] if found else ""


def why(error: BaseException) -> str:
    """One line that may stand in a log."""
    text = str(error).partition("\n\nDebug source")[0]
    status, code = _STATUS.search(text), code_of(error)
    if status or code:
        return " ".join(part for part in (f"status {status[1]}" if status else "", code) if part)
    text = re.sub(r"<[^>]*>|\?\S*|://[^/\s@]*@", " ", text)
    return " ".join(text.split())[:300]


def translate(error: BaseException, where: str) -> FleetscopeError:
    """What a caller can do about it: ObjectMissing, LakeDenied (credentials, rights, no such bucket), LakeFull,
    LakeUnavailable (away, throttled, anything else)."""
    text, code, reason = str(error), code_of(error), why(error)
    status = _STATUS.search(text)
    number = int(status[1]) if status else 0
    if any(word in text for word in _NO_CREDENTIALS):
        return LakeDenied(f"{where}: no credentials for the store were found")
    if code in _MISSING:
        return LakeDenied(f"{where}: there is no such bucket ({reason})")
    if code in _DENIED or number in (401, 403):
        return LakeDenied(f"{where}: the store refuses these credentials ({reason})")
    if code in ("QuotaExceeded", "InsufficientStorage", "XMinioStorageFull") or number == 507:
        return LakeFull(f"{where}: {reason}")
    if number == 404 or isinstance(error, FileNotFoundError):
        return ObjectMissing(f"{where}: not in the lake")
    return LakeUnavailable(f"{where}: {reason}")


def of_table(error: BaseException, where: str) -> FleetscopeError:
    """As `translate`, for deltalake: a file its log names and the store lacks is no answer to a question of ours."""
    failure = translate(error, where)
    return LakeUnavailable(f"{where}: {why(error)}") if isinstance(failure, ObjectMissing) else failure
