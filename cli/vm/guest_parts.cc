// SPDX-License-Identifier: Apache-2.0
// The parts of a machine's memory one by one: found, made, given to the guest and taken back.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "cli/vm/guest_memory.h"
#include "core/base/clock.h"
#include "core/base/units.h"

namespace terrace::cli {
namespace {

constexpr const char* device_prefix = "terrace-";
constexpr uint64_t ask_again_ns = 5 * ns_per_s;

// Bytes of a file that are there, and where the last of them ends. Both 0 where the file does not say.
struct Filled {
  uint64_t bytes = 0, end = 0;
};
Filled filled_of(int fd) {
  Filled filled;
  for (off_t at = 0;;) {
    const off_t begin = ::lseek(fd, at, SEEK_DATA);
    if (begin < 0) return filled;
    const off_t end = ::lseek(fd, begin, SEEK_HOLE);
    if (end <= begin) return {};
    filled.bytes += static_cast<uint64_t>(end - begin);
    filled.end = static_cast<uint64_t>(end);
    at = end;
  }
}

// It has ended, or is another tenant's.
bool is_no_lease_of_ours(const Error& error) {
  return error.code == ErrorCode::not_found || error.code == ErrorCode::lease_expired ||
         error.code == ErrorCode::lease_revoked || error.code == ErrorCode::permission_denied;
}

}  // namespace

Error GuestMemory::strange_answer(const std::exception& error) {
  return Error{ErrorCode::corrupt, 0, where,
               std::string("the machine's monitor does not answer as QEMU does: ") + error.what()};
}

// The list of the machine's memory devices. Errors: as ask(); corrupt.
Result<nlohmann::json> GuestMemory::devices() {
  TERRACE_ASSIGN_OR_RETURN(nlohmann::json found,
                           monitor_.ask("query-memory-devices", nlohmann::json::object()));
  if (found.is_array()) return found;
  return Error{ErrorCode::corrupt, 0, where, "the machine's monitor names no memory devices"};
}

Status GuestMemory::adopt() {
  TERRACE_ASSIGN_OR_RETURN(const nlohmann::json found, devices());
  try {
    for (const nlohmann::json& device : found) TERRACE_RETURN_IF_ERROR(adopt_device(device));
  } catch (const nlohmann::json::exception& error) {
    return strange_answer(error);
  }
  for (const Part& part : parts_)
    if (part.stays()) wanted_bytes_ += part.requested_bytes;
  return {};
}

Status GuestMemory::adopt_device(const nlohmann::json& device) {
  const nlohmann::json data = device.value("data", nlohmann::json::object());
  const std::string name = data.value("id", std::string());
  if (!name.starts_with(device_prefix)) return {};
  uint64_t id = 0;
  const char* digits = name.c_str() + std::char_traits<char>::length(device_prefix);
  if (std::from_chars(digits, name.c_str() + name.size(), id).ec != std::errc() || id == 0) return {};
  Result<std::shared_ptr<Lease>> lease = session_.attach(LeaseId{id}, "", LeaseAccess::read_write);
  if (!lease.ok() && is_no_lease_of_ours(lease.error()))
    return {};  // an emptied virtio-mem device stays in QEMU
  if (!lease.ok()) return lease.error();
  TERRACE_ASSIGN_OR_RETURN(const LeaseInfo info, (*lease)->info());
  if (info.label != options_.label && !info.label.starts_with(options_.label + "#")) return {};
  Part part;
  part.lease = std::move(*lease);
  part.label = info.label;
  part.device = name;
  part.dimm = device.value("type", std::string()) == "dimm";
  part.device_bytes = data.value(part.dimm ? "size" : "max-size", uint64_t{0});
  part.requested_bytes = part.device_bytes;
  look_at(part, &device);
  part.leaving = part.requested_bytes == 0;
  part.cut = !part.dimm && part.plugged_bytes > part.lease->bytes();
  if (part.lease->state() == LeaseState::revoking) {
    part.leaving = true;
    part.until_ns = SystemClock().now_ns();
  }
  parts_.push_back(std::move(part));
  return {};
}

Result<GuestMemory::Part*> GuestMemory::add_part(uint64_t bytes) {
  LeaseRequest wanted;
  wanted.label = next_label();
  wanted.pool = options_.pool;
  wanted.mode = options_.mode;
  wanted.bytes = parts_.empty() ? std::max(bytes, in_blocks(options_.room_bytes)) : bytes;
  Part part;
  TERRACE_ASSIGN_OR_RETURN(part.lease, session_.grant(wanted));
  part.label = wanted.label;
  part.device = device_prefix + std::to_string(part.lease->id().value);
  part.device_bytes = wanted.bytes;
  part.asked = true;
  const Result<std::string> path = path_of(*part.lease);
  const Status plugged = path.ok() ? plug_in(part, *path) : Status(path.error());
  // Without an answer the machine may have taken it: the next look will show.
  const bool unanswered = !plugged.ok() && plugged.error().code == ErrorCode::unavailable && path.ok();
  if (!plugged.ok() && !unanswered) {
    (void)part.lease->release();
    return plugged.error();
  }
  if (part.dimm) part.requested_bytes = part.device_bytes;
  if (unanswered) {
    parts_.push_back(std::move(part));
    return plugged.error();
  }
  part.listed = true;
  if (!part.dimm && bytes < part.lease->bytes()) {
    const Result<LeaseInfo> smaller = part.lease->resize(bytes);  // the guest has none of it yet
    if (!smaller.ok()) part.resizable = smaller.error().code != ErrorCode::unsupported;
  }
  say_("the guest gets " + format_size(bytes) + " of lease " + std::to_string(part.lease->id().value) + " (" +
       part.label + ")");
  parts_.push_back(std::move(part));
  return &parts_.back();
}

Status GuestMemory::plug_in(Part& part, const std::string& path) {
  struct stat memory {};
  if (::fstat(part.lease->fd(), &memory) != 0)
    return os_error(errno, where, "cannot look at the lease's memory");
  part.dimm =
      options_.model == GuestModel::dimm || (options_.model == GuestModel::by_kind && S_ISCHR(memory.st_mode));
  const std::string object = part.device + "-memory";
  nlohmann::json device = {{"driver", part.dimm ? "pc-dimm" : "virtio-mem-pci"},
                           {"id", part.device},
                           {"memdev", object},
                           {"node", options_.node}};
  if (!part.dimm) {
    // Blocks are filled before the guest gets them, so that one that lies behind the lease's end is refused.
    device["prealloc"] = true;
    device["requested-size"] = 0;
    TERRACE_ASSIGN_OR_RETURN(const std::string bus, free_bus());
    if (!bus.empty()) device["bus"] = bus;
  }
  const Result<nlohmann::json> made = monitor_.ask("object-add", {{"qom-type", "memory-backend-file"},
                                                                  {"id", object},
                                                                  {"size", part.device_bytes},
                                                                  {"mem-path", path},
                                                                  {"share", true}});
  if (!made.ok()) return made.error();
  const Result<nlohmann::json> added = monitor_.ask("device_add", device);
  if (added.ok()) return {};
  if (added.error().code == ErrorCode::unavailable) return added.error();
  (void)monitor_.ask("object-del", {{"id", object}});
  Error error = added.error();
  error.detail +=
      "; the machine has room for further memory with maxmem (and slots, for dimms), and on q35 with an "
      "empty pcie-root-port for each part";
  return error;
}

// A port that a device can be plugged into while the machine runs; empty: QEMU finds a place, or says why not.
Result<std::string> GuestMemory::free_bus() {
  TERRACE_ASSIGN_OR_RETURN(const nlohmann::json buses, monitor_.ask("query-pci", nlohmann::json::object()));
  std::string found;
  for (const nlohmann::json& bus : buses)
    for (const nlohmann::json& device : bus.value("devices", nlohmann::json::array())) {
      const std::string name = device.value("qdev_id", std::string());
      if (!device.contains("pci_bridge") || name.empty()) continue;
      if (!device["pci_bridge"].value("devices", nlohmann::json::array()).empty()) continue;
      if (name.starts_with(vm_port_prefix)) return name;  // made for this by `terrace vm run`
      if (found.empty()) found = name;
    }
  return found;
}

// The machine opens the memory by a path, as its own user.
Result<std::string> GuestMemory::path_of(Lease& lease) const {
  Result<std::string> path = lease.open_path(options_.user);
  if (path.ok() || options_.user.has_value()) return path;
  std::string own = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(lease.fd());
  if (::access(own.c_str(), R_OK | W_OK) != 0) return path;
  return own;
}

Status GuestMemory::request(Part& part, uint64_t bytes) {
  if (part.dimm) return bytes == 0 ? request_dimm_back(part) : Status();
  if (part.requested_bytes == bytes || part.refused_bytes == bytes) return {};
  part.asked = true;
  const Result<nlohmann::json> asked = monitor_.ask(
      "qom-set",
      {{"path", "/machine/peripheral/" + part.device}, {"property", "requested-size"}, {"value", bytes}});
  if (asked.ok()) {
    part.requested_bytes = bytes;
    return {};
  }
  if (asked.error().code == ErrorCode::unavailable) return asked.error();
  part.refused_bytes = bytes;  // the other parts go on
  refusal_ = asked.error();
  return {};
}

// The guest may be busy with the last time it was asked, or refuse: it is asked again later.
Status GuestMemory::request_dimm_back(Part& part) {
  part.leaving = true;
  part.requested_bytes = 0;
  const uint64_t now_ns = SystemClock().now_ns();
  if (part.gone || (part.asked_ns != 0 && now_ns - part.asked_ns < ask_again_ns)) return {};
  part.asked_ns = now_ns;
  part.asked = true;
  const Result<nlohmann::json> asked = monitor_.ask("device_del", {{"id", part.device}});
  if (!asked.ok() && asked.error().code == ErrorCode::unavailable) return asked.error();
  return {};
}

// What the guests' kernels said to the last request for a dimm, as the firmware heard it (ACPI _OST).
std::string GuestMemory::reluctance() {
  constexpr int unplug_request = 3;  // a source of such a report
  if (std::none_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.dimm; }))
    return "; it uses that memory, or its driver (virtio_mem) does not run";
  const Result<nlohmann::json> told = monitor_.ask("query-acpi-ospm-status", nlohmann::json::object());
  std::string refused;
  try {
    for (const nlohmann::json& slot : told.ok() ? *told : nlohmann::json::array())
      for (const Part& part : parts_)
        if (part.leaving && slot.value("device", std::string()) == part.device &&
            slot.value("source", 0) == unplug_request && slot.value("status", 0) != 0)
          refused += (refused.empty() ? "" : ", ") + part.label;
  } catch (const nlohmann::json::exception&) {
    refused.clear();  // another QEMU's words
  }
  return refused.empty() ? "; its kernel has not answered" : "; its kernel refuses to let go of " + refused;
}

