// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/numa/system_ram.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "core/base/failpoint.h"
#include "core/base/unique_fd.h"
#include "core/base/units.h"

namespace terrace::daemon {
namespace {

constexpr const char* online_where = "SystemRam::online";
constexpr const char* offline_where = "SystemRam::offline";

Error failed(ErrorCode code, const char* where, std::string detail) {
  return Error{.code = code, .where = where, .detail = std::move(detail)};
}

// `what` failed, and the error says why.
Error about(const std::string& what, Error error) {
  error.detail = error.detail.empty() ? what : what + ": " + error.detail;
  return error;
}

const RamDevice* ram_device(const RamRegion& region) {
  const auto found = std::find_if(region.devices.begin(), region.devices.end(),
                                  [](const RamDevice& device) { return device.driver == RamDriver::kmem; });
  return found == region.devices.end() ? nullptr : &*found;
}

std::string names_of(const std::vector<RamDevice>& devices) {
  std::string text;
  for (const RamDevice& device : devices)
    text += (text.empty() ? "" : ", ") + device.name + " (" + format_size(device.bytes) + ")";
  return text;
}

std::string node_words(const RamRegion& region) {
  return "node " + std::to_string(region.node);
}

bool all_online(const RamDevice& device) {
  return device.driver == RamDriver::kmem && device.blocks > 0 && device.online == device.blocks &&
         device.movable;
}

}  // namespace

SystemRam::SystemRam(RamKernel& kernel, std::string record) : kernel_(kernel), record_(std::move(record)) {
  load();
}

// --- looking --------------------------------------------------------------------------------------------

Result<RamRegion> SystemRam::find(const std::string& serial) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<RamRegion> regions, kernel_.regions());
  for (const RamRegion& region : regions)
    if (region.serial == serial) return region;
  return failed(ErrorCode::not_found, online_where,
                "there is no dax region '" + serial +
                    "' to give to the kernel; `terrace device list` shows what "
                    "there is");
}

// The one device that is all of the region.
Result<RamDevice> SystemRam::device_of(const RamRegion& region) {
  if (region.devices.size() == 1 && region.devices[0].bytes == region.bytes) return region.devices[0];
  if (!region.devices.empty()) {
    return failed(
        ErrorCode::busy, online_where,
        region.serial + " is divided into " + names_of(region.devices) +
            "; memory is given to the kernel as a whole. Destroy them ('daxctl destroy-device') first");
  }
  TERRACE_RETURN_IF_ERROR(kernel_.fill(region));
  TERRACE_ASSIGN_OR_RETURN(const RamRegion filled, find(region.serial));
  if (filled.devices.size() == 1 && filled.devices[0].bytes == filled.bytes) return filled.devices[0];
  return failed(
      ErrorCode::io_error, online_where,
      "no dax device over all of " + region.serial + " could be made; there is " + names_of(filled.devices));
}

// --- online ---------------------------------------------------------------------------------------------

Result<int> SystemRam::online(const std::string& serial) {
  TERRACE_ASSIGN_OR_RETURN(const RamRegion region, find(serial));
  if (region.node < 0) {
    return failed(
        ErrorCode::unsupported, online_where,
        "the firmware's tables put " + serial + " on no node, and the kernel takes memory only with one");
  }
  if (kernel_.has_cpus(region.node)) {
    return failed(ErrorCode::unsupported, online_where,
                  serial + " would become memory of " + node_words(region) +
                      ", which has CPUs: nobody could tell it from the memory that is there. Lease it as a dax "
                      "device instead ('terrace pool create NAME --device " +
                      serial + " --adopt')");
  }
  const auto before = entries_.find(serial);
  const bool recorded = before != entries_.end() && before->second.wanted == Wanted::online;
  TERRACE_RETURN_IF_ERROR(record(serial, Wanted::online));
  Status up = bring_up(region);
  if (!up.ok()) {
    if (!recorded) (void)forget(serial);
    return std::move(up).error();
  }
  entries_[serial] = {.wanted = Wanted::online, .settled = true, .node = region.node};
  return region.node;
}

// The driver goes whoever has the device: their mappings would be gone, and their bytes the kernel's.
Status SystemRam::unheld(const RamRegion& region, const RamDevice& device) {
  if (device.driver == RamDriver::none || device.driver == RamDriver::kmem) return {};
  TERRACE_ASSIGN_OR_RETURN(const std::string holders, kernel_.holders(device.name));
  if (holders.empty()) return {};
  return failed(ErrorCode::busy, online_where,
                device.name + " of " + region.serial + " is held by " + holders +
                    "; it becomes memory of the kernel when it is let go");
}

