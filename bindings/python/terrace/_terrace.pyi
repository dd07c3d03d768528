# SPDX-License-Identifier: Apache-2.0
"""Types of terrace._terrace, for checkers and editors. What each call does: docs/python.md."""

from os import PathLike
from typing import Any, Callable, Dict, Iterable, Iterator, List, Literal, Optional, Sequence, Tuple, Union

from ._types import (
    CheckpointInfo, CheckpointList, CheckpointProgress, DeviceInfo, DeviceUse, Restored,
    KvBlockInfo, KvCounters, KvPolicy, KvShrunk, KvStat, KvVerified,
    LeaseInfo, LeaseNotice, PoolInfo, Residency, TensorIdentity, TensorPoolStatistics, TensorStatistics,
)

__version__: str

Tier = Literal["ddr", "cxl", "hbm"]
Hint = Literal["none", "weights", "activations", "gradients", "optimizer_state", "kv_cache"]
GuardWait = Literal["by_cost", "always", "never"]
LeaseMode = Literal["exclusive", "shared_read_only", "shared_coherent"]
ShapeLike = Union[int, Sequence[int]]
# "BF16", "bfloat16", numpy.float32, numpy.dtype("f4"), torch.bfloat16
DTypeLike = Any
# Whatever has the buffer protocol
Buffer = Any
# numpy.ndarray and torch.Tensor, named so that neither is needed to check a program
NumpyArray = Any
TorchTensor = Any
# A block's of a KV space; a str is its UTF-8
KvKey = Union[str, bytes]

class Session:
    """A tenant's connection to a pool manager."""

    def __init__(
        self, socket: str = '', *, tenant: str = '', host: str = '', client_name: str = '', connect_timeout: float =
        5.0, call_timeout: float = 30.0
    ) -> None:
        """Connects to the manager at `socket` ($TERRACE_SOCKET, else the usual place). Timeouts are seconds. Raises
        Unavailable.
        """

    def grant(
        self, bytes: int, *, pool: str = '', mode: LeaseMode = 'exclusive', ttl: Optional[float] = 0.0, persistent:
        bool = False, label: str = '', movable: bool = False, wait: Optional[float] = 0.0, detached: bool = False,
        on_fence: str = 'keep'
    ) -> Lease:
        """Memory of a pool, renewed while the lease lives. ttl: seconds (0: the manager's own, None: as long as may
        be); wait: seconds in the queue of a full pool; detached=True leaves it to its ttl at the end of the
        process. on_fence="kill": its memory may be pinned, and this process agrees to be ended before it is taken.
        Raises CapacityExhausted.
        """

    def attach(self, lease: Union[int, str], *, read_only: bool = False, on_fence: str = 'keep') -> Lease:
        """A lease that somebody was granted, by its id or label; one whose holders are ended at a fence with
        on_fence="kill", by which this process agrees to that. Raises NotFound, PermissionDenied.
        """

    def leases(self) -> List[LeaseInfo]:
        """The leases of this tenant."""

    def pools(self) -> List[PoolInfo]:
        """The pools of the manager."""

    def notices(self) -> List[LeaseNotice]:
        """What was told about leases since the last call."""

    def next_notice(self, timeout: Optional[float] = 0.0) -> Optional[LeaseNotice]:
        """The oldest notice that waits; None: none came within `timeout` seconds (None: without a bound)."""

    def on_notice(self, handler: Optional[Callable[[LeaseNotice], object]]) -> None:
        """Has handler(notice) called with each notice, on a thread of its own; None ends that."""

    @property
    def notice_fd(self) -> int:
        """For select and asyncio: readable while a notice waits. Neither read nor close it."""

    @property
    def tenant(self) -> str:
        """Whose leases these are."""

    @property
    def connected(self) -> bool:
        """Whether the manager answers; the session connects again by itself."""

    def close(self) -> None:
        """No more calls; it ends once its leases and what stands on them are gone."""

    def __enter__(self) -> Session:
        """The session itself."""

    def __exit__(self, *args: Any) -> None:
        """As close()."""

class Lease:
    """A right to memory until an expiry; renewed while this object lives."""

    @property
    def id(self) -> int:
        """The manager's number of it."""

    @property
    def epoch(self) -> int:
        """Of this grant: a number that no other grant has."""

    @property
    def bytes(self) -> int:
        """Its size; resize() changes it."""

    @property
    def on_fence(self) -> str:
        """"kill": this process agreed to be ended before the memory is taken; else "keep"."""

    @property
    def state(self) -> Literal['live', 'revoking', 'lost']:
        """'live', 'revoking': stop using it; or 'lost': its memory is gone."""

    @property
    def access(self) -> Literal['read_only', 'read_write']:
        """'read_only' or 'read_write', as it was attached."""

    def fileno(self) -> int:
        """The descriptor of its memory, for mmap. It stays the lease's: do not close it."""

    def info(self) -> LeaseInfo:
        """All that the manager knows of it, now. Raises LeaseLost where it is gone."""

    def renew(self, ttl: Optional[float] = 0.0) -> None:
        """Prolongs it by ttl seconds (0: what it was granted for; None: as long as may be). A living object is
        renewed by itself.
        """

    def resize(self, bytes: int) -> LeaseInfo:
        """Gives it another size, and what it is then. Raises CapacityExhausted."""

    def release(self) -> None:
        """Gives the memory back; whatever still maps it gets SIGBUS."""

    def __enter__(self) -> Lease:
        """The lease itself."""

    def __exit__(self, *args: Any) -> None:
        """Gives the memory back, as release()."""

