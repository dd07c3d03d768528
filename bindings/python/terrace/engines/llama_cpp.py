# SPDX-License-Identifier: Apache-2.0
"""llama-cpp-python: a prompt cache and named slots in a KV space, which outlive the process and which others use.

    llama.set_cache(terrace.engines.llama_cpp.TerraceCache("cache", llama))     # the label of a lease with a KV space

Stored, in a namespace of the model (_llama_model.py):

    m<random>/<part>   a part of a state's bytes; put first
    s<hash>, n<name>   head of a state, or of a slot: names the parts, has the tokens; put once all parts are there
    p<hash>            of a prefix of tokens: the hash of a state that begins with it; put last

A state is found by its prefixes at every `step` tokens and at its end: one exists() finds the longest one of a prompt.
"""

import collections
import ctypes
import hashlib
import os
import struct
import warnings

import llama_cpp
import numpy

import terrace
from terrace import kv
from terrace.engines._llama_model import model_namespace

__all__ = ["TerraceCache"]

_HEAD = struct.Struct("<16sQQII")  # of the parts' keys; bytes of the state, of a part; tokens; rows of scores
_NO_ROOM = (terrace.CapacityExhausted, terrace.LimitExceeded, terrace.Busy)
_ERASE_WAIT = 0.05  # seconds for another process to erase its block; what it has not done is evicted some day


def _open_space(memory):
    """A KV space: itself, the path of a file, a lease, or the label or number of a lease."""
    if isinstance(memory, kv.KvSpace):
        return memory
    if isinstance(memory, os.PathLike) or (isinstance(memory, str) and "/" in memory):
        return kv.KvSpace.open(memory)
    return kv.KvSpace.attach(terrace.Session().attach(memory) if isinstance(memory, (str, int)) else memory)


def _common(some, others) -> int:
    """How many of the first tokens are the same."""
    length = min(len(some), len(others))
    different = numpy.flatnonzero(some[:length] != others[:length])
    return int(different[0]) if len(different) else length


