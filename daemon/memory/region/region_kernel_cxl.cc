// SPDX-License-Identifier: Apache-2.0
// This machine's CxlKernel, through libcxl. Each call looks afresh: the library keeps what it read. Volatile
// regions, which version 76.1 cannot create, are created through the attribute that it would use.
#include <cxl/libcxl.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <functional>

#include "core/base/unique_fd.h"
#include "core/base/units.h"
#include "daemon/inventory/serials.h"
#include "daemon/memory/proc_files.h"
#include "daemon/memory/region/region_kernel.h"
#include "daemon/memory/uuid_text.h"

namespace terrace::daemon {
namespace {

constexpr const char* devices = "/sys/bus/cxl/devices/";

// A context of the library's with the last line that it would have written to stderr.
class Cxl {
 public:
  Cxl() {
    if (cxl_new(&context_) != 0) context_ = nullptr;
    if (context_ == nullptr) return;
    cxl_set_userdata(context_, &said_);
    cxl_set_log_fn(context_, [](cxl_ctx* context, int, const char*, int, const char*, const char* format,
                                va_list arguments) {
      char line[256];
      std::vsnprintf(line, sizeof line, format, arguments);
      auto& said = *static_cast<std::string*>(cxl_get_userdata(context));
      said = line;
      while (!said.empty() && said.back() == '\n') said.pop_back();
    });
  }
  Cxl(const Cxl&) = delete;
  Cxl& operator=(const Cxl&) = delete;
  ~Cxl() {
    if (context_ != nullptr) cxl_unref(context_);
  }

  cxl_ctx* context() const { return context_; }

  Status outcome(int code, const std::string& what) const {
    if (code >= 0) return {};
    const std::string said = said_.empty() ? "" : " (" + said_ + ")";
    return os_error(-code, "CxlKernel", "cannot " + what + said);
  }

  // Every root decoder, until `visit` returns true.
  cxl_decoder* find_root(const std::function<bool(cxl_decoder*)>& visit) const {
    if (context_ == nullptr) return nullptr;
    cxl_bus* bus = nullptr;
    cxl_bus_foreach(context_, bus) {
      cxl_decoder* root = nullptr;
      cxl_decoder_foreach(cxl_bus_get_port(bus), root) if (visit(root)) return root;
    }
    return nullptr;
  }
  cxl_decoder* root(const std::string& name) const {
    return find_root([&name](cxl_decoder* one) { return name == cxl_decoder_get_devname(one); });
  }
  cxl_region* region(const std::string& name) const {
    cxl_region* found = nullptr;
    find_root([&](cxl_decoder* root_decoder) {
      cxl_region* one = nullptr;
      cxl_region_foreach(root_decoder, one) {
        if (name != cxl_region_get_devname(one)) continue;
        found = one;
        return true;
      }
      return false;
    });
    return found;
  }
  cxl_memdev* memdev(const std::string& serial) const;