class Mapping:
    """A lease's memory in this process, as bytes."""

    def __init__(self, lease: Lease) -> None:
        """Maps all of the lease's memory into this process."""

    def __len__(self) -> int:
        """Bytes."""

    @property
    def granularity(self) -> str:
        """What a store must be flushed by to be durable: 'byte', 'cache line' or 'page'."""

    def numpy(self) -> NumpyArray:
        """Its bytes as a numpy array of uint8."""

class Device:
    """A device whose memory is a pool's tier hbm."""

    @staticmethod
    def cuda(ordinal: int = 0) -> Device:
        """The GPU of that number. Raises Unsupported without a driver."""

    @staticmethod
    def emulated(capacity_bytes: int, *, upload_bytes_per_s: int = 0, download_bytes_per_s: int = 0) -> Device:
        """A device whose memory is this process's own, for machines without a GPU."""

    @property
    def is_emulated(self) -> bool:
        """Whether it is an emulated one."""

    @property
    def capacity_bytes(self) -> int:
        """Of its memory."""

    @property
    def description(self) -> str:
        """A line about it, for people."""

    @property
    def info(self) -> DeviceInfo:
        """Its name, number, driver and capacity."""

    def use(self) -> DeviceUse:
        """Asks the driver how much of its memory is free."""

class DeviceGuard:
    """A tensor in use by a device, at its address there."""

    @property
    def address(self) -> int:
        """Of the first element in the device's memory."""

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""

    def numpy(self) -> NumpyArray:
        """An array over an emulated device's memory, which keeps the guard open."""

    def torch(self, *, unmarked: bool = False) -> TorchTensor:
        """A CUDA tensor over the device's copy. unmarked=True: also of a read-only guard, where nothing may be
        stored.
        """

    def __dlpack__(
        self, *, stream: Optional[Any] = None, max_version: Optional[Tuple[int, int]] = None, dl_device:
        Optional[Tuple[int, int]] = None, copy: Optional[bool] = None
    ) -> Any:
        """For from_dlpack() of torch, cupy and others: the device's memory. Raises BufferError."""

    def __dlpack_device__(self) -> Tuple[int, int]:
        """Its DLPack device."""

    def close(self) -> None:
        """Ends the use; work on the device must be over."""

    def __enter__(self) -> DeviceGuard:
        """The guard itself."""

    def __exit__(self, *args: Any) -> None:
        """As close()."""

class TensorPool:
    """Tensors whose addresses stay while their bytes move between DDR and CXL."""

    def __init__(
        self, session: Optional[Session] = None, leases: Sequence[Lease] = [], *, ddr_bytes: int = 0, name: str =
        'tensors', copy_bytes_per_s_max: Optional[int] = 2147483648, copy_batch_bytes: int = 8388608, policy: str =
        '', step_aware: bool = True, guard_wait: GuardWait = 'by_cost', device: Optional[Device] = None, hbm_bytes:
        int = 0
    ) -> None:
        """A pool over leases and ddr_bytes of this machine's DDR. Budgets are bytes a second, None for no bound;
        docs/python.md has the rest.
        """

    def create(
        self, shape: ShapeLike, dtype: DTypeLike = 'float32', *, name: str = '', hint: Optional[Hint] = None,
        read_mostly: bool = False, streaming: bool = False, pinned: bool = False
    ) -> Tensor:
        """A tensor, zeroed. hint: what it is for; its first place follows from it. Raises CapacityExhausted,
        AlreadyExists.
        """

    def create_from(self, source: Any, dtype: Optional[DTypeLike] = None, **kwargs: Any) -> Tensor:
        """A tensor with the numbers of an array, a tensor of numpy, torch or Terrace, or nested lists; of its type,
        or of dtype. Keywords as create().
        """

    def find(self, name: str) -> Tensor:
        """The tensor of that name that somebody still has. Raises NotFound."""

    def __getitem__(self, name: str) -> Tensor:
        """As find()."""

    def step(self) -> None:
        """A step is over: the uses since the last call were one."""

    @property
    def statistics(self) -> TensorPoolStatistics:
        """What it holds, and how much has moved."""

    def set_copy_budget(self, bytes_per_s: Optional[int]) -> None:
        """How many bytes a second its moves may copy; None: no bound."""

    def close(self) -> None:
        """No more calls; it ends once its tensors and their arrays are gone."""

    def __enter__(self) -> TensorPool:
        """The pool itself."""

    def __exit__(self, *args: Any) -> None:
        """As close()."""

