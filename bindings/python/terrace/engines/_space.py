# SPDX-License-Identifier: Apache-2.0
"""What the plug-ins have in common: a KV space by configuration, and calls that lose it without an exception.

An engine goes on without its cache. So a SoftSpace answers "not there" and "not put" where KvSpace raises, and logs once.
Any thread may call it.
"""

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
    try:
        space = _attach(config, namespace)
    except Error as error:
        raise type(error)(f"{who}: cannot open the KV space of {where}: {error}; 'terrace kv stat {where}' shows it, "
                          f"'terrace kv format {where}' makes an empty one") from error
    return SoftSpace(space, where, who=who, ttl_s=config.get("ttl_s") or 0, wait=config.get("wait_s", 0.05),
                     readonly=bool(config.get("readonly")))


def _attach(config: dict, namespace: str) -> kv.KvSpace:
    puts = not config.get("readonly")
    if config.get("path"):
        return kv.KvSpace.open(config["path"], namespace=namespace, puts=puts)
    session = Session(config["socket"]) if config.get("socket") else Session()
    return kv.KvSpace.attach(session.attach(config["lease"]), namespace=namespace, puts=puts)


class SoftSpace:
    """A KV space whose calls raise nothing. `lost` is why its memory is gone for good; then nothing is found or put."""

    def __init__(self, space: kv.KvSpace, where: str, *, who: str = "terrace", ttl_s: int = 0, wait: float = 0.05,
                 readonly: bool = False):
        self._space, self._where, self._who, self._readonly = space, where, who, readonly
        self._put_options = {"ttl_s": ttl_s, "wait": wait}
        self._log = logging.getLogger("terrace.engines")
        self._told, self._lock = set(), threading.Lock()
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
        self._note_errors(lengths)
        return [length == memoryview(buffer).nbytes for length, (_, buffer) in zip(lengths, pairs)]

    def put(self, blocks: list, *, parent=None, chain: bool = False, **options) -> list:
        """Copies the buffer of each pair in; whether the block is there now."""
        if self._readonly:
            return [False] * len(blocks)
        pairs = [(_key(key), buffer) for key, buffer in blocks]
        options.update(self._put_options, chain=chain, parent=None if parent is None else _key(parent), raises=False)
        put = self._call("put_many", [None] * len(pairs), pairs, **options)
        self._note_errors(put)
        return [isinstance(answer, bool) for answer in put]

    def erase(self, keys: list, **options) -> list:
        """Whether each is gone, as all are that are lost."""
        return [self._call("erase", None, _key(key), **options) is not None or self.lost is not None for key in keys]

    def flush(self, **options) -> int:
        """Erases a namespace; how many blocks."""
        return self._call("flush", 0, **options)

    def close(self) -> None:
        """Finds and puts nothing any more."""
        space, self._space = self._space, None
        if space is not None:
            space.close()

    def _call(self, name: str, otherwise, *arguments, **options):
        space = self._space
        if space is None or self.lost:
            return otherwise
        try:
            return getattr(space, name)(*arguments, **options)
        except (Error, BufferError, ValueError) as error:  # ValueError: it was closed meanwhile
            self._note_errors([error])
            return otherwise

    def _note_errors(self, answers: list) -> None:
        """A line for the first of each kind: the next thousand say the same."""
        for error in {type(answer): answer for answer in answers if isinstance(answer, Exception)}.values():
            if isinstance(error, LeaseLost):
                self.lost = error
            what = "lost" if isinstance(error, LeaseLost) else type(error).__name__
            with self._lock:
                first = what not in self._told and self._space is not None
                self._told.add(what)
            if first and what == "lost":
                self._log.warning("%s: the KV space of %s is gone: %s. From now on nothing is found or put; all else goes on",
                                  self._who, self._where, error)
            elif first:
                self._log.warning("%s: the KV space of %s: %s (errors of this kind are told once)", self._who, self._where, error)


def _key(key):
    """As it is, or its hash where it is too long for a key."""
    encoded = key.encode() if isinstance(key, str) else key
    return encoded if len(encoded) <= _KEY_BYTES_MAX else b"sha256:" + hashlib.sha256(encoded).digest()


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]
