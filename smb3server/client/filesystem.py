"""The file system ``smbd://USER@HOST/SHARE/PATH`` of fsspec: what pandas, dask, pyarrow and others open by URL.

    import pandas
    table = pandas.read_csv("smbd://alice@nas/data/table.csv", storage_options={"rdma": "auto"})

``storage_options`` are the options of ``smb3server.client.connect``. fsspec finds the class by its entry point. It
is an optional part (``pip install '.[fsspec]'`` in the source's folder).

A pickle of the file system has the options as they were given, a password too. With ``credentials_file``, or with none
of them, the process that unpickles finds the password itself.
"""

from __future__ import annotations

import os
import threading
import weakref
from datetime import datetime
from pathlib import Path
from typing import Any

from fsspec.spec import AbstractFileSystem
from fsspec.utils import infer_storage_options, stringify_path

from smb3server.client import sync
from smb3server.client.address import Address
from smb3server.client.entries import Entry
from smb3server.net.host import SMB_PORT

PROTOCOLS = ("smbd",)


class SmbDirectFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The shares of one server that one user may use. The first component of a path is the share."""

    protocol = PROTOCOLS
    root_marker = "/"

    def __init__(self, host: str, port: int | None = None, username: str | None = None, **options: Any) -> None:
        """Prepare; each share is connected when it is used first.

        ``options`` are those of ``smb3server.client.connect``, and of fsspec: ``use_listings_cache`` and others.
        """
        ours = {name: options.pop(name) for name in list(options) if name in sync.OPTIONS}
        super().__init__(host=host, port=port, username=username, **options)
        self.host, self.port = host, port or SMB_PORT
        self._user = username or ours.pop("user", None) or ""
        self._options = ours
        self._begin()
        _file_systems[id(self)] = self

    def _begin(self) -> None:
        self._shares: dict[str, sync.Share] = {}
        self._lock = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text = stringify_path(path)
        if "://" in text:
            text = infer_storage_options(text)["path"]
        return "/" + text.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        found = infer_storage_options(path)
        return {name: found[name] for name in ("host", "port", "username", "password") if name in found}

    def unstrip_protocol(self, name: str) -> str:
        """Return the URL of a path."""
        share, path = self._split(name)
        return str(Address(self.host, share, path, self.port, self._user)).replace("smb://", "smbd://", 1)

    def _split(self, path: str) -> tuple[str, str]:
        share, _, rest = self._strip_protocol(path).lstrip("/").partition("/")
        return share, rest

    def _at(self, path: str) -> tuple[sync.Share, str]:
        """Return the connected share of a path, and the path in it."""
        name, rest = self._split(path)
        if not name:
            raise ValueError(f"{path}: no share; write smbd://USER@HOST/SHARE/PATH")
        with self._lock:
            share = self._shares.get(name)
            if share is None:
                url = str(Address(self.host, name, "", self.port, self._user))
                share = self._shares[name] = sync.connect(url, **self._options)
        return share, rest

    def close(self) -> None:
        """Close the connections; the next use makes new ones."""
        with self._lock:
            shares, self._shares = self._shares, {}
        for share in shares.values():
            share.close()

    def _info(self, share: str, entry: Entry) -> dict[str, Any]:
        return {
            "name": f"/{share}/{entry.path}".rstrip("/"),
            "size": 0 if entry.is_dir() else entry.size,
            "type": "directory" if entry.is_dir() else "file" if entry.is_file() else "link",
            "mtime": entry.st_mtime,
            "created": entry.created,
            "attributes": entry.attributes,
        }

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Return what is known of a file or folder."""
        share, rest = self._at(path)
        return self._info(self._split(path)[0], share.stat(rest))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """List a folder, or one file."""
        share, rest = self._at(path)
        name = self._split(path)[0]
        try:
            found = [self._info(name, entry) for entry in share.scandir(rest)]
        except NotADirectoryError:
            found = [self.info(path)]
        return found if detail else sorted(entry["name"] for entry in found)

    def modified(self, path: str) -> datetime:
        """Return when the content was changed last."""
        share, rest = self._at(path)
        return share.stat(rest).modified

    def created(self, path: str) -> datetime:
        """Return when the file was made."""
        share, rest = self._at(path)
        return share.stat(rest).created

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Make a folder."""
        share, rest = self._at(path)
        share.mkdir(rest, parents=create_parents)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a folder and those above it."""
        share, rest = self._at(path)
        if rest or not exist_ok:
            share.mkdir(rest, parents=True, exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        share, rest = self._at(path)
        share.rmdir(rest)

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        share, rest = self._at(path)
        share.remove(rest)

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files, and with ``recursive`` folders with everything below them."""
        for one in (
            self.expand_path(path, recursive=False) if not maxdepth else self.expand_path(path, recursive, maxdepth)
        ):
            share, rest = self._at(one)
            if not share.is_dir(rest):
                share.remove(rest)
            elif recursive and maxdepth is None:
                share.rmtree(rest)
            else:
                share.rmdir(rest)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy a file; on one share the server does it."""
        source, source_path = self._at(path1)
        target, target_path = self._at(path2)
        if source.is_dir(source_path):
            target.mkdir(target_path, parents=True, exist_ok=True)
            return
        self._make_parent(target, target_path)
        source.copy(source_path, target_path, to=target)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Rename a file or folder; a file that has the new name is replaced."""
        source, source_path = self._at(path1)
        target, target_path = self._at(path2)
        if source is not target or path2.endswith("/") or target.is_dir(target_path):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)
            return
        self._make_parent(target, target_path)
        source.replace(source_path, target_path)

    def get_file(self, rpath: str, lpath: str, callback: Any = None, outfile: Any = None, **kwargs: Any) -> None:
        """Copy a file of a share to a local file."""
        share, rest = self._at(rpath)
        if outfile is not None or not isinstance(lpath, str | os.PathLike) or share.is_dir(rest):
            super().get_file(rpath, lpath, outfile=outfile, **({"callback": callback} if callback else {}), **kwargs)
            return
        Path(lpath).parent.mkdir(parents=True, exist_ok=True)
        share.download(rest, lpath, progress=_reports(callback))

    def put_file(self, lpath: str, rpath: str, callback: Any = None, mode: str = "overwrite", **kwargs: Any) -> None:
        """Copy a local file to a share."""
        share, rest = self._at(rpath)
        if mode != "overwrite" or Path(lpath).is_dir():
            super().put_file(lpath, rpath, mode=mode, **({"callback": callback} if callback else {}), **kwargs)
            return
        self._make_parent(share, rest)
        share.upload(lpath, rest, progress=_reports(callback))

    @staticmethod
    def _make_parent(share: sync.Share, path: str) -> None:
        parent = path.rpartition("/")[0]
        if parent:
            share.mkdir(parent, parents=True, exist_ok=True)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> Any:
        if not autocommit:
            raise NotImplementedError("a file system smbd has no transactions")
        share, rest = self._at(path)
        if "r" not in mode:
            self._make_parent(share, rest)
        return share.open(rest, mode, buffering=block_size if block_size and block_size > 1 else -1)


_file_systems: weakref.WeakValueDictionary[int, SmbDirectFileSystem] = weakref.WeakValueDictionary()


def _forked() -> None:
    """Let file systems connect anew in a child process: it cannot use its parent's shares."""
    for one in list(_file_systems.values()):
        one._begin()


os.register_at_fork(after_in_child=_forked)


def _reports(callback: Any) -> Any:
    """Return a function that tells fsspec's callback of progress."""
    if callback is None:
        return None

    def report(done: int, size: int) -> None:
        callback.set_size(size)
        callback.absolute_update(done)

    return report
