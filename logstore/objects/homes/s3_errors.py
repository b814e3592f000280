"""What an S3 answer means for the caller: a decision on status and code, with no SDK in it.

A write is `Determinate` only if the answer is on a list of those that are sent *instead of* doing the work.
Every other answer, a bare 500 or a proxy's 502, may stand in for a success that was lost: `Indeterminate`. A
read changes nothing, so its failures are always `Determinate`.
"""

from __future__ import annotations

from typing import Literal

from logstore.errors import (
    Determinate,
    Indeterminate,
    LogStoreError,
    PreconditionFailed,
    StoreUnavailable,
    UnsupportedStore,
)

Condition = Literal["if_absent", "if_match"] | None

_THROTTLED = frozenset(
    ("SlowDown", "ServiceUnavailable", "RequestLimitExceeded", "Throttling", "ThrottlingException", "Busy")
)
# 4xx answers that another try may turn into a success. The rest will be the same next time.
_TRANSIENT_4XX = frozenset((408, 409, 425, 429))
_TRANSIENT_CODES = frozenset(("RequestTimeout", "ConditionalRequestConflict", "OperationAborted"))

_ADVICE = {
    "NoSuchBucket": "create the bucket, or fix its name in the URL",
    "AccessDenied": "give these credentials s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket",
    "InvalidAccessKeyId": "the server does not know these credentials: check the environment or the profile",
    "SignatureDoesNotMatch": "the secret key is wrong: check the environment or the profile",
    "ExpiredToken": "the session token has expired: log in again",
    "RequestTimeTooSkewed": "this machine's clock is wrong: set it",
    "PermanentRedirect": "the bucket is in another region: put ?region=… into the URL",
    "AuthorizationHeaderMalformed": "the bucket is in another region: put ?region=… into the URL",
    "InvalidBucketName": "fix the bucket's name in the URL",
    "InvalidObjectState": "a lifecycle rule has moved it to an archive: restore the object, and end the rule",
}


def from_answer(
    what: str, status: int, code: str, message: str, *, write: bool, condition: Condition = None
) -> LogStoreError:
    """The error for an answer. `what` names operation and key."""
    why = f"{what}: the server answered {status} {code}: {message}"
    if code in _ADVICE or status in (301, 401, 403):
        return _hopeless(StoreUnavailable(f"{why}. To do: {_ADVICE.get(code, _ADVICE['AccessDenied'])}"))
    # If-Match on an object that is not there: AWS answers 404, SeaweedFS 412.
    if condition and (status == 412 or (status == 404 and condition == "if_match")):
        return PreconditionFailed(why)
    if condition and status == 501:
        return UnsupportedStore(
            f"{why}. It has no conditional PutObject: use a server that has If-None-Match"
        )
    if 400 <= status < 500:
        refused = Determinate(why)
        if status not in _TRANSIENT_4XX and code not in _TRANSIENT_CODES:
            return _hopeless(refused)
        return refused
    if not write or (status == 503 and code in _THROTTLED):
        return Determinate(why)
    return Indeterminate(f"{why}. It may have happened: look before you try again")


def _hopeless(error: Determinate) -> Determinate:
    """Mark an error that stays the same until somebody changes something: trying again is only load."""
    error.retriable = False
    return error