class Tensor:
    """A tensor of a pool, or a view of one: its address stays, its bytes may move."""

    @property
    def name(self) -> str:
        """As it was created; '' without one."""

    @property
    def dtype(self) -> str:
        """As safetensors names it: 'F32', 'BF16'."""

    @property
    def shape(self) -> Tuple[int, ...]:
        """Elements a dimension."""

    @property
    def strides(self) -> Tuple[int, ...]:
        """In elements."""

    @property
    def size(self) -> int:
        """How many elements."""

    @property
    def ndim(self) -> int:
        """How many dimensions."""

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""

    @property
    def address(self) -> int:
        """Of its first element; it stays while bytes move."""

    @property
    def hint(self) -> Hint:
        """What it is for: 'weights', 'none', ..."""

    @property
    def read_mostly(self) -> bool:
        """Whether copies of it are cheap."""

    @property
    def streaming(self) -> bool:
        """Whether each byte is used once a step, so that keeping it near is waste."""

    @property
    def flags(self) -> int:
        """read_mostly 1, streaming 2, pinned 4."""

    @property
    def is_view(self) -> bool:
        """Whether it is a part of another tensor."""

    @property
    def residency(self) -> Residency:
        """Where its bytes are now."""

    @property
    def statistics(self) -> TensorStatistics:
        """How often it was used, and waited for."""

    def __len__(self) -> int:
        """Elements of the first dimension."""

    def pin(self, tier: Tier = 'ddr') -> Move:
        """Moves it to the tier and keeps it there until unpin()."""

    def unpin(self) -> None:
        """Ends one pin(). Raises InvalidArgument where there is none."""

    def prefetch(self, tier: Tier = 'ddr') -> Move:
        """Moves it to the tier if there is room; nobody need wait for that."""

    def move_to(self, tier: Tier) -> Move:
        """Moves it to the tier 'ddr', 'cxl' or 'hbm'. Loads and stores go on meanwhile."""

    def advise(
        self, *, hint: Optional[Hint] = None, read_mostly: Optional[bool] = None, streaming: Optional[bool] = None,
        passes: Optional[float] = None
    ) -> None:
        """Changes what was said of its use; passes: how often a step reads it."""

    def device_read(self, *, timeout: Optional[float] = None) -> DeviceGuard:
        """A guard over the device's copy, for loads; waits for the copy (timeout: seconds, Busy: not yet)."""

    def device_write(self, *, overwrite: bool = False, timeout: Optional[float] = None) -> DeviceGuard:
        """A guard over the device's copy, for stores; overwrite=True copies nothing up first."""

    def write_back(self) -> None:
        """Makes the host's bytes as new as the device's."""

    def discard_hbm(self) -> None:
        """Gives the device's copy up, with what was not written back."""

    def numpy(self) -> NumpyArray:
        """A numpy array over the same memory, which it keeps."""

    def __getitem__(self, key: Any) -> Tensor:
        """A view: by integers, slices, ... and None, as numpy's."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Stores numbers, an array or a tensor, which broadcast to the view of that key."""

    def reshape(self, *args: Any) -> Tensor:
        """The same elements in other dimensions, without a copy; one may be -1. Raises InvalidArgument where that
        needs one.
        """

    def __reduce__(self) -> Any:
        """Refused: a pool's tensors are of one process."""

    def as_strided(self, shape: ShapeLike, strides: ShapeLike, offset: int = 0) -> Tensor:
        """A view of any shape and strides (elements) within the whole tensor, from element `offset` of that on."""

    def read(self, *, hold: bool = False, wait: Optional[GuardWait] = None) -> Guard:
        """Opens a guard for loads: it notes the use. hold=True keeps the bytes in their place meanwhile. In `with` it
        is a read-only array.
        """

    def write(self, *, hold: bool = False, wait: Optional[GuardWait] = None) -> Guard:
        """Opens a guard for stores; otherwise as read()."""

    def torch(self) -> TorchTensor:
        """A torch.Tensor over the same memory."""

    def __dlpack__(
        self, *, stream: Optional[Any] = None, max_version: Optional[Tuple[int, int]] = None, dl_device:
        Optional[Tuple[int, int]] = None, copy: Optional[bool] = None
    ) -> Any:
        """For from_dlpack() of torch, numpy, jax and others: the same memory. Raises BufferError."""

    def __dlpack_device__(self) -> Tuple[int, int]:
        """Host memory: (1, 0)."""

    def item(self) -> Union[bool, int, float, complex]:
        """The number of a tensor of one element. BF16 and floats of eight bits are numbers, too."""

    def tolist(self) -> Any:
        """Its numbers as nested lists."""

    def __iter__(self) -> Iterator[Tensor]:
        """Views of its first dimension, one after the other."""

    def __index__(self) -> int:
        """The number of an integer tensor of one element."""

    def __contains__(self, number: Any) -> bool:
        """Whether some element is the number."""

    def __bool__(self) -> bool:
        """The truth of a tensor of one element; ValueError for others, as numpy's."""

    def __int__(self) -> int:
        """The number of a tensor of one element, as an integer."""

    def __float__(self) -> float:
        """The number of a tensor of one element."""

