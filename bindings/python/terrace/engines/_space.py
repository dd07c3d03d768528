# SPDX-License-Identifier: Apache-2.0
"""What the plug-ins have in common: a KV space by configuration, and calls that lose it without an exception.

An engine goes on without its cache. So a SoftSpace answers "not there" and "not put" where KvSpace raises, and logs once.
When its memory is gone, a thread attaches to what is there instead: a lease that was granted anew by that label, or a file that
was made again. Any thread may call it.
"""

import collections
import contextlib
import hashlib
import logging
import threading

from .. import Error, InvalidArgument, LeaseLost, Session
from .. import kv

# Of a configuration, in every plug-in.
PLACE = {
    "path": "a file, a dax device or the path of a lease",
    "lease": "the id or the label of a lease of mode shared_coherent",
    "socket": "the manager's socket, with lease; default: $TERRACE_SOCKET, else the usual place",
    "tenant": "whose blocks they are; other tenants never find them",
    "model": "what the namespace calls the model",
    "dtype": "the element type of the KV cache",
    "readonly": "true: finds blocks, and puts none",
    "ttl_s": "seconds until a block that was put is gone by itself; default: never",
    "wait_s": "how long a put waits for room that other processes give; default 0.05",
}
_KEY_BYTES_MAX = 512
PAUSE_S, PAUSE_MAX_S = 1.0, 60.0  # before the memory that is gone is looked for, the first time and at most


def names(config: dict, *, layout: str, **known: str) -> str:
    """The namespace: tenant, model and dtype of the configuration, else what the engine knows. Long ones are hashed."""
    parts = {name: str(config.get(name) or known.get(name) or "") for name in ("tenant", "model", "dtype")}
    try:
        return kv.namespace(**parts, layout=layout)
    except InvalidArgument:
        return kv.namespace(**{name: _hash(part) if part else "" for name, part in parts.items()}, layout=_hash(layout))


def open_space(config: dict, *, namespace: str = "", who: str = "terrace", also: tuple = ()) -> "SoftSpace":
    """Opens the space that a configuration names. `also`: keys that are the plug-in's own. `who` begins log lines and errors.

    Raises ValueError, for a configuration that says nothing, or what nobody knows; terrace.Error of the same type as attach().
    """
    unknown = sorted(set(config) - set(PLACE) - set(also))
    if unknown:
        raise ValueError(f"{who}: unknown option {', '.join(unknown)}; there are {', '.join([*PLACE, *also])}")
    if bool(config.get("path")) == bool(config.get("lease") not in (None, "")):
        raise ValueError(f"{who}: the options need either 'lease' ({PLACE['lease']}) or 'path' ({PLACE['path']})")
    if config.get("path") and config.get("socket"):
        raise ValueError(f"{who}: 'socket' goes with 'lease'; a path needs no manager")
    for name, kinds in (("readonly", bool), ("ttl_s", int), ("wait_s", (int, float))):
        value = config.get(name)
        if value is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool) or value < 0):
            raise ValueError(f"{who}: option '{name}' cannot be {value!r} ({PLACE[name]})")
    where = str(config.get("path") or config["lease"])
    def attach():
        return _attach(config, namespace)

    try:
        space = attach()
    except Error as error:
        raise type(error)(f"{who}: cannot open the KV space of {where}: {error}; 'terrace kv stat {where}' shows it, "
                          f"'terrace kv format {where}' makes an empty one") from error
    return SoftSpace(space, where, attach, who=who, ttl_s=config.get("ttl_s") or 0, wait=config.get("wait_s", 0.05),
                     readonly=bool(config.get("readonly")))


def _attach(config: dict, namespace: str) -> kv.KvSpace:
    puts = not config.get("readonly")
    if config.get("path"):
        return kv.KvSpace.open(config["path"], namespace=namespace, puts=puts)
    session = Session(config["socket"]) if config.get("socket") else Session()
    return kv.KvSpace.attach(session.attach(config["lease"]), namespace=namespace, puts=puts)


