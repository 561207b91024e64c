"""A raw log as encoded chunks, which threads parse ahead."""

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from sparsegroup.data.formats.log_format import LogFormat
from sparsegroup.data.log_errors import BadRows, ClickLogError
from sparsegroup.data.raw.columnar_file import is_columnar, read_columns
from sparsegroup.data.raw.encoding import Encoded, encode_chunk
from sparsegroup.data.raw.text_file import Chunk, read_chunks
from sparsegroup.names import OnBadRow


class Reader:
    """The encoded chunks of one log, in order.

    Args:
        path: The log.
        log: Its format.
        columns: All its columns, in order.
        bad: Is told of rows that are left out.
        on_bad_row: "error" raises at the first one.
        keep_raw: Give the fields' values, too.
        threads: That parse and hash.
        chunk_bytes: Of the log, that are parsed at a time.
    """

    def __init__(
        self,
        path: Path,
        log: LogFormat,
        columns: list[str],
        bad: BadRows,
        on_bad_row: OnBadRow,
        keep_raw: bool,
        threads: int,
        chunk_bytes: int,
    ) -> None:
        self.path, self.log, self.columns, self.bad = path, log, columns, bad
        self.on_bad_row, self.keep_raw, self.threads, self.chunk_bytes = on_bad_row, keep_raw, threads, chunk_bytes

    def __call__(self, offset: int, line: int) -> Generator[tuple[Chunk, Encoded]]:
        """From byte `offset` on, where `line` begins.

        Raises:
            ClickLogError: A bad row, unless they are skipped; a damaged file.
        """
        chunks = (
            read_columns(self.path, self.log.raw, offset)
            if is_columnar(self.path)
            else read_chunks(self.path, offset, line, self.chunk_bytes)
        )
        with ThreadPoolExecutor(self.threads) as pool:
            pending: deque[tuple[Chunk, Future[Encoded]]] = deque()
            try:
                for chunk in chunks:
                    if chunk.line == 1 and chunk.data and self.log.has_header:
                        chunk = replace(chunk, data=chunk.data[chunk.data.find(b"\n") + 1 :], line=2)
                    job = pool.submit(encode_chunk, chunk, self.log, self.columns, str(self.path), self.keep_raw)
                    pending.append((chunk, job))
                    if len(pending) > self.threads:
                        yield self._checked(*pending.popleft())
                while pending:
                    yield self._checked(*pending.popleft())
            finally:
                for _, job in pending:
                    job.cancel()

    def _checked(self, chunk: Chunk, job: "Future[Encoded]") -> tuple[Chunk, Encoded]:
        encoded = job.result()
        self._check(encoded.bad)
        self.bad.merge(encoded.bad)
        return chunk, encoded

    def _check(self, bad: BadRows) -> None:
        if bad.count and self.on_bad_row == "error":
            line, reason, text = min(bad.samples)
            raise ClickLogError(f"{bad.source}:{line}: {reason}: {text!r}")