class Guard:
    """An open use of a tensor."""

    def numpy(self) -> NumpyArray:
        """The guarded elements as a numpy array, which keeps the guard open."""

    def close(self) -> None:
        """Ends the use; once is enough."""

    def __enter__(self) -> NumpyArray:
        """A numpy array of the elements; a memoryview without numpy."""

    def __exit__(self, *args: Any) -> None:
        """As close()."""

    def torch(self) -> TorchTensor:
        """A torch.Tensor over the same memory."""

    def __dlpack__(
        self, *, stream: Optional[Any] = None, max_version: Optional[Tuple[int, int]] = None, dl_device:
        Optional[Tuple[int, int]] = None, copy: Optional[bool] = None
    ) -> Any:
        """For from_dlpack() of torch, numpy, jax and others: the same memory. Raises BufferError."""

    def __dlpack_device__(self) -> Tuple[int, int]:
        """Host memory: (1, 0)."""

class Move:
    """A move under way; it goes on without this object."""

    @property
    def done(self) -> bool:
        """Whether it is over."""

    @property
    def bytes_there(self) -> int:
        """How many bytes are there by now."""

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits for its end, for timeout seconds (None: for ever). Raises Busy: not yet, or why it ended otherwise."""

class CheckpointDirectory:
    """Checkpoints of tensors: complete ones, by name."""

    def __init__(self, path: Union[str, bytes, PathLike[Any]], *, make: bool = True) -> None:
        """A directory of checkpoints. make=False: it must exist."""

    def checkpoint(
        self, name: str, tensors: Iterable[Tensor], *, metadata: Optional[Dict[str, str]] = None, room_bytes_max:
        Optional[int] = None
    ) -> Checkpoint:
        """Begins to write the tensors as they are now; nobody stores to them during this call."""

    def restore(
        self, name: str, pool: TensorPool, tensors: Optional[Iterable[str]] = None, *, into_existing: bool = False,
        hint: Optional[Hint] = 'weights', read_mostly: bool = True, streaming: bool = False, pinned: bool = False
    ) -> Restored:
        """Reads tensors of a checkpoint into a pool: all, or those named. into_existing=True fills tensors that the
        pool has.
        """

    def list(self) -> CheckpointList:
        """What there is, and what is damaged."""

    def find(self, name: str) -> CheckpointInfo:
        """One by its name. Raises NotFound, Corrupt."""

    def verify(self, name: str) -> List[Tuple[int, int]]:
        """The damaged parts of its file, as (offset, bytes); an empty list: all is well."""

    def import_file(self, file: Union[str, bytes, PathLike[Any]], name: str) -> CheckpointInfo:
        """Makes a checkpoint of a safetensors file."""

    def export_file(
        self, name: str, file: Union[str, bytes, PathLike[Any]], tensors: Optional[Iterable[str]] = None, *, replace:
        bool = False
    ) -> CheckpointInfo:
        """Writes a checkpoint, or tensors of it, to a safetensors file."""

    def delete(self, name: str) -> None:
        """Removes one."""

class Checkpoint:
    """A checkpoint that is being written; given up where it is dropped before."""

    @property
    def name(self) -> str:
        """As it was given."""

    @property
    def done(self) -> bool:
        """Whether it is written, or failed."""

    @property
    def progress(self) -> CheckpointProgress:
        """How much is written, and how long stores had to wait."""

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits until it is on the disk. Raises Busy: not yet, or why it failed."""

    def cancel(self) -> None:
        """Gives it up; nothing of it is left."""

    def __enter__(self) -> Checkpoint:
        """The checkpoint itself."""

    def __exit__(self, arg0: Any, arg1: Any, arg2: Any) -> None:
        """Waits for it; after an exception gives it up."""

class TensorSpace:
    """Named tensors in memory that several processes write and read."""

    def __init__(
        self, memory: Union[Lease, Mapping, Buffer], *, fd: Optional[int] = None, own: Optional[bool] = None, part:
        Optional[int] = None, offset: int = 0, host: int = 0
    ) -> None:
        """Opens the space in a lease or other memory. own: whether it takes a part to write to (None: when it first
        needs one); fd: the memory's file, where it is no lease's.
        """

    @staticmethod
    def format(
        memory: Union[Lease, Mapping, Buffer], *, parts: int = 8, records_per_part: int = 4096, pins_per_part: int =
        256, coherence: Optional[Literal['coherent', 'noncoherent']] = None, checksums: Optional[bool] = None, seats:
        Optional[int] = None, ownership: Optional[Literal['manager', 'hosts', 'locks', 'program']] = None
    ) -> None:
        """Makes an empty space of the memory; what was there is lost."""

    def create(
        self, name: str, shape: ShapeLike, dtype: DTypeLike = 'float32', *, hint: Optional[Hint] = None,
        double_buffered: bool = True, wait: Optional[float] = 1.0, peers_may_remove: bool = False, read_mostly: bool =
        False, streaming: bool = False
    ) -> SharedTensor:
        """A tensor that all see once it is published. Raises CapacityExhausted, AlreadyExists."""

    def open(self, name: str) -> SharedTensor:
        """The tensor of that name. Raises NotFound."""

    def __getitem__(self, name: str) -> SharedTensor:
        """As open()."""

    def __reduce__(self) -> Tuple[Any, ...]:
        """By reference: who unpickles it opens the same lease. Raises TypeError for memory that is no lease's."""

    def __contains__(self, name: str) -> bool:
        """Whether there is a tensor of that name."""

    def list(self) -> List[SharedTensor]:
        """All tensors."""

    @property
    def part(self) -> Optional[int]:
        """The part that this process owns; None: none."""

    @property
    def seat(self) -> Optional[int]:
        """The seat that it pins through; None: none."""

    @property
    def coherence(self) -> Literal['coherent', 'noncoherent']:
        """'coherent' or 'noncoherent': whether caches of other hosts see each store."""

    @property
    def parts(self) -> int:
        """How many parts it was made with."""

    @property
    def free_bytes(self) -> int:
        """What this process could have now for tensors."""

    @property
    def largest_free_bytes(self) -> int:
        """Of that, in one piece."""

    def health(self) -> None:
        """Raises LeaseExpired where the space's memory is gone, and for good."""

    def tend(self) -> int:
        """Removes what other holders wait for; for an owner that makes no other call. How many."""

    def close(self) -> None:
        """No more calls; its part is given back once its tensors, pins and writes are gone."""

    def __enter__(self) -> TensorSpace:
        """The space itself."""

    def __exit__(self, *args: Any) -> None:
        """As close()."""