class SoftSpace:
    """A KV space whose calls raise nothing. `lost` is why its memory is gone: until it is attached again nothing is found or put.

    `attach` makes the space anew: a KvSpace, or an exception. It is called by a thread, with pauses that grow.
    """

    def __init__(self, space: kv.KvSpace, where: str, attach, *, who: str = "terrace", ttl_s: int = 0, wait: float = 0.05,
                 readonly: bool = False, log=None, pause_s: float = PAUSE_S):
        self._space, self._where, self._who, self._readonly = space, where, who, readonly
        self._put_options = {"ttl_s": ttl_s, "wait": wait}
        self._log = log or logging.getLogger("terrace.engines")
        self._told, self._lock = set(), threading.Lock()
        self._attach_anew, self._pause_s, self._ended = attach, pause_s, threading.Event()
        self._counted = collections.Counter()  # of spaces that were lost, and of losses
        self._thread = None
        self.lost = None

    def exists(self, keys: list, **options) -> list:
        """Whether each is there."""
        return self._call("exists", [False] * len(keys), [_key(key) for key in keys], **options)

    def prefix(self, keys: list, **options) -> int:
        """How many of the first keys are there without a gap."""
        return self._call("prefix", 0, [_key(key) for key in keys], **options)

    def get_into(self, blocks: list, **options) -> list:
        """Fills the buffer of each pair of key and buffer; whether it now has all of a block that is as long as it."""
        pairs = [(_key(key), buffer) for key, buffer in blocks]
        lengths = self._call("get_many_into", [None] * len(pairs), pairs, raises=False, **options)
        return [length == memoryview(buffer).nbytes for length, (_, buffer) in zip(lengths, pairs)]

    def put(self, blocks: list, *, parent=None, chain: bool = False, **options) -> list:
        """Copies the buffer of each pair in; whether the block is there now."""
        if self._readonly:
            return [False] * len(blocks)
        pairs = [(_key(key), buffer) for key, buffer in blocks]
        options = {**self._put_options, **options, "chain": chain, "parent": None if parent is None else _key(parent), "raises": False}
        put = self._call("put_many", [None] * len(pairs), pairs, **options)
        return [isinstance(answer, bool) for answer in put]

    def erase(self, keys: list, **options) -> list:
        """Whether each is gone, as all are that are lost."""
        return [self._call("erase", None, _key(key), **options) is not None or self.lost is not None for key in keys]

    def flush(self, **options) -> int:
        """Erases a namespace; how many blocks."""
        return self._call("flush", 0, **options)

    def stat(self):
        """As KvSpace.stat(); None while it is lost."""
        return self._call("stat", None)

    def counters(self) -> dict:
        """Those of KvCounters, of all spaces that there were, and how often one was `lost` and `attached_again`."""
        with self._lock:
            space, counted = self._space, collections.Counter(self._counted)
        with contextlib.suppress(Error, ValueError):
            if space is not None:
                counted.update(space.counters()._asdict())
        return {name: counted[name] for name in (*kv.KvCounters._fields, "lost", "attached_again")}

    def close(self) -> None:
        """Finds and puts nothing any more."""
        self._ended.set()
        with self._lock:
            space, self._space, thread = self._space, None, self._thread
        if thread is not None:
            thread.join()
        if space is not None:
            space.close()

    def _call(self, name: str, otherwise, *arguments, **options):
        space = self._space
        if space is None or self.lost:
            return otherwise
        try:
            answer = getattr(space, name)(*arguments, **options)
        except (Error, BufferError, ValueError) as error:  # ValueError: it was closed meanwhile
            self._note_errors([error], space)
            return otherwise
        if isinstance(answer, list):
            self._note_errors(answer, space)
        return answer

    def _note_errors(self, answers: list, space) -> None:
        """A line for the first of each kind: the next thousand say the same."""
        for error in {type(answer): answer for answer in answers if isinstance(answer, Exception)}.values():
            if isinstance(error, LeaseLost):
                self._lose(error, space)
                continue
            with self._lock:
                first = type(error) not in self._told and self._space is not None
                self._told.add(type(error))
            if first:
                self._log.warning("%s: the KV space of %s: %s (errors of this kind are told once)", self._who, self._where, error)

    def _lose(self, error, space) -> None:
        with self._lock:
            if self.lost or self._space is not space:
                return  # told already, or said by a space that has a successor
            self.lost = error
            self._counted["lost"] += 1
            self._thread = threading.Thread(target=self._look_again, name="terrace-attach", daemon=True)
            self._log.warning("%s: the KV space of %s is gone: %s. Nothing is found or put until there is one again; all else goes on",
                              self._who, self._where, error)
            self._thread.start()

    def _look_again(self) -> None:
        pause = self._pause_s
        while not self._ended.wait(pause):
            pause = min(2 * pause, PAUSE_MAX_S)
            try:
                space = self._attach_anew()
            except Exception as error:  # noqa: BLE001: of a manager, a file, or what the plug-in asks of a space
                self._log.debug("%s: no KV space of %s yet: %s", self._who, self._where, error)
                continue
            with self._lock:
                if self._ended.is_set():
                    space.close()
                    return
                gone, self._space = self._space, space
                with contextlib.suppress(Error):
                    self._counted.update(gone.counters()._asdict())
                self._counted["attached_again"] += 1
                self._log.warning("%s: there is a KV space of %s again", self._who, self._where)
                self.lost = None
            with contextlib.suppress(Error, BufferError):
                gone.close()
            return


def _key(key):
    """As it is, or its hash where it is too long for a key."""
    encoded = key.encode() if isinstance(key, str) else key
    return encoded if len(encoded) <= _KEY_BYTES_MAX else b"sha256:" + hashlib.sha256(encoded).digest()


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]
