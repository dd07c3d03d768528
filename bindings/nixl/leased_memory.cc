// SPDX-License-Identifier: Apache-2.0
#include "bindings/nixl/leased_memory.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <utility>

#include "terrace/tensor_space.h"
#include "terrace/visibility.h"

namespace terrace::nixl {
namespace {

constexpr const char* where = "nixl";

Error invalid(std::string detail) {
  return {ErrorCode::invalid_argument, 0, where, std::move(detail)};
}

std::string name_of(const Lease& lease) {
  return "lease " + std::to_string(lease.id().value);
}

bool lines_can_be_written_back() {
  alignas(64) static std::byte line[64];
  return lmcache_shared_l1_visibility_v1("noncoherent", 1, 0, line, 0, sizeof line, 0) == 0;
}

struct Mapped {
  uintptr_t begin = 0, end = 0;
  uint64_t offset = 0;
  unsigned long inode = 0;
};

// The offset in its file of memory that one file backs without a gap; it may be several mappings of it.
std::optional<uint64_t> offset_in_file(std::span<const std::byte> memory) {
  std::ifstream maps("/proc/self/maps");
  const auto first = reinterpret_cast<uintptr_t>(memory.data());
  std::optional<Mapped> before;
  uint64_t offset = 0;
  for (std::string line; std::getline(maps, line);) {
    Mapped now;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %*s %" SCNx64 " %*s %lu", &now.begin, &now.end,
                    &now.offset, &now.inode) != 4)
      continue;
    if (!before) {
      if (first < now.begin || first >= now.end) continue;
      offset = now.offset + (first - now.begin);
    } else if (now.begin != before->end || now.inode != before->inode ||
               now.offset != before->offset + (before->end - before->begin)) {
      return std::nullopt;
    }
    if (first + memory.size() <= now.end) return offset;
    before = now;
  }
  return std::nullopt;
}

Result<LeaseIdentity> ask_identity(Lease& lease) {
  LeaseIdentity all;
  all.epoch = lease.epoch();
  TERRACE_ASSIGN_OR_RETURN(const LeaseInfo info, lease.info());
  all.coherent = space_coherence(info) == SpaceCoherence::coherent;
  if (!all.coherent && !lines_can_be_written_back())
    return Error{ErrorCode::unsupported, 0, where,
                 "this processor has no write-back of single cache lines, which " + name_of(lease) +
                     " needs; where one machine or coherent hardware has the memory: terrace pool set " +
                     info.pool + " --coherence coherent"};
  std::ifstream("/proc/sys/kernel/random/boot_id") >> all.boot;
  struct stat status {};
  if (::fstat(lease.fd(), &status) != 0)
    return os_error(errno, where, "the descriptor of " + name_of(lease) + " cannot be asked");
  all.file = std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino) + ":" +
             std::to_string(status.st_rdev);
  for (const ExtentInfo& extent : info.extents) {
    for (const char letter : extent.device)
      all.extents += std::isspace(static_cast<unsigned char>(letter)) != 0 ? '_' : letter;
    all.extents += "@" + std::to_string(extent.offset_bytes) + "+" + std::to_string(extent.length_bytes) + ",";
  }
  return all;
}

std::optional<std::string> word(const std::string& text, const std::string& name) {
  const std::string padded = " " + text + " ";
  const size_t at = padded.find(" " + name + "=");
  if (at == std::string::npos) return std::nullopt;
  const size_t begin = at + name.size() + 2;
  return padded.substr(begin, padded.find(' ', begin) - begin);
}

std::optional<uint64_t> number(const std::string& text, const std::string& name) {
  const auto found = word(text, name);
  uint64_t value = 0;
  if (!found || found->empty()) return std::nullopt;
  const auto [end, error] = std::from_chars(found->data(), found->data() + found->size(), value);
  return error == std::errc() && end == found->data() + found->size() ? std::optional(value) : std::nullopt;
}

bool is_number(const std::string& name) {
  return !name.empty() && std::ranges::all_of(name, [](char one) { return one >= '0' && one <= '9'; });
}

}  // namespace

Status LeasedMemory::open(const Settings& settings, const std::string& agent) {
  SessionOptions options;
  options.socket_path = settings.socket;
  options.client_name = "nixl " + agent;
  TERRACE_ASSIGN_OR_RETURN(session_, Session::connect(std::move(options)));
  for (const std::string& name : settings.leases) {
    TERRACE_ASSIGN_OR_RETURN(auto lease, attach(name, LeaseAccess::read_write));
    named_.push_back(std::move(lease));
  }
  return {};
}