class SharedTensor:
    """A tensor of a space."""

    @property
    def name(self) -> str:
        """As it was created."""

    @property
    def dtype(self) -> str:
        """As safetensors names it: 'F32', 'BF16'."""

    @property
    def shape(self) -> Tuple[int, ...]:
        """Elements a dimension."""

    @property
    def nbytes(self) -> int:
        """Bytes of one version."""

    @property
    def hint(self) -> Hint:
        """What it is for: 'weights', 'none', ..."""

    @property
    def strides(self) -> Tuple[int, ...]:
        """In elements."""

    @property
    def read_mostly(self) -> bool:
        """Whether copies of it are cheap."""

    @property
    def streaming(self) -> bool:
        """Whether each byte is used once a step."""

    @property
    def peers_may_remove(self) -> bool:
        """Whether holders of other parts may have it removed."""

    @property
    def flags(self) -> int:
        """read_mostly 1, streaming 2, peers_may_remove 8."""

    @property
    def identity(self) -> TensorIdentity:
        """Which tensor it is: another one of the same name has another."""

    @property
    def part(self) -> int:
        """The part that it lies in."""

    @property
    def double_buffered(self) -> bool:
        """Whether readers have a version while the next one is written."""

    @property
    def version(self) -> int:
        """The newest published one; 0: none yet."""

    def is_current(self, version: int) -> bool:
        """Whether that version is the newest."""

    def read(
        self, out: Optional[Buffer] = None, *, known: int = 0, wait: Optional[float] = 0.0
    ) -> Tuple[Optional[NumpyArray], int]:
        """A copy of the newest version, and its number; (None, known) where it is still version `known`. out: a
        buffer for it.
        """

    def pin(self, *, wait: Optional[float] = 0.0) -> SharedPin:
        """The newest version in place, kept from its writer until it is let go."""

    def write(self, *, wait: Optional[float] = 0.0) -> SharedWrite:
        """The next version's memory; published at the end of `with`, given up by an exception."""

    def publish(self, data: Buffer, *, wait: Optional[float] = 0.0) -> int:
        """Copies data in as the next version, whose number it gives."""

    def wait_for_version(self, version: int, timeout: Optional[float] = None) -> int:
        """Waits until that version or a later one is there, and gives its number. Raises Busy."""

    def remove(self, *, wait: Optional[float] = 0.0) -> None:
        """Removes it; readers that have it pinned keep their version."""

    def __reduce__(self) -> Tuple[Any, ...]:
        """By reference: who unpickles it opens the same lease. Raises TypeError for memory that is no lease's."""

class SharedPin:
    """A version that stays as it is while somebody has it."""

    @property
    def version(self) -> int:
        """Which version it is."""

    def numpy(self) -> NumpyArray:
        """A read-only array."""

    def close(self) -> None:
        """Lets it go once its arrays are gone."""

    def __enter__(self) -> NumpyArray:
        """A read-only numpy array of it."""

    def __exit__(self, *args: Any) -> None:
        """As close()."""

    def torch(self) -> TorchTensor:
        """A torch.Tensor over the same memory."""

    def __dlpack__(
        self, *, stream: Optional[Any] = None, max_version: Optional[Tuple[int, int]] = None, dl_device:
        Optional[Tuple[int, int]] = None, copy: Optional[bool] = None
    ) -> Any:
        """For from_dlpack() of torch, numpy, jax and others: the same memory. Raises BufferError."""

    def __dlpack_device__(self) -> Tuple[int, int]:
        """Host memory: (1, 0)."""

class SharedWrite:
    """A slot that is being filled; published, or given up."""

    @property
    def version(self) -> int:
        """Which version it will be."""

    def numpy(self) -> NumpyArray:
        """Its memory as a numpy array, read-only once it is published."""

    def publish(self) -> int:
        """Publishes it; the version's number."""

    def close(self) -> None:
        """Gives it up, if it is not published."""

    def __enter__(self) -> NumpyArray:
        """Its memory as a numpy array."""

    def __exit__(self, arg0: Any, arg1: Any, arg2: Any) -> None:
        """Publishes it; after an exception gives it up."""

