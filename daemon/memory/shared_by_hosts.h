// SPDX-License-Identifier: Apache-2.0
// Memory that several machines see at once: how two of them find out that it is the same, and what each does with its
// caches before the other one reads. Kinds of memory that can be such have one (Backend::shared_by_hosts()). A worker's
// calls, but is_shared(), which is any thread's.
#pragma once

#include <array>
#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "daemon/model/rows.h"

namespace terrace::daemon {

// What two machines write and read to find out whether they see the same memory: a cache line.
using Nonce = std::array<uint8_t, 64>;

// What a machine's caches may have of a view that was hidden. Lines that remain reach the memory whenever they are evicted.
enum class Hidden : uint8_t { written_back, lines_may_remain };

class SharedByHosts {
 public:
  virtual ~SharedByHosts() = default;

  // Whether objects of that name lie on such memory. Only then are the next four asked for; `extents` are those
  // of a lease that nobody has mapped on any machine.
  virtual bool is_shared(std::string_view name) const = 0;
  // Reads the first bytes of the extents, then writes `put` there, both past this machine's caches. What was
  // written to counts as not erased from before it is written.
  virtual Result<Nonce> exchange(const std::string& name, const std::vector<Extent>& extents,
                                 const Nonce& put) = 0;
  // Erases what is not known to be erased.
  virtual Status clean(const std::string& name, const std::vector<Extent>& extents) {
    (void)name, (void)extents;
    return {};
  }
  // Leaves nothing of the extents in this machine's caches: changes reach the memory, and what other machines
  // write from now on is seen here.
  virtual Status write_back(const std::string& name, const std::vector<Extent>& extents) = 0;
  // Whether the last write_back() of the name did nothing, since its host has lapsed. Told once.
  virtual bool take_unwritten(const std::string& name) {
    (void)name;
    return false;
  }
  // Makes the object `view` over extents that are the object `of` of another machine, which keeps it, so that both machines
  // have the lease. Nothing is erased. Done again it is no error.
  // Errors    unsupported   not both lie on such memory
  virtual Status show(const std::string& view, const std::string& of, uint64_t bytes,
                      const std::vector<Extent>& extents) {
    (void)of, (void)bytes, (void)extents;
    return no_views(view);
  }
  // Shuts every holder of a view out, leaves nothing of it in this machine's caches, and removes it; the bytes stay. One
  // that does not exist is hidden; what its host's caches have is not known then.
  // Errors    busy, EAGAIN   somebody still holds pages of it: it is shut out already, and hidden once they are let go
  virtual Result<Hidden> hide(const std::string& view, const std::vector<Extent>& extents) {
    (void)extents;
    return no_views(view);
  }
  // Directories of sysfs below which the kernel shows the dax devices of adopted memory, for whom has to shut
  // holders out when the daemon cannot (daemon/agent/guard.h).
  virtual std::vector<std::string> dax_regions() const { return {}; }

 protected:
  static Error no_views(const std::string& view) {
    return Error{.code = ErrorCode::unsupported,
                 .where = "view",
                 .detail = "the memory of " + view + " is one machine's alone"};
  }
  static Error still_kept(const std::string& view) {
    return Error{.code = ErrorCode::busy,
                 .os_errno = EAGAIN,
                 .where = "hide",
                 .detail = "pages of " + view + " are still held by a process that has pinned them"};
  }
};

}  // namespace terrace::daemon
