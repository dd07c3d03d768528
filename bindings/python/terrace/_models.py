# SPDX-License-Identifier: Apache-2.0
"""Models in leases by their label, and how other processes find what a process pickled."""

import weakref
from typing import Any, Callable, Optional, Tuple, Union

from ._errors import NotFound
from ._terrace import Lease, Model, ModelTensor, Session, SharedTensor, TensorSpace, import_into, import_size

__all__ = ["import_model", "open_model"]


def open_model(lease: Union[str, int, Lease], *, session: Optional[Session] = None, socket: str = "") -> Model:
    """The tensors that `terrace tensor import` put into a lease, in place.

    lease: its label, its id, or a Lease. session: what attaches it; without one a session of its own, at `socket` or
    where Session() connects. Raises terrace.NotFound where there is no such lease or no model in it, terrace.Busy
    while it is being imported."""
    if not isinstance(lease, Lease):
        lease = (session or Session(socket, client_name="terrace.open_model")).attach(lease, read_only=True)
    return Model(lease)


def import_model(path: Any, label: str = "", *, session: Optional[Session] = None, socket: str = "", pool: str = "",
                 hint: str = "weights", ttl: Optional[float] = None, wait: Optional[float] = 0.0, verify: bool = False,
                 progress: Optional[Callable[[int, int], Any]] = None,
                 cancelled: Optional[Callable[[], Any]] = None) -> Model:
    """Reads a model's files into a lease of its own, as `terrace tensor import` does, and opens it.

    path: as of Model(). ttl: seconds; None: persistent, it stays until somebody releases it. progress(done, total) is
    called with bytes, now and then and at the end; a true value of cancelled() ends the import (terrace.Cancelled).
    What they raise ends it, too. Whatever ends it: the lease is given back."""
    size = import_size(path)  # a file that is refused costs no lease
    session = session or Session(socket, client_name="terrace.import_model")
    lease = session.grant(size, pool=pool, mode="shared_read_only", persistent=ttl is None, ttl=ttl or 0.0, label=label,
                          wait=wait, detached=True)
    try:
        import_into(lease, path, hint=hint, verify=verify, progress=progress, cancelled=cancelled)
        return open_model(lease.id, session=session)
    except BaseException:
        if lease.state != "lost":
            lease.release()
        raise


# What this process reopened, as long as somebody uses it: a hundred tensors of one model are one mapping.
_reopened: "weakref.WeakValueDictionary[Tuple[Any, ...], Model]" = weakref.WeakValueDictionary()


def reopen(*place: Any) -> Model:
    """The model that another process pickled; place is from the C++ part (models.cc, place_of)."""
    model = _reopened.get(place)
    if model is None:
        model = _reopened[place] = _opened(*place)
    return model


def _attached(number: int, epoch: int, socket: str, tenant: str, host: str, *, read_only: bool) -> Lease:
    session = Session(socket, tenant=tenant, host=host, client_name="terrace.reopen")
    lease = session.attach(number, read_only=read_only)
    if lease.epoch != epoch:
        raise NotFound(f"lease {number} of epoch {epoch}, which was pickled, is no more; it has epoch {lease.epoch}")
    return lease


def _opened(kind: str, *place: Any) -> Model:
    return Model(*place) if kind == "files" else Model(_attached(*place, read_only=True))


def reopen_tensor(place: Tuple[Any, ...], name: str, shape: Tuple[int, ...], strides: Tuple[int, ...],
                  offset: int) -> ModelTensor:
    """The tensor, or view of one, that another process pickled."""
    return reopen(*place)[name]._at(shape, strides, offset)


_spaces: "weakref.WeakValueDictionary[Tuple[Any, ...], TensorSpace]" = weakref.WeakValueDictionary()


def reopen_space(*place: Any) -> TensorSpace:
    """The space that another process pickled; it takes a part of its own once it writes."""
    space = _spaces.get(place)
    if space is None:
        space = _spaces[place] = TensorSpace(_attached(*place, read_only=False))
    return space


def reopen_shared(place: Tuple[Any, ...], name: str, part: int, record: int, incarnation: int) -> SharedTensor:
    """The shared tensor that another process pickled, and no other one of its name."""
    tensor = reopen_space(*place)[name]
    identity = tensor.identity
    if (identity.part, identity.record, identity.incarnation) != (part, record, incarnation):
        raise NotFound(f"tensor {name!r}, which was pickled, was removed; there is another one of its name")
    return tensor