class Model:
    """The tensors of a model, in place: of a lease (terrace.open_model), or of files. A mapping from names to
    ModelTensor. Any number of processes look at the same bytes.
    """

    def __init__(self, source: Union[Lease, Union[str, bytes, PathLike[Any]]]) -> None:
        """source: a Lease with a catalog in it, or the path of a safetensors file, of an index of shards
        (model.safetensors.index.json), or of a folder with one of them.
        """

    def keys(self) -> List[str]:
        """The names of all tensors, in the order of their bytes."""

    def __getitem__(self, name: str) -> ModelTensor:
        """The tensor of that name. Raises terrace.NotFound."""

    def __contains__(self, name: object) -> bool:
        """Whether there is a tensor of that name."""

    def __len__(self) -> int:
        """How many tensors."""

    def __iter__(self) -> Iterator[str]:
        """The names of all tensors."""

    def values(self) -> List[ModelTensor]:
        """All tensors, in the order of their bytes."""

    def items(self) -> List[Tuple[str, ModelTensor]]:
        """Names and tensors, in the order of their bytes."""

    @property
    def metadata(self) -> Dict[str, str]:
        """What the file's __metadata__ said."""

    @property
    def nbytes(self) -> int:
        """Of all tensors together."""

    @property
    def source(self) -> str:
        """The path, or 'lease 7'."""

    @property
    def takes_stores(self) -> bool:
        """Whether this process may store to the tensors: touched pages become its own copies, nobody else sees them.
        False on DAX devices, where a store ends the process.
        """

    def verify(self) -> None:
        """Compares all tensors of a lease with the checksums that the import recorded. Raises terrace.Corrupt, which
        names the tensor; terrace.Unsupported for files, which have none.
        """

    def close(self) -> None:
        """No more calls; its memory and lease go once its tensors and their arrays are gone."""

    def __reduce__(self) -> Tuple[Any, ...]:
        """By reference: who unpickles it opens the same lease or files."""

    def __enter__(self) -> Model:
        """The model itself."""

    def __exit__(self, *args: Any) -> None:
        """As close()."""

class ModelTensor:
    """A tensor of a Model, or a view of one, in place. numpy, torch and whatever takes buffers or DLPack see its
    bytes without a copy.
    """

    @property
    def name(self) -> str:
        """Its name in the model."""

    @property
    def dtype(self) -> str:
        """As safetensors names it: 'F32', 'BF16', 'F8_E4M3'."""

    @property
    def shape(self) -> Tuple[int, ...]:
        """Elements a dimension."""

    @property
    def strides(self) -> Tuple[int, ...]:
        """In elements."""

    @property
    def ndim(self) -> int:
        """How many dimensions."""

    @property
    def size(self) -> int:
        """How many elements."""

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""

    @property
    def hint(self) -> str:
        """What the import said that it is for: 'weights', 'none', ..."""

    @property
    def offset(self) -> int:
        """Of a view: its first element, counted from the tensor's."""

    @property
    def block_type(self) -> Optional[str]:
        """Of quantised tensors of GGUF files: the type of their blocks, 'Q4_K'. Each row is the blocks' bytes (U8)."""

    def __len__(self) -> int:
        """Elements of the first dimension."""

    def __getitem__(self, key: Any) -> ModelTensor:
        """A view: by integers, slices, ... and None, as numpy's."""

    def reshape(self, *args: Any) -> ModelTensor:
        """The same elements in other dimensions, without a copy; one may be -1. Raises InvalidArgument where that
        needs one.
        """

    def numpy(self) -> NumpyArray:
        """A numpy array over the same memory, which it keeps. BF16 is uint16 there, floats of eight bits uint8."""

    def torch(self, *, unmarked: bool = False) -> TorchTensor:
        """A torch.Tensor over the same memory, which it keeps. unmarked=True gives one also where a store to it would
        end the process (Model.takes_stores is False).
        """

    def __reduce__(self) -> Tuple[Any, ...]:
        """By reference: who unpickles it opens the same lease or files."""

    def __dlpack__(
        self, *, stream: Optional[Any] = None, max_version: Optional[Tuple[int, int]] = None, dl_device:
        Optional[Tuple[int, int]] = None, copy: Optional[bool] = None
    ) -> Any:
        """For from_dlpack() of torch, numpy, jax and others: the same memory. Raises BufferError."""

    def __dlpack_device__(self) -> Tuple[int, int]:
        """Host memory: (1, 0)."""

    def item(self) -> Union[bool, int, float, complex]:
        """The number of a tensor of one element. BF16 and floats of eight bits are numbers, too."""

    def tolist(self) -> Any:
        """Its numbers as nested lists."""

    def __iter__(self) -> Iterator[ModelTensor]:
        """Views of its first dimension, one after the other."""

    def __index__(self) -> int:
        """The number of an integer tensor of one element."""

    def __contains__(self, number: Any) -> bool:
        """Whether some element is the number."""

    def __bool__(self) -> bool:
        """The truth of a tensor of one element; ValueError for others, as numpy's."""

    def __int__(self) -> int:
        """The number of a tensor of one element, as an integer."""

    def __float__(self) -> float:
        """The number of a tensor of one element."""

