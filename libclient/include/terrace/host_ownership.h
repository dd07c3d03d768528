// Ownership of a tensor space's parts among several hosts that no manager reaches together: each host has parts
// of its own, fixed beforehand, and its kernel says which of its processes owns which of them.
//
// Between hosts nothing is asked and nothing is locked, so it works on memory without coherent caches, and it
// goes on when another host is gone. The price: what a dead process of another host left (a pin, an open write
// of a tensor with one slot) stays until a process of that host owns the part again, or the program says that
// the host is gone.
//
// Protocol: docs/design/0016-write-ownership.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/base/result.h"
#include "terrace/tensor_space.h"

namespace terrace {

inline constexpr uint32_t space_hosts_max = 64;

// Parts [first_part, first_part + parts) belong to `host`, 0 to 63. A host may have several ranges.
struct HostRange {
  uint32_t host = 0;
  uint32_t first_part = 0;
  uint32_t parts = 0;
};

struct HostOwnershipOptions {
  std::vector<HostRange> ranges;  // of all hosts, the same on each
  uint32_t host = 0;              // this one
  // Whether another host is shut out for good: powered off or fenced, so that it stores nothing any more and
  // none of its stores is still in a cache. Asked from any thread, while somebody waits. None: no host ever is.
  std::function<bool(uint32_t host)> is_gone = nullptr;
  uint64_t space_offset = 0;  // where the space begins in the file, as for ownership_by_locks
};

// `parts` in as many equal ranges as there are hosts, in order; the first ones have one more where it does not
// come out even.
//
// Errors    invalid_argument  no host, more than 64 parts, or fewer parts than hosts
Result<std::vector<HostRange>> equal_host_ranges(uint32_t parts, uint32_t hosts);

// The source for AttachOptions::ownership. `fd` is the memory as this host sees it (a dax device, a file): its
// processes exclude each other by locks on it, as with ownership_by_locks, and must all open the same device
// node or file.
//
// An epoch is a number that grows with each owner of a part, and the owner's host in its lower 6 bits. It goes
// on from what the part itself has, so it survives processes, restarts and hosts that come and go. It also
// tells who was the last owner: a part that another host had is refused, unless `is_gone` says that this host
// is gone. So two hosts that were given different ranges find out, except those that claim one part in the same
// moment.
//
// Units     Parts and hosts are counted from 0.
// Errors    invalid_argument   a range is empty or beyond part 63; hosts beyond 63; ranges overlap: says which
// hosts
//                              and which part; this host has no range
//           permission_denied  as ownership_by_locks
//           of claim (and so of TensorSpace::attach):
//           busy               the part is another host's, or a process of this host owns it; says which
//           permission_denied  another host was its last owner, or one by another kind of source
//           limit_exceeded     the part's epochs are used up: format the space anew
// Ownership Holds a descriptor of its own; `fd` may be closed.
// Threads   Any.
Result<std::shared_ptr<OwnershipSource>> ownership_by_host_ranges(int fd, HostOwnershipOptions options);

}  // namespace terrace