Result<std::shared_ptr<Lease>> LeasedMemory::attach(const std::string& name, LeaseAccess access) {
  LeaseId id;
  if (is_number(name) && std::from_chars(name.data(), name.data() + name.size(), id.value).ec != std::errc())
    return invalid(name + " is no number of a lease");
  auto lease = session_->attach(id, id.valid() ? std::string() : name, access);
  if (lease.ok()) return lease;
  Error error = std::move(lease).error();
  error.detail = "lease " + name + ": " + error.detail;
  return error;
}

Result<std::optional<LeasedRange>> LeasedMemory::find(std::span<const std::byte> memory) {
  auto lease = lease_of_memory(memory);
  if (lease == nullptr) return std::optional<LeasedRange>();
  const auto offset = offset_in_file(memory);
  if (!offset || *offset > lease->bytes() || memory.size() > lease->bytes() - *offset)
    return invalid("the memory begins in " + name_of(*lease) + " and does not end there");
  const MutexLock lock(mutex_);
  TERRACE_ASSIGN_OR_RETURN(const LeaseIdentity identity, identity_of(*lease));
  return std::optional(LeasedRange{std::move(lease), *offset, identity.coherent});
}

Result<std::string> LeasedMemory::describe(const LeasedRange& range, uint64_t bytes) {
  const MutexLock lock(mutex_);
  TERRACE_ASSIGN_OR_RETURN(const LeaseIdentity memory, identity_of(*range.lease));
  return "lease=" + std::to_string(range.lease->id().value) + " epoch=" + std::to_string(memory.epoch.value) +
         " offset=" + std::to_string(range.offset) + " bytes=" + std::to_string(bytes) +
         " boot=" + memory.boot + " file=" + memory.file + " extents=" + memory.extents;
}

Result<LeaseIdentity> LeasedMemory::identity_of(Lease& lease) {
  const auto known = identities_.find(lease.id().value);
  if (known != identities_.end() && known->second.epoch == lease.epoch()) return known->second;
  TERRACE_ASSIGN_OR_RETURN(LeaseIdentity asked, ask_identity(lease));
  return identities_[lease.id().value] = std::move(asked);
}

Result<std::shared_ptr<MappedLease>> LeasedMemory::map_lease(uint64_t id) {
  auto memory = std::make_shared<MappedLease>();
  auto lease = attach(std::to_string(id), LeaseAccess::read_write);
  memory->writable = lease.ok();
  // Of a lease of mode shared_read_only one process writes; to the others it is busy.
  if (!lease.ok() &&
      (lease.error().code == ErrorCode::permission_denied || lease.error().code == ErrorCode::busy))
    lease = attach(std::to_string(id), LeaseAccess::read_only);
  if (!lease.ok()) return std::move(lease).error();
  memory->lease = std::move(lease).value();
  TERRACE_ASSIGN_OR_RETURN(const LeaseIdentity identity, identity_of(*memory->lease));
  memory->coherent = identity.coherent;
  memory->epoch = identity.epoch;
  TERRACE_ASSIGN_OR_RETURN(memory->mapping, Mapping::map(memory->lease));
  return memory;
}

Result<RemoteRange> LeasedMemory::resolve(const std::string& description) {
  const auto id = number(description, "lease"), epoch = number(description, "epoch"),
             offset = number(description, "offset"), bytes = number(description, "bytes");
  const auto boot = word(description, "boot"), file = word(description, "file"),
             extents = word(description, "extents");
  if (!id || *id == 0 || !epoch || !offset || !bytes || !boot || !file || !extents)
    return Error{ErrorCode::corrupt, 0, where,
                 "these are no words about memory of a lease: " + description.substr(0, 200)};
  const MutexLock lock(mutex_);
  std::shared_ptr<MappedLease> memory = mapped_[*id].lock();
  if (memory == nullptr || memory->epoch.value != *epoch) {
    TERRACE_ASSIGN_OR_RETURN(memory, map_lease(*id));
    mapped_[*id] = memory;
  }
  TERRACE_ASSIGN_OR_RETURN(const LeaseIdentity here, identity_of(*memory->lease));
  const bool same_machine = here.boot == *boot;
  if (memory->epoch.value != *epoch || (same_machine ? here.file != *file : here.extents != *extents))
    return Error{ErrorCode::not_found, 0, where,
                 name_of(*memory->lease) +
                     " of this manager is other memory than the one that was registered; are both "
                     "agents at one manager, and is the metadata newer than the last move of the lease?"};
  const uint64_t all = memory->mapping->const_bytes().size();
  if (*offset > all || *bytes > all - *offset)
    return Error{ErrorCode::corrupt, 0, where, "the memory ends behind " + name_of(*memory->lease)};
  return RemoteRange{std::move(memory), *offset, *bytes};
}

}  // namespace terrace::nixl