class KvSpace:
    """A cache of immutable blocks, found by key, that processes share."""

    @staticmethod
    def format(
        memory: Union[Lease, Mapping, Buffer, str, PathLike[Any]], *, nbytes: Optional[int] = None, parts: int = 8,
        seats: Optional[int] = None, block_bytes: int = 65536, max_block_bytes: Optional[int] = None, pins: int =
        1024, coherence: Optional[str] = None, checksums: Optional[bool] = None, ownership: Optional[str] = None
    ) -> None:
        """Makes an empty space of a lease, of other memory, or of the file of a path; what was there is lost. nbytes:
        makes that file so long. parts: processes that put at once; seats: those that only read in place;
        block_bytes: the size of most blocks.
        """

    @staticmethod
    def attach(
        memory: Union[Lease, Mapping, Buffer], *, namespace: str = '', fd: Optional[int] = None, puts: bool = True,
        host: int = 0, tends_itself: bool = True, spill: Union[str, PathLike[Any], None] = None, spill_bytes: int = 0,
        local_bytes: int = 0, session: Optional[Session] = None
    ) -> KvSpace:
        """Opens the space in a lease, with all its members, or in other memory. session: attaches members that are
        leases, where it is not a Lease that is given. spill: a folder of a local disk, where evicted blocks go, of
        so many bytes. local_bytes: for copies of hot blocks in this process's own memory. puts: whether it takes a
        part with its first put(); fd: the memory's file, where it is no lease's; namespace: of calls that name
        none.
        """

    @staticmethod
    def open(
        path: Union[str, PathLike[Any]], *, namespace: str = '', puts: bool = True, host: int = 0, tends_itself: bool
        = True, spill: Union[str, PathLike[Any], None] = None, spill_bytes: int = 0, local_bytes: int = 0, session:
        Optional[Session] = None
    ) -> KvSpace:
        """Opens the space in a file, for example of /dev/shm, with all its members."""

    def close(self) -> None:
        """No more calls; its part is given back once its views and writes are gone."""

    def __enter__(self) -> KvSpace:
        """The space itself."""

    def __exit__(self, *args: Any) -> None:
        """As close()."""

    def exists(self, keys: Iterable[KvKey], *, namespace: Optional[str] = None) -> List[bool]:
        """Whether each of the keys is there."""

    def __contains__(self, key: KvKey) -> bool:
        """Whether the key is there."""

    def prefix(self, keys: Iterable[KvKey], *, namespace: Optional[str] = None) -> int:
        """How many of the first keys are there without a gap: a prompt's cached prefix."""

    def get(self, key: KvKey, *, namespace: Optional[str] = None) -> Optional[bytes]:
        """A copy of the block; None: it is not there."""

    def get_into(self, key: KvKey, buffer: Buffer, *, namespace: Optional[str] = None) -> Optional[int]:
        """Copies the block to the begin of a buffer, and gives its length; None: it is not there."""

    def get_many(self, keys: Iterable[KvKey], *, namespace: Optional[str] = None) -> List[Optional[bytes]]:
        """As get() of each, at once."""

    def get_many_into(
        self, blocks: Union[Dict[KvKey, Buffer], Iterable[Tuple[KvKey, Buffer]]], *, raises: bool = True, namespace:
        Optional[str] = None
    ) -> List[Union[int, None, Exception]]:
        """As get_into() of each, at once, of a dict or of pairs of key and buffer. Raises what the first that failed
        would have, once all were tried; raises=False: gives the exception in the place of its answer.
        """

    def view(self, key: KvKey, *, namespace: Optional[str] = None) -> KvView:
        """The block in place, which stays as it is until the view and all over it are let go. Raises NotFound,
        LimitExceeded.
        """

    def put(
        self, key: KvKey, data: Buffer, *, parent: Optional[KvKey] = None, ttl_s: int = 0, wait: Optional[float] =
        0.05, checksum: Optional[bool] = None, namespace: Optional[str] = None
    ) -> bool:
        """Copies a block in; all find it from then on. False: it was there already. parent: the key of the block
        before it in the prompt; ttl_s: seconds until it is gone by itself. Raises CapacityExhausted.
        """

    def put_many(
        self, blocks: Union[Dict[KvKey, Buffer], Iterable[Tuple[KvKey, Buffer]]], *, parent: Optional[KvKey] = None,
        chain: bool = False, ttl_s: int = 0, wait: Optional[float] = 0.05, checksum: Optional[bool] = None, raises:
        bool = True, namespace: Optional[str] = None
    ) -> List[Union[bool, Exception]]:
        """As put() of each, at once, of a dict or of pairs of key and data. chain: each is the parent of the next
        one. Raises what the first that failed would have, once all were tried; raises=False: gives the exception
        in the place of its answer.
        """

    def reserve(
        self, key: KvKey, nbytes: int, *, parent: Optional[KvKey] = None, ttl_s: int = 0, wait: Optional[float] =
        0.05, checksum: Optional[bool] = None, namespace: Optional[str] = None
    ) -> KvWrite:
        """Room for a block, to fill in place: published at the end of `with`, given up by an exception. Raises
        AlreadyExists, CapacityExhausted.
        """

    def erase(self, key: KvKey, *, wait: Optional[float] = 1.0, namespace: Optional[str] = None) -> bool:
        """Erases a block. False: it was not there. Raises Busy."""

    def evict(self, nbytes: int) -> int:
        """Erases the blocks not used for longest until that many bytes are gone; how many blocks."""

    def flush(self, *, everything: bool = False, wait: Optional[float] = 5.0, namespace: Optional[str] = None) -> int:
        """Erases all blocks of the namespace, or of all; how many. Raises Busy where some are left."""

    def list(self) -> List[KvBlockInfo]:
        """All blocks, of all namespaces."""

    def stat(self) -> KvStat:
        """How full it is, and who has which part."""

    def counters(self) -> KvCounters:
        """What this process did since it attached."""

    def verify(self) -> KvVerified:
        """Compares every block with its checksum."""

    def grow(self, where: str) -> None:
        """Makes a lease (its id or label), or a file (a path with a '/'), a member of the space. Raises AlreadyExists
        where it has something else, Busy.
        """

    def shrink(self, where: str, *, wait: Optional[float] = 30.0) -> KvShrunk:
        """Makes a member leave: its blocks move to the others as far as there is room. wait: for others to let go of
        it. Raises NotFound, Busy.
        """

    def policy(self) -> KvPolicy:
        """Budgets, and what is kept."""

    def set_policy(self, *, budgets: Dict[str, int] = {}, kept: Iterable[Union[str, Tuple[str, KvKey]]] = ()) -> None:
        """Another policy in the place of the one there is. budgets: of namespaces, in bytes; kept: namespaces, or
        pairs of a namespace and a key, whose blocks no want of room takes. Raises InvalidArgument, Busy,
        CapacityExhausted.
        """

    def tend(self) -> None:
        """Does what other processes wait for; with tends_itself=False, for one that makes no other call."""

    def health(self) -> None:
        """Raises LeaseExpired where the space's memory is gone, and for good."""

    @property
    def namespace(self) -> str:
        """Of calls that name none."""

    @property
    def part(self) -> Optional[int]:
        """The part that this process owns, once it has put something; None: none."""

