"""Reading from S3: bytes straight to their destination, one version only, going on where an attempt broke off."""

from __future__ import annotations

from ...errors import ChangedError, NotFoundError
from ...view import empty
from ..base import ObjectInfo, Read, ReadResult, clamp
from .http import Head, Request, Response
from .retry import Failure, Question, Verdict
from .s3_calls import Call, StatCall, etag_of, range_of, version_query
from .s3_checksums import is_intact
from .s3_errors import Site, failure_of

__all__ = ["ReadCall"]


class ReadCall(Call):
    """Bytes of an object, straight into the destination; goes on where an attempt broke off, on the same version."""

    __slots__ = ("_expected", "_filled", "_info", "_memory", "_size", "_spare", "_whole", "read")
    action = "read"
    is_read = True

    def __init__(self, site: Site, read: Read) -> None:
        super().__init__(site, read.key)
        self.read = read
        self._info: ObjectInfo | None = None
        self._memory: memoryview | None = None
        self._filled = 0  # bytes of `_memory` that earlier attempts brought
        self._expected = read.match  # the etag of the only version that will do
        self._size: int | None = None  # as a HEAD has told
        self._whole = False  # ask without a range: an empty object has none
        self._spare: memoryview | None = None  # an answer that does not fit: the whole object where a range was asked

    def request(self) -> Request:
        read = self.read
        if read.ask_first or read.length == 0:  # no range of bytes is empty in HTTP
            raise Question(self._stat(), self._told)
        headers: list[tuple[str, str]] = []
        first, self._spare = read.start + self._filled, None
        if read.length is not None and not self._whole:
            headers.append(("range", f"bytes={first}-{read.start + read.length - 1}"))
        elif first > 0 and not self._whole:
            headers.append(("range", f"bytes={first}-"))
        etag = self._expected or (self._info.etag if self._info else None)
        if etag and not etag.startswith("W/"):  # a weak etag is no condition for bytes, but is compared below
            headers.append(("if-match", f'"{etag}"'))
        if self.site.verifies_checksums and first == 0:
            headers.append(("x-amz-checksum-mode", "ENABLED"))
        query = () if read.version is None else version_query(read.version)
        request = self.site.signed("GET", self.key, query, headers)
        request.into = self._into
        return request

    def _into(self, head: Head, length: int) -> memoryview:
        """Where the body of a 200 or 206 goes, once the head has told what it is."""
        if head.status == 200:
            first, count, size = 0, length, length
        else:
            first, count, total = range_of(head)
            size = self._size_behind(first, count) if total is None else total
        self._keep(ObjectInfo(self.read.key, size, _version_of(head)))
        memory = self._destination()
        if first == self.read.start + self._filled and count == length == memory.nbytes - self._filled:
            return memory[self._filled :] if self._filled else memory
        if head.status == 200:
            self._spare = memoryview(empty(length))
            return self._spare
        wanted = self.read.start + self._filled
        raise Failure(
            Verdict.RETRY, f"asked for the bytes from {wanted} on, got {count} (announced {length}) from {first} on"
        )

    def _size_behind(self, first: int, count: int) -> int:
        """The size of an object whose server does not tell it with a range."""
        length = self.read.length
        if length is None or first + count < self.read.start + length:
            return first + count
        if self._size is None:
            raise Question(self._stat(), self._told)
        return self._size

    def _stat(self) -> StatCall:
        return StatCall(self.site, self.read.key, self.read.version)

    def _told(self, info: ObjectInfo | None) -> ReadResult:
        """A HEAD has told of the object: what was asked for can be asked now, of this version."""
        if info is None:
            remedy = "check the name, or list its parent"
            raise Failure(Verdict.FINAL, "there is no such object", kind=NotFoundError, remedy=remedy)
        if info.etag and self._expected and info.etag != self._expected:
            raise self._changed()
        self._expected, self._size = info.etag or self._expected, info.size
        if self.read.length == 0 or self.read.start >= info.size:
            return ReadResult(info, self.read.into(info, 0))
        self.read = self.read._replace(ask_first=False)
        raise Failure(Verdict.CORRECTED, "the size had to be asked for")

    def _keep(self, info: ObjectInfo) -> None:
        known = self._info
        if known is None:
            if self._expected and info.etag != self._expected:
                raise self._changed()
            self._info = info
        elif info.etag != (self._expected or known.etag) or info.size != known.size:
            raise self._changed()

    def _changed(self) -> ChangedError:
        return ChangedError(f"{self.uri} was replaced while it was read: read it again")

    def _destination(self) -> memoryview:
        assert self._info is not None
        if self._memory is None:
            count = clamp(self.read.start, self.read.length, self._info.size)
            self._memory = self.read.into(self._info, count)
        return self._memory

    def interrupted(self, num_received: int) -> None:
        etag = self._info.etag if self._info else None
        is_versioned = etag is not None and not etag.startswith("W/")  # else nobody could tell a replaced object
        if self._spare is None and self._memory is not None:
            self._filled = self._filled + num_received if is_versioned else 0

    def answer(self, response: Response) -> ReadResult:
        head = response.head
        if head.status in (200, 206):
            return self._result(head)
        if head.status == 416:
            return self._beyond(head)
        if head.status == 412:
            raise self._changed()
        raise failure_of(self.site, response)

    def _result(self, head: Head) -> ReadResult:
        assert self._info is not None
        memory = self._destination()
        if self._spare is not None:
            memory[:] = self._spare[self.read.start : self.read.start + memory.nbytes]
            self._filled = 0
        elif self._filled == 0 and memory.nbytes == self._info.size and not is_intact(head, memory):
            raise Failure(Verdict.RETRY, "the bytes do not match the checksum that came with them")
        return ReadResult(self._info, memory)

    def _beyond(self, head: Head) -> ReadResult:
        """416: nothing there. An empty object is asked for once without a range, since that tells its version."""
        size = range_of(head)[2] if head.get("content-range") else None
        if self.read.start == 0 and not self._whole:
            self._whole = True
            raise Failure(Verdict.CORRECTED, "416 for the first byte")
        if size is None:
            raise Question(self._stat(), self._told)
        info = ObjectInfo(self.read.key, size, _version_of(head))
        if clamp(self.read.start, self.read.length, size):
            raise self._changed()
        return ReadResult(info, self.read.into(info, 0))


def _version_of(head: Head) -> str | None:
    """The etag; where a server has none, a weak one that is made of the time of modification."""
    etag = etag_of(head)
    if etag:
        return etag
    modified = head.get("last-modified")
    return f"W/{modified}" if modified else None