Status SystemRam::bring_up(const RamRegion& region) {
  TERRACE_ASSIGN_OR_RETURN(const RamDevice device, device_of(region));
  const bool was_enabled = device.driver != RamDriver::none;
  TERRACE_RETURN_IF_ERROR(unheld(region, device));
  if (device.driver == RamDriver::device_dax || device.driver == RamDriver::other) {
    if (Status off = kernel_.disable(device.name); !off.ok())
      return about(device.name + " of " + region.serial + " cannot be taken from its driver",
                   std::move(off).error());
  }
  if (device.driver != RamDriver::kmem) {
    if (Status bound = kernel_.enable_ram(device.name); !bound.ok())
      return undone(about("the kernel does not take " + region.serial + " as memory", std::move(bound).error()),
                    region, was_enabled);
  }
  if (const int code = TERRACE_FAILPOINT(online_after_bind); code != 0)
    return undone(os_error(code, online_where, "cannot go on with " + region.serial), region, was_enabled);
  if (Status up = come_up(region, device); !up.ok()) return undone(std::move(up).error(), region, was_enabled);
  return {};
}

// From "kmem has it" to "all of it is online, and movable".
Status SystemRam::come_up(const RamRegion& region, RamDevice device) {
  const auto look_again = [&]() -> Status {
    TERRACE_ASSIGN_OR_RETURN(const RamRegion now, find(region.serial));
    const RamDevice* found = ram_device(now);
    if (found == nullptr)
      return failed(ErrorCode::io_error, online_where,
                    device.name + " was taken from the kmem driver meanwhile");
    device = *found;
    return {};
  };
  TERRACE_RETURN_IF_ERROR(look_again());
  if (device.online > 0 && !device.movable) {
    TERRACE_RETURN_IF_ERROR(correct_zone(region, device));
    TERRACE_RETURN_IF_ERROR(look_again());
  }
  if (device.online < device.blocks || device.blocks == 0) {
    if (Status up = kernel_.online_movable(device.name); !up.ok())
      return about("the memory of " + region.serial + " cannot be brought online", std::move(up).error());
    TERRACE_RETURN_IF_ERROR(look_again());
  }
  if (all_online(device)) return {};
  return failed(ErrorCode::io_error, online_where,
                "of the memory of " + region.serial + " only " + std::to_string(device.online) + " of " +
                    std::to_string(device.blocks) + " blocks are online" +
                    (device.movable ? "" : ", not all of them in zone Movable"));
}

Status SystemRam::correct_zone(const RamRegion& region, const RamDevice& device) {
  Status off = kernel_.offline(device.name);
  if (off.ok()) return {};
  Error error =
      about("the kernel brought the memory of " + region.serial +
                " online by itself, in a zone that its own data may use, and cannot take it back any more",
            std::move(off).error());
  error.code = ErrorCode::busy;
  error.detail +=
      "; /sys/devices/system/memory/auto_online_blocks says '" + kernel_.auto_online() +
      "': write 'online_movable' there (memhp_default_state=online_movable at boot), and try again after "
      "a reboot";
  return error;
}

// The region as it was before: a devdax device, if it was one.
Error SystemRam::undone(Error error, const RamRegion& region, bool was_enabled) {
  const auto put_back = [&]() -> Status {
    TERRACE_ASSIGN_OR_RETURN(const RamRegion now, find(region.serial));
    TERRACE_ASSIGN_OR_RETURN(const RamDevice device, device_of(now));
    if (device.driver == RamDriver::kmem) {
      if (device.online > 0) TERRACE_RETURN_IF_ERROR(kernel_.offline(device.name));
      TERRACE_RETURN_IF_ERROR(kernel_.disable(device.name));
    }
    if (was_enabled && device.driver != RamDriver::device_dax) return kernel_.enable_devdax(device.name);
    return {};
  };
  if (Status back = put_back(); !back.ok())
    error.detail += "; and it could not be put back as it was: " + back.error().detail;
  return error;
}

// --- offline --------------------------------------------------------------------------------------------

Status SystemRam::offline(int node) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<RamRegion> regions, kernel_.regions());
  std::string done;
  bool any = false;
  for (const RamRegion& region : regions) {
    if (region.node != node || ram_device(region) == nullptr) continue;
    any = true;
    const auto before = entries_.find(region.serial);
    const bool recorded = before != entries_.end();
    TERRACE_RETURN_IF_ERROR(record(region.serial, Wanted::leaving));
    if (Status down = take_down(region); !down.ok()) {
      (void)(recorded ? record(region.serial, Wanted::online) : forget(region.serial));
      if (recorded) entries_[region.serial].settled = true;
      Error error = std::move(down).error();
      if (!done.empty()) error.detail += "; " + done + " of the same node was taken offline before";
      return error;
    }
    done += (done.empty() ? "" : ", ") + region.serial;
    TERRACE_RETURN_IF_ERROR(forget(region.serial));
  }
  if (any) return {};
  return failed(
      ErrorCode::unsupported, offline_where,
      "the memory of node " + std::to_string(node) +
          " is not that of dax regions: the firmware gave it to the kernel at boot, and it cannot be given "
          "back");
}