class KvView:
    """A block of a KV space in place, read-only; it stays while somebody has it."""

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""

    def __len__(self) -> int:
        """As nbytes."""

    def numpy(self, dtype: DTypeLike = 'uint8', shape: Optional[ShapeLike] = None) -> NumpyArray:
        """A read-only array over the block's own bytes; shape: a row, unless it says more."""

    def close(self) -> None:
        """Lets it go once its arrays and buffers are gone."""

    def __enter__(self) -> KvView:
        """The view itself."""

    def __exit__(self, *args: Any) -> None:
        """As close()."""

    def __dlpack__(
        self, *, stream: Optional[Any] = None, max_version: Optional[Tuple[int, int]] = None, dl_device:
        Optional[Tuple[int, int]] = None, copy: Optional[bool] = None
    ) -> Any:
        """For from_dlpack() of torch, numpy, jax and others: the same memory. Raises BufferError."""

    def __dlpack_device__(self) -> Tuple[int, int]:
        """Host memory: (1, 0)."""

class KvWrite:
    """Room for a block of a KV space, to fill in place; published, or given up."""

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""

    def __len__(self) -> int:
        """As nbytes."""

    def numpy(self, dtype: DTypeLike = 'uint8', shape: Optional[ShapeLike] = None) -> NumpyArray:
        """Its memory as an array, read-only once it is published or given up."""

    def fill(self, data: Buffer) -> None:
        """Copies all of the block in. Raises LeaseLost where stores to a buffer would end the process."""

    def publish(self) -> bool:
        """All find the block from now on. False: it was put meanwhile, and this one is given up. Raises BufferError
        while there is a buffer over it.
        """

    def cancel(self) -> None:
        """Gives it up, if it is not published."""

    def __enter__(self) -> KvWrite:
        """The write itself."""

    def __exit__(self, arg0: Any, arg1: Any, arg2: Any) -> None:
        """Publishes it; after an exception gives it up."""

def import_size(path: Union[str, bytes, PathLike[Any]]) -> int:
    """Bytes of the lease that import_into() needs."""

def import_into(
    lease: Lease, path: Union[str, bytes, PathLike[Any]], *, hint: Optional[Hint] = 'weights', verify: bool = False,
    progress: Optional[Callable[[int, int], object]] = None, cancelled: Optional[Callable[[], object]] = None
) -> Dict[str, Any]:
    """Reads a model's files into a lease; terrace.import_model() grants one for that."""

def save_safetensors(
    path: Union[str, bytes, PathLike[Any]], tensors: Sequence[Tuple[str, str, ShapeLike, Buffer]], metadata:
    Optional[Dict[str, str]], replace: bool = True
) -> None:
    """Writes (name, dtype, shape, buffer) of each tensor to a safetensors file, which appears whole or not at all."""

def kv_namespace(*, tenant: str = '', model: str = '', tokenizer: str = '', layout: str = '', dtype: str = '') -> str:
    """The namespace of blocks that depend on all of these: a changed model, layout or type never meets old blocks."""
