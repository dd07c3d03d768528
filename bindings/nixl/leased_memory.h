// SPDX-License-Identifier: Apache-2.0
// Leases in this process: which of them memory lies in, how another process finds that memory, and the mappings through
// which this process reaches that of others.
//
// A description names a lease, an offset and a length, and says which memory that is: by the file where both processes
// run on one machine, else by the extents of the devices. So a lease of another manager, or one that was moved or
// granted again meanwhile, is refused and never taken for the memory that was meant.
//
// Threads   open() once, before the rest; the rest from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bindings/nixl/settings.h"
#include "core/base/sync/mutex.h"
#include "terrace/mapping.h"
#include "terrace/session.h"

namespace terrace::nixl {

// Memory of a lease that this process has mapped, somewhere.
struct LeasedRange {
  std::shared_ptr<Lease> lease;
  uint64_t offset = 0;
  bool coherent = false;  // the pool's operator says so
};

// All of a lease, as this process reaches what others registered in it.
struct MappedLease {
  std::shared_ptr<Lease> lease;
  std::unique_ptr<Mapping> mapping;
  LeaseEpoch epoch;  // of what is mapped
  bool coherent = false;
  bool writable = false;

  std::byte* begin() const { return const_cast<std::byte*>(mapping->const_bytes().data()); }
};

// Which memory a lease is. Two processes of one boot of one machine compare `file`, others `extents`.
struct LeaseIdentity {
  LeaseEpoch epoch;
  std::string boot, file, extents;
  bool coherent = false;
};

struct RemoteRange {
  std::shared_ptr<MappedLease> memory;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

class LeasedMemory {
 public:
  // Connects to the manager, and attaches the leases of the settings. Errors: with the name of the lease.
  Status open(const Settings& settings, const std::string& agent);

  // By label, or by number.
  Result<std::shared_ptr<Lease>> attach(const std::string& name, LeaseAccess access);
  // Nothing: it lies in no lease that this process has attached. Errors: it leaves the lease at its end.
  Result<std::optional<LeasedRange>> find(std::span<const std::byte> memory);

  // For other processes: "lease=7 epoch=3 ... offset=0 bytes=4096".
  Result<std::string> describe(const LeasedRange& range, uint64_t bytes);
  // The other way, of another process's words. Errors: of Session::attach; not_found (other memory than was meant)
  Result<RemoteRange> resolve(const std::string& description);

 private:
  Result<LeaseIdentity> identity_of(Lease& lease) TERRACE_REQUIRES(mutex_);
  Result<std::shared_ptr<MappedLease>> map_lease(uint64_t id) TERRACE_REQUIRES(mutex_);

  std::unique_ptr<Session> session_;
  std::vector<std::shared_ptr<Lease>> named_;  // by the settings; attached so that their memory is recognised
  Mutex mutex_;
  std::map<uint64_t, LeaseIdentity> identities_ TERRACE_GUARDED_BY(mutex_);
  std::map<uint64_t, std::weak_ptr<MappedLease>> mapped_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace terrace::nixl
