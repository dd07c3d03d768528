// SPDX-License-Identifier: Apache-2.0
// One side of a litmus run on a path that both hosts see: a dax device, or a file of shared memory. Nothing but
// the memory itself is between the two sides.
#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>

#include "cli/client/admin_client.h"
#include "cli/pools/litmus.h"
#include "cli/terminal/confirm.h"
#include "core/base/clock.h"
#include "core/base/prng.h"
#include "core/base/unique_fd.h"
#include "core/litmus/host_memory.h"
#include "core/litmus/region.h"
#include "core/os/fault_guard.h"
#include "core/os/memory_map.h"

namespace terrace::cli {
namespace {

constexpr const char* litmus_where = "device litmus";
constexpr uint64_t patience_ns = 10 * ns_per_s;  // once both sides know of each other
constexpr uint64_t dax_align_bytes = 2 * mib;    // where the kernel does not say

Error litmus_error(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = litmus_where, .detail = std::move(detail)};
}

std::string real_path(const std::string& path) {
  char buffer[PATH_MAX];
  return ::realpath(path.c_str(), buffer) == nullptr ? path : std::string(buffer);
}

// "dax0.0" of /dev/dax0.0; empty: no dax device.
std::string dax_name(const struct stat& status) {
  if (!S_ISCHR(status.st_mode)) return "";
  const std::string device =
      "/sys/dev/char/" + std::to_string(major(status.st_rdev)) + ":" + std::to_string(minor(status.st_rdev));
  const std::string target = real_path(device);
  const std::string name = target.substr(target.rfind('/') + 1);
  return real_path(device + "/subsystem").ends_with("/dax") ? name : "";
}

uint64_t read_number(const std::string& path, uint64_t otherwise) {
  uint64_t value = 0;
  return (std::ifstream(path) >> value) && value != 0 ? value : otherwise;
}

// What a manager that answers here has adopted is not to be written to. Whether one that does not answer has,
// is not known.
Status not_adopted_here(const Context& context, const std::string& path, const std::string& dax) {
  const auto client = AdminClient::connect(context);
  if (!client.ok()) return {};
  const auto adopted = [&](const std::string& by) {
    return litmus_error(ErrorCode::busy, path + " is memory that the manager on this host has adopted (" + by +
                                             "); 'terrace device litmus SERIAL' looks at what is free of it");
  };
  // A manager that answers must say what is its own: nothing is written to on a guess.
  TERRACE_ASSIGN_OR_RETURN(const auto status, (*client)->status());
  // Where objects are: below its runtime directory, in a folder of their own, or where NUMA nodes' lie beside
  // it.
  const auto server = status->getServer();
  for (const std::string& folder : {str(server.getRuntimeDirectory()) + "/",
                                    str(server.getObjectDirectory()) + "/", std::string("/dev/shm/terrace-")})
    if (folder.size() > 1 && real_path(path).starts_with(folder)) return adopted("in " + folder);
  if (dax.empty()) return {};
  TERRACE_ASSIGN_OR_RETURN(const auto hardware, (*client)->inventory());
  TERRACE_ASSIGN_OR_RETURN(const auto devices, (*client)->devices());
  for (const auto device : hardware->getDaxDevices()) {
    if (str(device.getName()) != dax) continue;
    const std::string holder = str(device.getHolder());
    if (holder.starts_with("lease ")) return adopted(holder);
    for (const auto region : hardware->getDaxRegions())
      for (const DeviceStatus& known : devices)
        if (region.getName() == device.getRegion() && known->getSerial() == region.getSerial() &&
            known->getAdopted())
          return adopted("device " + str(known->getSerial()));
  }
  return {};
}

// The memory that is run over, mapped.
class Range {
 public:
  static Result<Range> open(const Context& context, const LitmusPath& wanted) {
    UniqueFd fd(::open(wanted.path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
    if (!fd.valid()) return os_error(errno, litmus_where, "cannot open " + wanted.path);
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) return os_error(errno, litmus_where, "cannot look at " + wanted.path);
    const std::string dax = dax_name(status);
    if (dax.empty() && !S_ISREG(status.st_mode))
      return litmus_error(
          ErrorCode::invalid_argument,
          wanted.path + " is neither a dax device nor a file; give memory that both sides can map");
    TERRACE_RETURN_IF_ERROR(not_adopted_here(context, wanted.path, dax));
    const std::string sysfs = "/sys/bus/dax/devices/" + dax + "/";
    const uint64_t size_bytes =
        dax.empty() ? static_cast<uint64_t>(status.st_size) : read_number(sysfs + "size", 0);
    const uint64_t align = dax.empty() ? os::page_bytes() : read_number(sysfs + "align", dax_align_bytes);
    TERRACE_RETURN_IF_ERROR(check_range(wanted, size_bytes));
    TERRACE_RETURN_IF_ERROR(confirm(context, wanted.yes, "",
                                    "This overwrites " + format_size(litmus::region_bytes) + " of " +
                                        printable(wanted.path) + " from " + format_size(wanted.offset_bytes) +
                                        " on, whatever is there, and nobody else may use them. Go on?"));
    return map(std::move(fd), wanted, align);
  }
  Range(Range&& other) noexcept : map_(std::move(other.map_)), within_(other.within_) {}

  litmus::Region& region() const { return *reinterpret_cast<litmus::Region*>(map_.data() + within_); }

 private:
  Range(os::MemoryMap map, uint64_t within) : map_(std::move(map)), within_(within) {}

  static Status check_range(const LitmusPath& wanted, uint64_t size_bytes) {
    if (wanted.offset_bytes % os::page_bytes() != 0)
      return litmus_error(ErrorCode::invalid_argument,
                          "--offset is a multiple of " + format_size(os::page_bytes()));
    if (wanted.offset_bytes > size_bytes || size_bytes - wanted.offset_bytes < litmus::region_bytes)
      return litmus_error(ErrorCode::invalid_argument,
                          wanted.path + " has " + format_size(size_bytes) + ", and a run needs " +
                              format_size(litmus::region_bytes) + " from --offset " +
                              format_size(wanted.offset_bytes));
    return {};
  }

  static Result<Range> map(UniqueFd fd, const LitmusPath& wanted, uint64_t align) {
    const uint64_t within = wanted.offset_bytes % align;
    const uint64_t pages = (litmus::region_bytes + os::page_bytes() - 1) / os::page_bytes() * os::page_bytes();
    const uint64_t length = (within + pages + align - 1) / align * align;
    TERRACE_ASSIGN_OR_RETURN(os::MemoryMap map, os::MemoryMap::reserve(length, align));
    TERRACE_RETURN_IF_ERROR(os::map_file_at(map.bytes(), 0, length, fd.get(), wanted.offset_bytes - within,
                                            os::Protection::read_write));
    return Range(std::move(map), within);
  }

  os::MemoryMap map_;
  uint64_t within_;
};

}  // namespace

Result<litmus::Report> litmus_on_path(const Context& context, const LitmusPath& wanted) {
  if (wanted.rounds == 0 || wanted.rounds > litmus::rounds_max)
    return litmus_error(ErrorCode::invalid_argument, "--rounds is 1 to " + std::to_string(litmus::rounds_max));
  TERRACE_ASSIGN_OR_RETURN(const Range range, Range::open(context, wanted));
  StatusLines(context).say(std::string("this is the ") + litmus::role_name(wanted.role) +
                           " side; waiting for the other one");
  const uint64_t began_ns = SystemClock().now_ns();
  litmus::HostMemory memory(wanted.wait_ns);
  litmus::Side side(memory, range.region(), {wanted.role, wanted.rounds, secure_random_u64() | 1});
  std::optional<Result<litmus::Report>> report;
  const bool whole = os::guarded([&] {
    const Status joined = side.join();
    memory.set_patience(patience_ns);
    report.emplace(joined.ok() ? side.run() : Result<litmus::Report>(joined.error()));
  });
  if (!whole)
    return litmus_error(ErrorCode::io_error,
                        "the memory of " + wanted.path + " failed under an access (SIGBUS)");
  if (report->ok()) (*report)->took_ns = SystemClock().now_ns() - began_ns;
  return std::move(*report);
}

}  // namespace terrace::cli