 private:
  cxl_ctx* context_ = nullptr;
  std::string said_;
};

std::string serial_of(cxl_memdev* memdev) {
  return inventory::memdev_serial(cxl_memdev_get_serial(memdev), cxl_memdev_get_devname(memdev),
                                  cxl_memdev_get_host(memdev));
}

cxl_memdev* Cxl::memdev(const std::string& serial) const {
  if (context_ == nullptr) return nullptr;
  cxl_memdev* one = nullptr;
  cxl_memdev_foreach(context_, one) if (serial_of(one) == serial) return one;
  return nullptr;
}

std::string read_attribute(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char text[256];
  const ssize_t got = fd.valid() ? ::read(fd.get(), text, sizeof text) : -1;
  std::string value(text, got > 0 ? static_cast<size_t>(got) : 0);
  while (!value.empty() && value.back() == '\n') value.pop_back();
  return value;
}

Status write_attribute(const std::string& path, const std::string& value) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (fd.valid() && ::write(fd.get(), value.data(), value.size()) == static_cast<ssize_t>(value.size()))
    return {};
  return os_error(errno, "CxlKernel", "cannot write '" + value + "' to " + path);
}

cxl_port* port_of(cxl_memdev* memdev) {
  cxl_endpoint* endpoint = cxl_memdev_get_endpoint(memdev);
  return endpoint == nullptr ? nullptr : cxl_endpoint_get_port(endpoint);
}

// The kernel wants a memdev's decoders used in their order.
cxl_decoder* free_decoder(cxl_memdev* memdev) {
  cxl_port* port = port_of(memdev);
  if (port == nullptr) return nullptr;
  cxl_decoder* decoder = nullptr;
  cxl_decoder_foreach(port, decoder) if (cxl_decoder_get_size(decoder) == 0 &&
                                         cxl_decoder_get_dpa_size(decoder) == 0) return decoder;
  return nullptr;
}

CxlMemdev read_memdev(cxl_memdev* memdev) {
  CxlMemdev read;
  read.serial = serial_of(memdev);
  read.name = cxl_memdev_get_devname(memdev);
  read.pmem_bytes = read.pmem_free_bytes = cxl_memdev_get_pmem_size(memdev);
  read.ram_bytes = read.ram_free_bytes = cxl_memdev_get_ram_size(memdev);
  cxl_port* port = port_of(memdev);
  if (port == nullptr) return read;
  cxl_decoder* decoder = nullptr;
  cxl_decoder_foreach(port, decoder) {
    const unsigned long long taken = cxl_decoder_get_dpa_size(decoder);
    if (cxl_decoder_get_size(decoder) == 0 && taken == 0) {
      ++read.free_decoders;
      continue;
    }
    if (taken == ULLONG_MAX) continue;
    uint64_t& left =
        cxl_decoder_get_mode(decoder) == CXL_DECODER_MODE_RAM ? read.ram_free_bytes : read.pmem_free_bytes;
    left -= std::min<uint64_t>(left, taken);
  }
  return read;
}

CxlRegion read_region(cxl_decoder* root, cxl_region* region) {
  CxlRegion read;
  read.name = cxl_region_get_devname(region);
  read.root = cxl_decoder_get_devname(root);
  read.ram = read_attribute(devices + read.name + "/mode") == "ram";  // kernels without it have no others
  uuid_t uuid;
  cxl_region_get_uuid(region, uuid);
  read.uuid = uuid_text(uuid);
  read.start = cxl_region_get_resource(region);
  read.bytes = cxl_region_get_size(region);
  read.granularity = cxl_region_get_interleave_granularity(region);
  read.ways = cxl_region_get_interleave_ways(region);
  read.committed = cxl_region_decode_is_committed(region) > 0;
  read.enabled = cxl_region_is_enabled(region) != 0;
  if (read.ways == UINT_MAX) read.ways = 0;
  for (unsigned position = 0; position < read.ways; ++position) {
    cxl_decoder* target = cxl_region_get_target_decoder(region, static_cast<int>(position));
    cxl_memdev* memdev = target == nullptr ? nullptr : cxl_decoder_get_memdev(target);
    read.memdevs.push_back(memdev == nullptr ? std::string() : serial_of(memdev));
    if (position != 0 || memdev == nullptr) continue;
    const unsigned long long begin = cxl_decoder_get_dpa_resource(target);
    const unsigned long long partition = read.ram ? 0 : cxl_memdev_get_ram_size(memdev);
    if (begin != ULLONG_MAX) read.position_bytes = begin - std::min(begin, partition);
  }
  return read;
}

CxlRoot read_root(cxl_ctx* context, cxl_decoder* root) {
  CxlRoot read;
  read.name = cxl_decoder_get_devname(root);
  read.pmem = cxl_decoder_is_pmem_capable(root);
  read.ram = cxl_decoder_is_volatile_capable(root);
  const unsigned long long free_bytes = cxl_decoder_get_max_available_extent(root);
  read.free_bytes = free_bytes == ULLONG_MAX ? cxl_decoder_get_size(root) : free_bytes;
  read.granularity = cxl_decoder_get_interleave_granularity(root);
  const int targets = std::max(cxl_decoder_get_nr_targets(root), 0);
  read.targets.resize(static_cast<size_t>(targets));
  cxl_memdev* memdev = nullptr;
  cxl_memdev_foreach(context, memdev) {
    cxl_target* target = cxl_decoder_get_target_by_memdev(root, memdev);
    const int position = target == nullptr ? -1 : cxl_target_get_position(target);
    if (position >= 0 && position < targets)
      read.targets[static_cast<size_t>(position)].push_back(serial_of(memdev));
  }
  return read;
}

class LibcxlKernel final : public CxlKernel {
 public:
  Result<CxlView> look() override;
  Result<std::string> create(const std::string& root, bool ram) override;
  Status shape(const std::string& region, const RegionShape& shape) override;
  Status attach(const std::string& region, unsigned position, const std::string& memdev,
                uint64_t bytes) override;
  Status commit(const std::string& region) override;
  Status enable(const std::string& region) override;
  Status remove(const std::string& region) override;
};

Error gone(const std::string& what) {
  return Error{.code = ErrorCode::not_found, .where = "CxlKernel", .detail = what + " is not there any more"};
}

// Committed regions of persistent memory, from sysfs: the library of the day shows no others.
Result<std::vector<std::string>> committed_regions() {
  std::vector<std::string> regions;
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> names, read_names(devices));
  for (const std::string& name : names) {
    if (!name.starts_with("region")) continue;
    TERRACE_ASSIGN_OR_RETURN(const std::string committed, read_attribute_line(devices + name + "/commit"));
    TERRACE_ASSIGN_OR_RETURN(const std::string mode, read_attribute_line(devices + name + "/mode"));
    if (committed == "1" && mode != "ram") regions.push_back(name);
  }
  return regions;
}