class _Head:  # a state as it lies in the space, without its bytes
    def __init__(self, key: bytes, block: bytes):
        self.key = key
        parts_key, self.nbytes, self.part_bytes, count, self.score_rows = _HEAD.unpack_from(block)
        self.tokens = numpy.frombuffer(block, numpy.int32, count, _HEAD.size)
        self.parts = [b"m%s/%d" % (parts_key, number) for number in range(-(-self.nbytes // self.part_bytes))]

    def of_part(self, number: int) -> slice:
        return slice(number * self.part_bytes, (number + 1) * self.part_bytes)


class TerraceCache(llama_cpp.BaseLlamaCache):
    """For Llama.set_cache() of the one Llama that it is made for. `memory`: a kv.KvSpace, a lease or its label, a file's path.

    cache[tokens] also loads the state into that Llama, where it has more of the tokens than the context itself has: so a state
    that llama.cpp refuses is a miss like any other, and is erased. What finds no room is not stored. When the lease is lost
    all are misses. `counts` says what happened: hit, tokens, miss, live (the context had as much), stored, not_stored, erased.
    """

    def __init__(self, memory, llama, *, tenant: str = "", step: int = 32, wait: float = 1.0):
        if step < 1:
            raise ValueError(f"step={step}: the tokens between two prefixes that can be found, at least 1")
        self.space = _open_space(memory)
        stat = self.space.stat()
        super().__init__(stat.data_bytes)
        self.namespace = model_namespace(llama, tenant)
        self.counts = collections.Counter()
        self._llama, self._tenant, self._step, self._wait = llama, tenant, step, wait
        self._part_bytes = stat.max_block_bytes
        self._lost = False

    @property
    def cache_size(self) -> int:
        """Bytes of this model's states and slots."""
        return sum(block.nbytes for block in self.space.list() if block.namespace == self.namespace)

    def __contains__(self, key) -> bool:
        return self._find(numpy.asarray(key, numpy.int32)) is not None

    def __getitem__(self, key) -> llama_cpp.LlamaState:
        tokens = numpy.asarray(key, numpy.int32)
        for _ in range(4):  # one after the other
            if (head := self._find(tokens)) is None:
                break
            state, common = _StoredState(self, head), _common(head.tokens, tokens)
            if common <= _common(self._llama._input_ids, tokens):
                self.counts["live"] += 1
                return state
            if self._load(state):
                self.counts.update(hit=1, tokens=common)
                return state
            self._erase(head, self.namespace)
        self.counts["miss"] += 1
        raise KeyError("no state in the KV space begins as these tokens do")

    def __setitem__(self, key, value: llama_cpp.LlamaState) -> None:
        tokens = numpy.asarray(value.input_ids[:value.n_tokens], numpy.int32)  # the last of `key` need not be computed yet
        if self._lost or len(tokens) == 0:
            return
        hashes = self._hashes(tokens)
        scores = value.scores[:len(tokens)] if self._llama._logits_all else ()
        state = b"".join((value.llama_state, numpy.ascontiguousarray(scores).tobytes())) if len(scores) else value.llama_state
        try:
            if self._whole(b"s" + hashes[-1]) or self._put(b"s" + hashes[-1], self.namespace, tokens, state, len(scores)):
                self._put_prefixes(hashes)
        except terrace.LeaseLost as error:
            self._lose(error)

    # -- slots

    def save_slot(self, name: str, llama, seq_id: int = 0) -> bool:
        """Saves a sequence under a name, in the place of what had it. False: there was no room, or somebody else saved it meanwhile."""
        key, names = self._slot(name, llama, seq_id)
        size = llama_cpp.llama_state_seq_get_size(llama._ctx.ctx, seq_id)
        state = (ctypes.c_uint8 * size)()
        if not 0 < llama_cpp.llama_state_seq_get_data(llama._ctx.ctx, state, size, seq_id) == size:
            raise RuntimeError(f"llama.cpp gave no state of sequence {seq_id} (llama_state_seq_get_data)")
        tokens = numpy.asarray(llama._input_ids if seq_id == 0 else (), numpy.int32)
        return self._put(key, names, tokens, state, 0)

    def restore_slot(self, name: str, llama, seq_id: int = 0):
        """Puts what was saved into a sequence, and returns its tokens: none but of sequence 0 are known to a Llama. None: nothing
        that this model and context can take has the name."""
        key, names = self._slot(name, llama, seq_id)
        head = self._whole(key, names)
        if head is None or len(head.tokens) > llama.n_ctx():
            return None
        state = self._read(head, names)
        if state is not None:
            words = (ctypes.c_uint8 * len(state)).from_buffer(state)
            if llama_cpp.llama_state_seq_set_data(llama._ctx.ctx, words, len(state), seq_id) == len(state):
                if seq_id == 0:
                    llama.input_ids[:len(head.tokens)] = head.tokens
                    llama.n_tokens, llama._requires_eval = len(head.tokens), True
                return head.tokens.tolist()
            llama._ctx.kv_cache_seq_rm(seq_id, 0, -1)
            if seq_id == 0:
                llama.reset()
        self._erase(head, names)
        return None

    def _slot(self, name: str, llama, seq_id: int) -> tuple:
        """The key and namespace of a slot."""
        sequences = llama_cpp.llama_n_seq_max(llama._ctx.ctx)
        if not 0 <= seq_id < sequences:
            raise ValueError(f"seq_id={seq_id}: this context has the sequences 0 to {sequences - 1} (n_seq_max)")
        return b"n" + name.encode(), self.namespace if llama is self._llama else model_namespace(llama, self._tenant)

    # -- states in the space

    def _hashes(self, tokens) -> list:
        """Of the prefixes by which a state of these tokens is found, the shortest first."""
        found, hashes = hashlib.blake2b(digest_size=24), []
        for begin in range(0, len(tokens), self._step):
            found.update(tokens[begin:begin + self._step].tobytes())
            hashes.append(found.digest())
        return hashes

    def _find(self, tokens):
        """The head of the state with the longest prefix of the tokens, or None. Prefixes of states that are gone are erased."""
        if self._lost or len(tokens) == 0:
            return None
        try:
            keys = [b"p" + one for one in self._hashes(tokens)]
            there = self.space.exists(keys, namespace=self.namespace)
            for key in [key for key, found in zip(keys, there) if found][::-1]:
                state = self.space.get(key, namespace=self.namespace)
                head = self._whole(b"s" + state) if state else None
                if head is None:
                    self._erase_one(key, self.namespace)
                elif len(head.tokens) <= self._llama.n_ctx():
                    return head
        except terrace.LeaseLost as error:
            self._lose(error)
        return None

    def _whole(self, key: bytes, names=None):
        """The head of a state all of which is there, or None; what is left of one that was evicted in part is erased."""
        names = names or self.namespace
        block = self.space.get(key, namespace=names)
        head = _Head(key, block) if block else None
        if head is not None and not all(self.space.exists(head.parts, namespace=names)):
            self._erase(head, names)
            return None
        return head

    def _read(self, head: _Head, names: str):
        """The bytes of a state; None: not all of it is there any more."""
        state = bytearray(head.nbytes)
        try:
            there = [self.space.get_into(key, memoryview(state)[head.of_part(number)], namespace=names)
                     for number, key in enumerate(head.parts)]
        except terrace.Corrupt:
            return None
        return state if None not in there else None

    def _load(self, state) -> bool:
        """False: it was evicted meanwhile, or llama.cpp refuses it, after which the context is empty."""
        try:
            state.read()
            self._llama.load_state(state)
        except KeyError:
            return False
        except (RuntimeError, ValueError):
            self._llama.reset()
            return False
        return True

    def _put(self, key: bytes, names: str, tokens, state, score_rows: int) -> bool:
        """All parts, and then the head: who finds it finds a whole state, until some of it is evicted."""
        state = numpy.frombuffer(state, numpy.uint8)
        before = self._whole(key, names)
        block = _HEAD.pack(os.urandom(16), len(state), self._part_bytes, len(tokens), score_rows) + tokens.tobytes()
        head = _Head(key, block)
        try:
            for number, part in enumerate(head.parts):
                self.space.put(part, state[head.of_part(number)], parent=head.parts[number - 1] if number else key, wait=self._wait,
                               checksum=True, namespace=names)
            if before is not None:
                self._erase(before, names)
            if all(self.space.exists(head.parts, namespace=names)) and self.space.put(key, block, checksum=True, namespace=names):
                self.counts["stored"] += 1
                return True
        except _NO_ROOM as error:
            warnings.warn(f"a state of {len(state)} bytes is not stored in the KV space: {error}", RuntimeWarning, stacklevel=3)
        for part in head.parts:
            self._erase_one(part, names)
        self.counts["not_stored"] += 1
        return False

    def _put_prefixes(self, hashes: list) -> None:
        """So that the last one's state is found by all of them; those that lead to another state that is there stay."""
        keys = [b"p" + one for one in hashes]
        there = [key for key, found in zip(keys, self.space.exists(keys, namespace=self.namespace)) if found]
        states = dict(zip(there, self.space.get_many(there, namespace=self.namespace)))
        heads = [b"s" + state for state in set(states.values()) if state]
        alive = {head for head, found in zip(heads, self.space.exists(heads, namespace=self.namespace)) if found}
        for key in keys:
            if key in states and b"s" + (states[key] or b"") not in alive:
                self._erase_one(key, self.namespace)
            try:
                self.space.put(key, hashes[-1], checksum=True, namespace=self.namespace)
            except _NO_ROOM:
                return  # it is found by those that were put

    def _erase(self, head: _Head, names: str) -> None:
        for key in (head.key, *head.parts):
            self._erase_one(key, names)
        self.counts["erased"] += 1

    def _erase_one(self, key: bytes, names: str) -> None:
        try:
            self.space.erase(key, wait=_ERASE_WAIT, namespace=names)
        except terrace.Busy:
            pass

    def _lose(self, error) -> None:
        self._lost = True
        warnings.warn(f"the KV space is gone, and nothing is cached any more: {error}", RuntimeWarning, stacklevel=4)


class _StoredState(llama_cpp.LlamaState):
    """A LlamaState whose bytes are read when somebody asks for them; KeyError where they are gone by then."""

    def __init__(self, cache: TerraceCache, head: _Head):
        self._cache, self._head, self._bytes = cache, head, None
        self.n_tokens, self.seed = len(head.tokens), cache._llama._seed
        self.llama_state_size = head.nbytes - head.score_rows * cache._llama.n_vocab() * 4
        self.input_ids = numpy.full(cache._llama.n_ctx(), -1, numpy.intc)  # -1 is no token
        self.input_ids[:self.n_tokens] = head.tokens

    def read(self) -> memoryview:
        if self._bytes is None:
            self._bytes = self._cache._read(self._head, self._cache.namespace)
        if self._bytes is None:
            raise KeyError("the state was evicted meanwhile")
        return memoryview(self._bytes)

    @property
    def llama_state(self) -> memoryview:
        return self.read()[:self.llama_state_size]

    @property
    def scores(self):
        """Of each token, where the Llama was made with logits_all; otherwise nobody looks at them."""
        if not self._head.score_rows:
            return numpy.zeros((1, 1), numpy.single)
        return numpy.frombuffer(self.read()[self.llama_state_size:], numpy.single).reshape(self._head.score_rows, -1)
