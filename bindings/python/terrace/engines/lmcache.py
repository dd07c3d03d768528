# SPDX-License-Identifier: Apache-2.0
"""LMCache: a KV space as an L2 of its multiprocess mode, by its `native_plugin`.

    --l2-adapter '{"type": "native_plugin", "module_path": "terrace.engines.lmcache", "class_name": "Connector",
                   "adapter_params": {"lease": "cache", "tenant": "team-a", "dtype": "bf16"}}'

LMCache hands over keys and buffers in batches, and gets a number. Worker threads copy between the buffers and the space, with
the GIL let go, and an eventfd says when a number's answers can be fetched. Nothing here imports LMCache.

docs/operations/lmcache.md of the sources has the rest.
"""

import os
import queue
import threading

from ._space import names, open_space

WORKERS = 2
_PIECE_KEYS = 8  # a batch is cut into pieces of at least so many, for the workers to share
_OWN = ("layout", "workers")


class _Batch:
    """One submitted batch, until all its pieces are done."""

    def __init__(self, number: int, work, things: list, undone: str, pieces: int):
        self.number, self.work, self.things, self.undone = number, work, things, undone
        self.answers, self.pieces_left, self.error = [False] * len(things), pieces, ""


class Connector:
    """What LMCache's NativeConnectorL2Adapter calls. Its options: those of terrace.engines, `layout` and `workers`."""

    def __init__(self, **options):
        workers = options.get("workers", WORKERS)
        if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= 64:
            raise ValueError(f"lmcache: option 'workers' is 1 to 64, not {workers!r}")
        namespace = names(options, layout=f"lmcache-{options.get('layout') or ''}".rstrip("-"))
        self._space = open_space(options, namespace=namespace, who="lmcache", also=_OWN)
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._done, self._next, self._closed = [], 0, False
        self._queue = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, name=f"terrace-lmcache-{n}", daemon=True) for n in range(workers)]
        for thread in self._threads:
            thread.start()

    def event_fd(self) -> int:
        """Readable while drain_completions() has something to give."""
        return self._event

    def submit_batch_get(self, keys: list, buffers: list) -> int:
        """Fills each buffer with its key's block. A block of another length than the buffer is not found."""
        return self._submit(self._space.get_into, _pairs(keys, buffers), "blocks were not found")

    def submit_batch_set(self, keys: list, buffers: list) -> int:
        """Puts each buffer as its key's block. One that is there already counts as put."""
        return self._submit(self._space.put, _pairs(keys, buffers), "blocks were not put")

    def submit_batch_exists(self, keys: list) -> int:
        """Looks only. A space that is lost has nothing, which is an answer and no failure."""
        return self._submit(self._space.exists, list(keys))

    def submit_batch_delete(self, keys: list) -> int:
        """Erases each; one that is gone already counts as erased, so that LMCache counts its bytes no longer."""
        return self._submit(self._space.erase, list(keys), "blocks were not erased")

    def drain_completions(self) -> list:
        """(number, whether all of it was done, what was not, whether each key was) of each batch that is over."""
        with self._lock:
            if self._closed:
                return []
            try:
                os.eventfd_read(self._event)
            except BlockingIOError:
                pass  # read before, together with those that were over then
            done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Ends what copies, before it returns: buffers may be freed then. What waits in the queue is not done."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._space.close()
        os.close(self._event)

    def _submit(self, work, things: list, undone: str = "") -> int:
        size = max(_PIECE_KEYS, -(-len(things) // len(self._threads)))
        starts = range(0, len(things), size) or [0]
        with self._lock:
            if self._closed:
                raise RuntimeError("lmcache: the connector is closed")
            batch = _Batch(self._next, work, things, undone, len(starts))
            self._next += 1
        for start in starts:
            self._queue.put((batch, start, start + size))
        return batch.number

    def _serve(self) -> None:
        while True:
            piece = self._queue.get()
            if piece is None:
                return
            batch, begin, end = piece
            try:
                if not self._closed:
                    batch.answers[begin:end] = batch.work(batch.things[begin:end])
            except Exception as error:  # of a wrong argument: the batch fails, the thread must not
                batch.error = f"{type(error).__name__}: {error}"
            self._finish(batch)

    def _finish(self, batch: _Batch) -> None:
        with self._lock:
            batch.pieces_left -= 1
            if batch.pieces_left:
                return
            missed = batch.answers.count(False)
            if batch.undone and missed and not batch.error:
                batch.error = f"{missed} of {len(batch.answers)} {batch.undone}"
            self._done.append((batch.number, not batch.error, batch.error, batch.answers))
        os.eventfd_write(self._event, 1)


def _pairs(keys: list, buffers: list) -> list:
    if len(keys) != len(buffers):
        raise ValueError(f"lmcache: {len(keys)} keys and {len(buffers)} buffers")
    return list(zip(keys, buffers))