Status SystemRam::take_down(const RamRegion& region) {
  const RamDevice device = *ram_device(region);
  if (device.online > 0) {
    if (Status off = kernel_.offline(device.name); !off.ok())
      return in_use(std::move(off).error(), region, device);
  }
  Status gone;
  if (const int code = TERRACE_FAILPOINT(offline_after_offline); code != 0) {
    gone = os_error(code, offline_where, "cannot go on");
  } else {
    gone = kernel_.disable(device.name);
  }
  if (!gone.ok()) {
    Error error =
        about("the memory of " + region.serial + " went offline, but the kernel does not give it back",
              std::move(gone).error());
    if (Status up = kernel_.online_movable(device.name); !up.ok())
      error.detail += "; nor could it be brought online again: " + up.error().detail;
    return error;
  }
  if (Status enabled = kernel_.enable_devdax(device.name); !enabled.ok())
    return about(region.serial + " was taken back from the kernel, but " + device.name +
                     " has no driver now ('daxctl enable-device " + device.name + "')",
                 std::move(enabled).error());
  return {};
}

// What could not be taken offline is online again, all of it.
Error SystemRam::in_use(Error error, const RamRegion& region, const RamDevice& device) {
  if (error.code == ErrorCode::busy) {
    std::string detail = "pages of " + node_words(region) + " are in use and cannot be moved to other memory";
    if (const std::string users = kernel_.users(region.node); !users.empty()) detail += ": " + users;
    error.detail = detail + "; end or move what uses them, and try again (" + error.detail + ")";
  } else {
    error = about("the memory of " + region.serial + " cannot be taken offline", std::move(error));
  }
  if (Status up = kernel_.online_movable(device.name); !up.ok())
    error.detail += "; and what did go offline could not be brought online again: " + up.error().detail;
  error.where = offline_where;
  return error;
}

// --- what was asked for ---------------------------------------------------------------------------------

void SystemRam::finish_recorded() {
  const bool settled =
      std::all_of(entries_.begin(), entries_.end(), [](const auto& entry) { return entry.second.settled; });
  if (settled) return;
  const auto seen = kernel_.regions();
  if (!seen.ok()) return;
  std::vector<std::string> left;
  for (auto& [serial, entry] : entries_) {
    if (entry.settled) continue;
    const auto region = std::find_if(seen->begin(), seen->end(),
                                     [&name = serial](const RamRegion& one) { return one.serial == name; });
    if (region == seen->end()) {
      entry.problem = "the dax region " + serial + " is not there";
      continue;
    }
    entry.node = region->node;
    entry.settled = true;
    entry.problem.clear();
    const RamDevice* ram = ram_device(*region);
    Status status;
    if (entry.wanted == Wanted::online) {
      if (ram == nullptr || !all_online(*ram)) status = bring_up(*region);
    } else if (ram != nullptr) {
      status = take_down(*region);
    } else if (region->devices.size() == 1 && region->devices[0].driver == RamDriver::none) {
      status = kernel_.enable_devdax(region->devices[0].name);
    }
    if (!status.ok()) {
      entry.problem = status.error().detail;
    } else if (entry.wanted == Wanted::leaving) {
      left.push_back(serial);
    }
  }
  for (const std::string& serial : left) (void)forget(serial);
}

std::vector<SystemRam::Problem> SystemRam::problems() const {
  std::vector<Problem> found;
  for (const auto& [serial, entry] : entries_)
    if (!entry.problem.empty()) found.push_back({serial, entry.node, entry.problem});
  return found;
}

Status SystemRam::record(const std::string& serial, Wanted wanted) {
  entries_[serial].wanted = wanted;
  entries_[serial].problem.clear();
  return save();
}

Status SystemRam::forget(const std::string& serial) {
  entries_.erase(serial);
  return save();
}

// Lines of another form are none of ours; they go with the next save.
void SystemRam::load() {
  if (record_.empty()) return;
  std::ifstream file(record_);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string serial, wanted, more;
    if (!(words >> serial >> wanted) || words >> more) continue;
    if (wanted == "online") entries_[serial].wanted = Wanted::online;
    if (wanted == "leaving") entries_[serial].wanted = Wanted::leaving;
  }
}

Status SystemRam::save() const {
  if (record_.empty()) return {};
  std::string text;
  for (const auto& [serial, entry] : entries_)
    text += serial + (entry.wanted == Wanted::online ? " online\n" : " leaving\n");
  const std::string part = record_ + ".part";
  const auto cannot = [&] {
    return os_error(errno, "SystemRam::save", "cannot write down which memory the kernel has, in " + record_);
  };
  {
    const UniqueFd file(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid()) return cannot();
    if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        ::fsync(file.get()) != 0)
      return cannot();
  }
  if (::rename(part.c_str(), record_.c_str()) != 0) return cannot();
  const UniqueFd folder(
      ::open(record_.substr(0, record_.rfind('/') + 1).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.valid()) ::fsync(folder.get());
  return {};
}

}  // namespace terrace::daemon