// Of what was there before and after the view was read, what it does not show whole.
std::string unseen_of(const CxlView& view, const std::vector<std::string>& before,
                      const std::vector<std::string>& after) {
  for (const std::string& name : before) {
    const auto region = std::find_if(view.regions.begin(), view.regions.end(),
                                     [&name](const CxlRegion& one) { return one.name == name; });
    const bool whole = region != view.regions.end() && !region->memdevs.empty() &&
                       std::count(region->memdevs.begin(), region->memdevs.end(), "") == 0;
    if (!whole && std::find(after.begin(), after.end(), name) != after.end()) return name;
  }
  return {};
}

Result<CxlView> LibcxlKernel::look() {
  CxlView view;
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> before, committed_regions());
  const Cxl cxl;
  if (cxl.context() == nullptr)
    return Error{.code = ErrorCode::unsupported, .where = "CxlKernel", .detail = "libcxl cannot be used"};
  cxl_memdev* memdev = nullptr;
  cxl_memdev_foreach(cxl.context(), memdev) view.memdevs.push_back(read_memdev(memdev));
  cxl.find_root([&](cxl_decoder* root) {
    view.roots.push_back(read_root(cxl.context(), root));
    cxl_region* region = nullptr;
    cxl_region_foreach(root, region) view.regions.push_back(read_region(root, region));
    return false;
  });
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> after, committed_regions());
  view.unseen = unseen_of(view, before, after);
  return view;
}

Result<std::string> LibcxlKernel::create(const std::string& root, bool ram) {
  if (ram) {
    const std::string attribute = devices + root + "/create_ram_region";
    const std::string name = read_attribute(attribute);
    if (name.empty()) {
      return Error{.code = ErrorCode::unsupported,
                   .where = "CxlKernel",
                   .detail = "this kernel makes no regions of volatile memory (6.3 and later do)"};
    }
    TERRACE_RETURN_IF_ERROR(write_attribute(attribute, name));
    return name;
  }
  const Cxl cxl;
  cxl_decoder* decoder = cxl.root(root);
  if (decoder == nullptr) return gone("window " + root);
  errno = 0;
  cxl_region* region = cxl_decoder_create_pmem_region(decoder);
  if (region == nullptr) return cxl.outcome(-(errno != 0 ? errno : EIO), "create a region in " + root).error();
  return std::string(cxl_region_get_devname(region));
}

Status LibcxlKernel::shape(const std::string& name, const RegionShape& shape) {
  const Cxl cxl;
  cxl_region* region = cxl.region(name);
  if (region == nullptr) return gone(name);
  const std::string what = " of " + name;
  TERRACE_RETURN_IF_ERROR(cxl.outcome(cxl_region_set_interleave_granularity(region, shape.granularity),
                                      "set granularity " + std::to_string(shape.granularity) + what));
  TERRACE_RETURN_IF_ERROR(cxl.outcome(cxl_region_set_interleave_ways(region, shape.ways),
                                      "set interleaving over " + std::to_string(shape.ways) + what));
  if (!shape.uuid.empty()) {
    TERRACE_ASSIGN_OR_RETURN(UuidBytes uuid, parse_uuid(shape.uuid));
    TERRACE_RETURN_IF_ERROR(cxl.outcome(cxl_region_set_uuid(region, uuid.data()), "set the uuid" + what));
  }
  return cxl.outcome(cxl_region_set_size(region, shape.bytes), "set size " + format_size(shape.bytes) + what);
}

