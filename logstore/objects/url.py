"""One string that says where the objects live.

    s3://bucket/prefix?endpoint_url=http://…&region=…&profile=…   credentials come from boto3's chain, never from here
    file:///var/lib/shop, file:/var/lib/shop, or a plain path      a local folder
    memory://name                                                  this process's memory, shared by name

What cannot be opened raises `UnsupportedStore` and says what can. No message repeats a part of the URL that might be a
secret.
"""

from __future__ import annotations

import os
import re
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from logstore.errors import UnsupportedStore
from logstore.objects.homes.local import LocalStore
from logstore.objects.homes.memory import MemoryStore
from logstore.objects.protocol import OPERATIONS, ObjectStore
from logstore.objects.wrappers.foreign import ForeignErrors
from logstore.objects.wrappers.metered import MeteredStore
from logstore.objects.wrappers.retrying import RetryingStore
from logstore.objects.wrappers.slices import SlicedStore

ALLOWED = (
    "s3://bucket/prefix, file:///absolute/path, memory://name, a plain path, or an ObjectStore of your own"
)
_SCHEME = re.compile(r"(?i:s3|file|memory):|[A-Za-z][A-Za-z0-9+.-]+:/")
"""Of ours without a slash already: `s3:bucket/prefix` is a slip of the finger and `file:/path` is a URL, neither a folder's
name. (`./s3:bucket` is.) Of others with one; one letter is a drive."""
MEMORY = "memory://"
S3_PARAMETERS = ("endpoint_url", "region", "profile")


def open_url(where: str | os.PathLike[str] | ObjectStore) -> ObjectStore:
    """The store at `where`, bare: no retries, no metrics.

    An object that has the methods is returned as it is.
    """
    if isinstance(where, os.PathLike):
        return _folder(os.fspath(where))
    if not isinstance(where, str):
        # Not isinstance: from Python 3.12 on it does not see methods that a wrapper passes on in `__getattr__`.
        missing = [name for name in OPERATIONS if not callable(getattr(where, name, None))]
        if missing:
            raise UnsupportedStore(
                f"a {type(where).__name__} is no object store, it has no {', no '.join(missing)}: use {ALLOWED}"
            )
        return where
    if not _SCHEME.match(where):
        return _folder(where)
    url = urlsplit(where)
    if "@" in url.netloc:
        raise UnsupportedStore(
            "credentials do not belong in the URL: set them in the environment or a profile"
        )
    if url.fragment:
        raise UnsupportedStore(f"{url.scheme}://{url.netloc}: a URL with a '#' is no place for objects")
    if url.scheme == "s3":
        return _s3(url)
    if url.scheme == "file":
        _parameters(url, ())
        if url.netloc not in ("", "localhost") or not url.path.startswith("/"):
            raise UnsupportedStore("a file URL names an absolute path on this machine: file:///absolute/path")
        return _folder(unquote(url.path))
    if url.scheme == "memory":
        _parameters(url, ())
        name = url.netloc + url.path
        if not name or "://" not in where:
            raise UnsupportedStore("memory:// needs a name: memory://name")
        return MemoryStore.named(name)
    if url.scheme in ("s3a", "s3n"):
        raise UnsupportedStore(f"{url.scheme}:// is Hadoop's name for a bucket: use s3://bucket/prefix")
    raise UnsupportedStore(f"{url.scheme}:// is not known: use {ALLOWED}")


def url_of(store: ObjectStore) -> str | None:
    """What `open_url` would need to open the same place, without credentials; None for a store that has no URL.

    Looks behind the wrappers that an open store puts round it, and no others: those may change what is read.
    """
    while isinstance(store, RetryingStore | ForeignErrors | SlicedStore | MeteredStore):
        store = store.inner
    url = getattr(store, "url", None)
    return url if isinstance(url, str) else None


def _folder(path: str) -> ObjectStore:
    if not path:
        raise UnsupportedStore(f"an empty string is no place for objects: use {ALLOWED}")
    if os.path.exists(path) and not os.path.isdir(path):
        raise UnsupportedStore(f"{path} is a file: name a folder")
    return LocalStore(path)


def _s3(url: SplitResult) -> ObjectStore:
    if not url.netloc:
        raise UnsupportedStore("the bucket's name is missing: s3://bucket/prefix")
    parameters = _parameters(url, S3_PARAMETERS)
    endpoint = urlsplit(parameters.get("endpoint_url", "https://s3"))
    if endpoint.scheme not in ("http", "https") or not endpoint.hostname:
        raise UnsupportedStore("endpoint_url must be an http:// or https:// URL")
    if "@" in endpoint.netloc:
        raise UnsupportedStore(
            "credentials do not belong in endpoint_url: set them in the environment or a profile"
        )
    # boto3 takes a second to import: only who opens a bucket pays for it.
    from logstore.objects.homes.s3 import S3Store

    return S3Store(
        url.netloc,
        url.path,
        endpoint_url=parameters.get("endpoint_url"),
        region=parameters.get("region"),
        profile=parameters.get("profile"),
    )


def _parameters(url: SplitResult, allowed: tuple[str, ...]) -> dict[str, str]:
    pairs = parse_qsl(url.query, keep_blank_values=True)
    known = ", ".join(allowed) if allowed else "none at all"
    for name, value in pairs:
        if name not in allowed:
            raise UnsupportedStore(f"{url.scheme}:// takes no parameter {name!r}; allowed: {known}")
        if not value:
            raise UnsupportedStore(f"the parameter {name} is empty: give it a value, or leave it out")
    found = dict(pairs)
    if len(found) != len(pairs):
        raise UnsupportedStore(f"a parameter is given twice; allowed once each: {known}")
    return found