// All of it, where the guest should have none.
void GuestMemory::take_rest_of(Part& part) {
  const std::string lease = "lease " + std::to_string(part.lease->id().value) + " (" + part.label + ")";
  const bool whole = part.dimm || part.requested_bytes == 0;
  Status taken;
  if (whole) {
    taken = part.lease->release();
    part.lost = taken.ok() || part.lease->state() == LeaseState::lost;
  } else {
    const Result<LeaseInfo> smaller = part.lease->resize(in_blocks(part.requested_bytes));
    taken = smaller.ok() ? Status() : Status(smaller.error());
    part.cut = taken.ok();
  }
  say_(taken.ok() ? lease + ": " + (whole ? "all" : format_size(part.plugged_bytes - part.requested_bytes)) +
                        " was taken that the guest had not given up; the machine gets SIGBUS where it uses it"
                  : lease + " could not be taken: " + taken.error().to_string());
}

// Gives the lease's end back that the guest has nothing of. Blocks were filled when the guest got them, and are empty
// again since it gave them up; where the two do not agree (a balloon), nothing is cut off.
void GuestMemory::shrink_lease(Part& part) {
  const uint64_t now_ns = SystemClock().now_ns();
  if (!part.resizable || part.lease->bytes() <= part.requested_bytes || now_ns < part.cut_after_ns) return;
  const Filled filled = filled_of(part.lease->fd());
  const uint64_t needed = std::max(filled.end, block_bytes);
  if (filled.bytes != part.plugged_bytes || needed >= part.lease->bytes()) return;
  part.cut_after_ns = now_ns + ask_again_ns;  // granules may be larger than what is left over
  const Result<LeaseInfo> smaller = part.lease->resize(needed);
  if (!smaller.ok()) part.resizable = smaller.error().code != ErrorCode::unsupported;
}

std::string GuestMemory::next_label() const {
  for (uint32_t number = 1;; ++number) {
    const std::string label = number == 1 ? options_.label : options_.label + "#" + std::to_string(number);
    if (std::none_of(parts_.begin(), parts_.end(), [&label](const Part& part) { return part.label == label; }))
      return label;
  }
}

}  // namespace terrace::cli