Status LibcxlKernel::attach(const std::string& name, unsigned position, const std::string& serial,
                            uint64_t bytes) {
  const Cxl cxl;
  cxl_region* region = cxl.region(name);
  if (region == nullptr) return gone(name);
  cxl_memdev* memdev = cxl.memdev(serial);
  if (memdev == nullptr) return gone("memdev " + serial);
  cxl_decoder* decoder = free_decoder(memdev);
  if (decoder == nullptr) {
    return Error{.code = ErrorCode::busy,
                 .where = "CxlKernel",
                 .detail = "memdev " + serial + " has no free decoder: it is in a region already"};
  }
  const bool ram = read_attribute(devices + name + "/mode") == "ram";
  const cxl_decoder_mode mode = ram ? CXL_DECODER_MODE_RAM : CXL_DECODER_MODE_PMEM;
  if (cxl_decoder_get_mode(decoder) != mode)
    TERRACE_RETURN_IF_ERROR(
        cxl.outcome(cxl_decoder_set_mode(decoder, mode), "set the mode of a decoder of " + serial));
  TERRACE_RETURN_IF_ERROR(cxl.outcome(cxl_decoder_set_dpa_size(decoder, bytes),
                                      "take " + format_size(bytes) + " of memdev " + serial));
  const Status attached = cxl.outcome(cxl_region_set_target(region, static_cast<int>(position), decoder),
                                      "put memdev " + serial + " at position " + std::to_string(position));
  if (!attached.ok()) cxl_decoder_set_dpa_size(decoder, 0);
  return attached;
}

Status LibcxlKernel::commit(const std::string& name) {
  const Cxl cxl;
  cxl_region* region = cxl.region(name);
  if (region == nullptr) return gone(name);
  return cxl.outcome(cxl_region_decode_commit(region), "commit the decoders of " + name);
}

Status LibcxlKernel::enable(const std::string& name) {
  const Cxl cxl;
  cxl_region* region = cxl.region(name);
  if (region == nullptr) return gone(name);
  if (cxl_region_is_enabled(region) != 0) return {};
  return cxl.outcome(cxl_region_enable(region), "enable " + name);
}

Status LibcxlKernel::remove(const std::string& name) {
  Status status;
  const auto note = [&status](Status one) {
    if (status.ok()) status = std::move(one);
  };
  {
    const Cxl cxl;
    cxl_region* region = cxl.region(name);
    if (region == nullptr) return {};
    if (cxl_region_is_enabled(region) != 0) note(cxl.outcome(cxl_region_disable(region), "disable " + name));
    if (cxl_region_decode_is_committed(region) > 0)
      note(cxl.outcome(cxl_region_decode_reset(region), "reset the decoders of " + name));
    const unsigned ways = cxl_region_get_interleave_ways(region);
    for (unsigned position = 0; ways != UINT_MAX && position < ways; ++position) {
      cxl_decoder* target = cxl_region_get_target_decoder(region, static_cast<int>(position));
      if (target == nullptr) continue;
      note(cxl.outcome(cxl_region_clear_target(region, static_cast<int>(position)),
                       "take a memdev out of " + name));
      note(cxl.outcome(cxl_decoder_set_dpa_size(target, 0), "give the capacity of a memdev back"));
    }
    note(cxl.outcome(cxl_region_delete(region), "delete " + name));
  }
  const Cxl cxl;
  if (cxl.region(name) == nullptr) return {};
  if (!status.ok()) return status;
  return Error{.code = ErrorCode::io_error,
               .where = "CxlKernel",
               .detail = name + " is there still, although the kernel reported no error"};
}

}  // namespace

std::unique_ptr<CxlKernel> make_cxl_kernel() {
  return std::make_unique<LibcxlKernel>();
}

}  // namespace terrace::daemon
