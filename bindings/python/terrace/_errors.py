# SPDX-License-Identifier: Apache-2.0
"""What goes wrong, as exceptions: one class a code, so that a program can catch what it can do something about."""

__all__ = [
    "AlreadyExists", "Busy", "Cancelled", "CapacityExhausted", "Corrupt", "Error", "Internal", "InvalidArgument",
    "IoError", "LeaseExpired", "LeaseLost", "LeaseRevoked", "LimitExceeded", "NotFound", "OutOfMemory",
    "PermissionDenied", "Unavailable", "Unsupported", "VersionMismatch",
]


class Error(Exception):
    """A call failed; its text says which tensor, which tier, how many bytes short, and how to fix it."""

    code = "internal"

    def __init__(self, text: str = "", os_errno: int = 0, where: str = ""):
        super().__init__(text)
        self.os_errno = os_errno
        self.where = where


class InvalidArgument(Error, ValueError):
    """The request itself is wrong; a retry will fail the same way."""

    code = "invalid_argument"


class NotFound(Error, LookupError):
    """No such object by that name or id."""

    code = "not_found"


class AlreadyExists(Error):
    """The name or object is taken; choose another or use the existing one."""

    code = "already_exists"


class PermissionDenied(Error):
    """This peer may not do that; another identity may."""

    code = "permission_denied"


class CapacityExhausted(Error):
    """Not enough free memory in the pool or tier now; retry later or ask for less."""

    code = "capacity_exhausted"


class LimitExceeded(Error):
    """A named limit would be passed."""

    code = "limit_exceeded"


class LeaseLost(Error):
    """The memory of a lease is gone, or about to go."""


class LeaseExpired(LeaseLost):
    """The lease lapsed; ask for a new one."""

    code = "lease_expired"


class LeaseRevoked(LeaseLost):
    """An operator took the lease back."""

    code = "lease_revoked"


class Busy(Error):
    """Something else holds the object; retry once it is let go."""

    code = "busy"


class Unavailable(Error):
    """The daemon or device cannot be reached now; retry with back-off."""

    code = "unavailable"


class IoError(Error):
    """The kernel or a device failed; os_errno says how."""

    code = "io_error"


class Corrupt(Error):
    """Stored or received bytes contradict themselves; do not use them."""

    code = "corrupt"


class Unsupported(Error):
    """This build, kernel or machine cannot do it; `terrace doctor` says why."""

    code = "unsupported"


class VersionMismatch(Error):
    """The other side speaks another protocol or format version."""

    code = "version_mismatch"


class OutOfMemory(Error, MemoryError):
    """This process could not get local memory."""

    code = "out_of_memory"


class Cancelled(Error):
    """The operation was given up before it took effect."""

    code = "cancelled"


class Internal(Error):
    """A defect in Terrace; report it with the text."""

    code = "internal"


# Tracebacks and docs name them as programs do: terrace.NotFound, not terrace._errors.NotFound.
for _name in __all__:
    globals()[_name].__module__ = "terrace"

# By the number of core/base/error.h.
_BY_NUMBER = (
    Internal, InvalidArgument, NotFound, AlreadyExists, PermissionDenied, CapacityExhausted, LimitExceeded,
    LeaseExpired, LeaseRevoked, Busy, Unavailable, IoError, Corrupt, Unsupported, VersionMismatch, OutOfMemory,
    Cancelled, Internal,
)


def of(number: int, text: str, os_errno: int, where: str) -> Error:
    kind = _BY_NUMBER[number] if 0 <= number < len(_BY_NUMBER) else Internal
    return kind(text, os_errno, where)
