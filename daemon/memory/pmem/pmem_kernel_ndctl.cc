// SPDX-License-Identifier: Apache-2.0
// This machine's PmemKernel, through libndctl. Each call looks afresh: the library keeps what it read. Its exit
// codes are not believed where the outcome can be looked at.
#include <daxctl/libdaxctl.h>
#include <fcntl.h>
#include <linux/ndctl.h>
#include <ndctl/libndctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>

#include "core/base/units.h"
#include "daemon/memory/pmem/pmem_kernel.h"
#include "daemon/memory/pmem/pmem_users.h"
#include "daemon/memory/proc_files.h"
#include "daemon/memory/uuid_text.h"

namespace terrace::daemon {
namespace {

// A context of the library's with the last line that it would have written to stderr.
class Nd {
 public:
  Nd() {
    if (ndctl_new(&context_) != 0) context_ = nullptr;
    if (context_ == nullptr) return;
    ndctl_set_userdata(context_, &said_);
    ndctl_set_log_fn(context_, [](ndctl_ctx* context, int, const char*, int, const char*, const char* format,
                                  va_list arguments) {
      char line[256];
      std::vsnprintf(line, sizeof line, format, arguments);
      auto& said = *static_cast<std::string*>(ndctl_get_userdata(context));
      said = line;
      while (!said.empty() && said.back() == '\n') said.pop_back();
    });
  }
  Nd(const Nd&) = delete;
  Nd& operator=(const Nd&) = delete;
  ~Nd() {
    if (context_ != nullptr) ndctl_unref(context_);
  }

  bool ok() const { return context_ != nullptr; }

  // What the library said, or else the errno that it returned.
  Status outcome(int code, const std::string& what) const {
    if (code >= 0) return {};
    const std::string said = said_.empty() ? "" : " (" + said_ + ")";
    return os_error(-code, "PmemKernel", "cannot " + what + said);
  }

  // Every enabled region of persistent memory, until `visit` returns true.
  ndctl_region* find_region(const std::function<bool(ndctl_region*)>& visit) const {
    if (context_ == nullptr) return nullptr;
    ndctl_bus* bus = nullptr;
    ndctl_bus_foreach(context_, bus) {
      ndctl_region* region = nullptr;
      ndctl_region_foreach(bus, region) {
        if (ndctl_region_get_type(region) != ND_DEVICE_REGION_PMEM || !ndctl_region_is_enabled(region))
          continue;
        if (visit(region)) return region;
      }
    }
    return nullptr;
  }
  ndctl_region* region_at(uint64_t start) const {
    return find_region([start](ndctl_region* one) { return ndctl_region_get_resource(one) == start; });
  }
  ndctl_namespace* find(const std::string& uuid) const;

 private:
  ndctl_ctx* context_ = nullptr;
  std::string said_;
};

std::string uuid_of(ndctl_namespace* one) {
  uuid_t uuid;
  ndctl_namespace_get_uuid(one, uuid);
  return uuid_text(uuid);
}

ndctl_namespace* Nd::find(const std::string& uuid) const {
  ndctl_namespace* found = nullptr;
  find_region([&](ndctl_region* region) {
    ndctl_namespace* one = nullptr;
    ndctl_namespace_foreach(region, one) {
      if (ndctl_namespace_get_size(one) == 0 || uuid_of(one) != uuid) continue;
      found = one;
      return true;
    }
    return false;
  });
  return found;
}

// Names, from sysfs.
Result<std::vector<std::string>> enabled_pmem_regions() {
  const std::string devices = "/sys/bus/nd/devices";
  std::vector<std::string> regions;
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> names, read_names(devices));
  for (const std::string& name : names) {
    if (!name.starts_with("region")) continue;
    const std::string folder = devices + "/" + name;
    TERRACE_ASSIGN_OR_RETURN(const std::string type, read_attribute_line(folder + "/devtype"));
    if (type == "nd_pmem" && ::access((folder + "/driver").c_str(), F_OK) == 0) regions.push_back(name);
  }
  return regions;
}

std::string dev_path(const char* name) {
  return name == nullptr || *name == '\0' ? std::string() : "/dev/" + std::string(name);
}

// Block device names come as "/dev/pmem1" from some calls and as "pmem1" from others.
std::string block_path(const char* name) {
  if (name == nullptr || *name == '\0') return {};
  return *name == '/' ? std::string(name) : "/dev/" + std::string(name);
}

const char* mode_name(ndctl_namespace_mode mode) {
  switch (mode) {
    case NDCTL_NS_MODE_FSDAX: return "fsdax";
    case NDCTL_NS_MODE_SECTOR: return "sector";
    case NDCTL_NS_MODE_DEVDAX: return "devdax";
    default: return "raw";
  }
}

PmemNamespace read_namespace(ndctl_namespace* one) {
  PmemNamespace read;
  read.name = ndctl_namespace_get_devname(one);
  read.uuid = uuid_of(one);
  if (const char* label = ndctl_namespace_get_alt_name(one)) read.label = label;
  read.start = ndctl_namespace_get_resource(one);
  read.bytes = ndctl_namespace_get_size(one);
  read.mode = mode_name(ndctl_namespace_get_mode(one));
  read.enabled = ndctl_namespace_is_active(one);
  if (ndctl_dax* dax = ndctl_namespace_get_dax(one)) {
    daxctl_region* region = ndctl_dax_is_enabled(dax) != 0 ? ndctl_dax_get_daxctl_region(dax) : nullptr;
    daxctl_dev* device = region == nullptr ? nullptr : daxctl_dev_get_first(region);
    if (device != nullptr) {
      read.device = dev_path(daxctl_dev_get_devname(device));
      read.device_bytes = daxctl_dev_get_size(device);
      read.device_start = daxctl_dev_get_resource(device);
      read.device_align_bytes = daxctl_dev_get_align(device);
      read.device_number = makedev(static_cast<unsigned>(daxctl_dev_get_major(device)),
                                   static_cast<unsigned>(daxctl_dev_get_minor(device)));
    }
  } else if (ndctl_pfn* pfn = ndctl_namespace_get_pfn(one)) {
    read.block = block_path(ndctl_pfn_get_block_device(pfn));
  } else if (ndctl_btt* btt = ndctl_namespace_get_btt(one)) {
    read.block = block_path(ndctl_btt_get_block_device(btt));
  } else if (read.enabled) {
    read.block = block_path(ndctl_namespace_get_block_device(one));
  }
  return read;
}

PmemRegion read_region(ndctl_region* region) {
  PmemRegion read;
  read.name = ndctl_region_get_devname(region);
  read.start = ndctl_region_get_resource(region);
  read.bytes = ndctl_region_get_size(region);
  read.free_bytes = ndctl_region_get_available_size(region);
  const unsigned long long largest = ndctl_region_get_max_available_extent(region);
  read.largest_free_bytes = largest == ULLONG_MAX ? read.free_bytes : largest;
  read.unit_bytes = ndctl_region_get_align(region);
  if (read.unit_bytes == 0 || read.unit_bytes == ULONG_MAX) read.unit_bytes = pmem_namespace_bytes_min;
  read.ways = std::max(ndctl_region_get_mappings(region), 1u);
  read.node = ndctl_region_get_target_node(region);
  ndctl_namespace* one = nullptr;
  ndctl_namespace_foreach(region, one) if (ndctl_namespace_get_size(one) != 0)
      read.namespaces.push_back(read_namespace(one));
  return read;
}

class NdctlKernel final : public PmemKernel {
 public:
  Result<std::string> fingerprint() override;
  Result<std::vector<PmemRegion>> regions() override;
  Status set_unit(uint64_t region_start, uint64_t bytes) override;
  Result<std::string> allocate(uint64_t region_start, uint64_t bytes) override;
  Status set_label(const std::string& uuid, const std::string& label) override;
  Status make_device(const std::string& uuid) override;
  Status enable(const std::string& uuid) override;
  Status disable(const std::string& uuid) override;
  Status shrink(const std::string& uuid, uint64_t bytes) override;
  Status remove(const std::string& uuid) override;
  Status disable_region(uint64_t region_start) override;
  Result<PmemNamespace> enable_volatile(uint64_t region_start) override;
  Status disable_volatile(uint64_t region_start) override;
  Result<UniqueFd> open(const PmemNamespace& one, int flags) override;
  Result<std::string> users(const PmemNamespace& one) override { return pmem_users(one); }
  Result<std::string> volatile_users(uint64_t region_start, uint64_t bytes) override {
    return dax_users(region_start, bytes);
  }
};

Error no_context() {
  return Error{.code = ErrorCode::unsupported, .where = "PmemKernel", .detail = "libndctl cannot be used"};
}

Error no_namespace(const std::string& uuid) {
  return Error{.code = ErrorCode::not_found,
               .where = "PmemKernel",
               .detail = "there is no namespace " + uuid + " any more"};
}

Error no_region(uint64_t start) {
  char address[32];
  std::snprintf(address, sizeof address, "0x%llx", static_cast<unsigned long long>(start));
  return Error{.code = ErrorCode::not_found,
               .where = "PmemKernel",
               .detail = "there is no region of persistent memory at " + std::string(address)};
}

Result<std::string> NdctlKernel::fingerprint() {
  std::vector<std::string> names;
  for (const char* bus : {"/sys/bus/cxl/devices", "/sys/bus/nd/devices", "/sys/bus/dax/devices"}) {
    TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> some, read_names(bus));
    names.insert(names.end(), some.begin(), some.end());
  }
  std::sort(names.begin(), names.end());
  std::string all;
  for (const std::string& name : names) all += name + " ";
  return all;
}

// The library shows less of a machine when it lacks descriptors or memory: that must not pass for one that has
// less.
Result<std::vector<PmemRegion>> NdctlKernel::regions() {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> before, enabled_pmem_regions());
  const Nd nd;
  if (!nd.ok()) return no_context();
  std::vector<PmemRegion> found;
  nd.find_region([&found](ndctl_region* region) {
    found.push_back(read_region(region));
    return false;
  });
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> after, enabled_pmem_regions());
  for (const std::string& name : before) {
    const bool stayed = std::find(after.begin(), after.end(), name) != after.end();
    const bool seen = std::any_of(found.begin(), found.end(),
                                  [&name](const PmemRegion& region) { return region.name == name; });
    if (stayed && !seen)
      return os_error(EAGAIN, "PmemKernel", "libndctl does not show " + name + ", which is there");
  }
  return found;
}

Status NdctlKernel::set_unit(uint64_t region_start, uint64_t bytes) {
  const Nd nd;
  ndctl_region* region = nd.region_at(region_start);
  if (region == nullptr) return no_region(region_start);
  if (ndctl_region_get_align(region) == bytes) return {};
  return nd.outcome(ndctl_region_set_align(region, bytes), "set the unit of a region to " + format_size(bytes));
}

Result<std::string> NdctlKernel::allocate(uint64_t region_start, uint64_t bytes) {
  const Nd nd;
  ndctl_region* region = nd.region_at(region_start);
  if (region == nullptr) return no_region(region_start);
  ndctl_namespace* seed = ndctl_region_get_namespace_seed(region);
  if (seed == nullptr || ndctl_namespace_get_size(seed) != 0) {
    return Error{.code = ErrorCode::busy,
                 .where = "PmemKernel",
                 .detail = "the kernel has no free namespace in " +
                           std::string(ndctl_region_get_devname(region)) + " now; try again"};
  }
  TERRACE_ASSIGN_OR_RETURN(UuidBytes uuid, random_uuid());
  TERRACE_RETURN_IF_ERROR(nd.outcome(ndctl_namespace_set_uuid(seed, uuid.data()), "name a new namespace"));
  TERRACE_RETURN_IF_ERROR(
      nd.outcome(ndctl_namespace_set_size(seed, bytes), "give a new namespace " + format_size(bytes)));
  return uuid_text(uuid.data());
}

Status NdctlKernel::set_label(const std::string& uuid, const std::string& label) {
  const Nd nd;
  ndctl_namespace* one = nd.find(uuid);
  if (one == nullptr) return no_namespace(uuid);
  return nd.outcome(ndctl_namespace_set_alt_name(one, label.c_str()), "write the label '" + label + "'");
}

// devtmpfs makes the node a moment after the device. Here, on a worker, is the time to wait for it.
void wait_for_path(const std::string& path) {
  constexpr int waits_max = 20;
  for (int wait = 0; !path.empty() && wait < waits_max && ::access(path.c_str(), F_OK) != 0; ++wait)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

void wait_for_node(const std::string& uuid) {
  const Nd nd;  // what was read before the device was made does not show it
  ndctl_namespace* one = nd.find(uuid);
  if (one != nullptr) wait_for_path(read_namespace(one).device);
}

Status NdctlKernel::make_device(const std::string& uuid) {
  const Nd nd;
  ndctl_namespace* one = nd.find(uuid);
  if (one == nullptr) return no_namespace(uuid);
  ndctl_dax* seed = ndctl_region_get_dax_seed(ndctl_namespace_get_region(one));
  if (seed == nullptr) {
    return Error{.code = ErrorCode::unsupported,
                 .where = "PmemKernel",
                 .detail = "this kernel has no devdax namespaces (CONFIG_NVDIMM_DAX); load dax_pmem"};
  }
  TERRACE_ASSIGN_OR_RETURN(UuidBytes own, random_uuid());
  TERRACE_RETURN_IF_ERROR(nd.outcome(ndctl_dax_set_uuid(seed, own.data()), "name a dax device"));
  TERRACE_RETURN_IF_ERROR(
      nd.outcome(ndctl_dax_set_location(seed, NDCTL_PFN_LOC_RAM), "keep a dax device's metadata in DRAM"));
  TERRACE_RETURN_IF_ERROR(
      nd.outcome(ndctl_dax_set_align(seed, pmem_align_bytes), "align a dax device to 2 MiB"));
  TERRACE_RETURN_IF_ERROR(nd.outcome(ndctl_dax_set_namespace(seed, one), "put a dax device on a namespace"));
  TERRACE_RETURN_IF_ERROR(nd.outcome(ndctl_dax_enable(seed), "enable the dax device of a namespace"));
  wait_for_node(uuid);
  return {};
}

Status NdctlKernel::enable(const std::string& uuid) {
  const Nd nd;
  ndctl_namespace* one = nd.find(uuid);
  if (one == nullptr) return no_namespace(uuid);
  if (ndctl_namespace_is_active(one)) return {};
  // 1 where the namespace became another device's (a dax device's), which is what is wanted.
  TERRACE_RETURN_IF_ERROR(nd.outcome(ndctl_namespace_enable(one), "enable namespace " + uuid));
  wait_for_node(uuid);
  return {};
}

Status NdctlKernel::disable(const std::string& uuid) {
  Status status;
  {
    const Nd nd;
    ndctl_namespace* one = nd.find(uuid);
    if (one == nullptr) return no_namespace(uuid);
    if (ndctl_dax* dax = ndctl_namespace_get_dax(one)) {
      status = nd.outcome(ndctl_dax_delete(dax), "take the dax device of namespace " + uuid + " away");
    } else if (ndctl_pfn* pfn = ndctl_namespace_get_pfn(one)) {
      status = nd.outcome(ndctl_pfn_delete(pfn), "take the block device of namespace " + uuid + " away");
    } else if (ndctl_btt* btt = ndctl_namespace_get_btt(one)) {
      status = nd.outcome(ndctl_btt_delete(btt), "take the block device of namespace " + uuid + " away");
    }
    const Status disabled = nd.outcome(ndctl_namespace_disable_invalidate(one), "disable namespace " + uuid);
    if (status.ok()) status = disabled;
  }
  const Nd nd;
  ndctl_namespace* one = nd.find(uuid);
  if (one == nullptr) return no_namespace(uuid);
  if (!ndctl_namespace_is_active(one)) return {};
  if (!status.ok()) return status;
  return Error{.code = ErrorCode::io_error,
               .where = "PmemKernel",
               .detail = "namespace " + uuid + " is enabled still, although the kernel reported no error"};
}

Status NdctlKernel::shrink(const std::string& uuid, uint64_t bytes) {
  const Nd nd;
  ndctl_namespace* one = nd.find(uuid);
  if (one == nullptr) return no_namespace(uuid);
  return nd.outcome(ndctl_namespace_set_size(one, bytes),
                    "cut namespace " + uuid + " to " + format_size(bytes));
}

Status NdctlKernel::remove(const std::string& uuid) {
  Status status;
  {
    const Nd nd;
    ndctl_namespace* one = nd.find(uuid);
    if (one == nullptr) return {};
    status = nd.outcome(ndctl_namespace_delete(one), "remove namespace " + uuid);
  }
  const Nd nd;
  if (nd.find(uuid) == nullptr) return {};
  if (!status.ok()) return status;
  return Error{.code = ErrorCode::io_error,
               .where = "PmemKernel",
               .detail = "namespace " + uuid + " is there still, although the kernel reported no error"};
}

Status NdctlKernel::disable_region(uint64_t region_start) {
  const Nd nd;
  ndctl_region* region = nd.region_at(region_start);
  if (region == nullptr) return {};
  return nd.outcome(ndctl_region_disable_preserve(region), "disable a region of persistent memory");
}

// --- volatile regions -------------------------------------------------------------------------------------

class Dax {
 public:
  Dax() {
    if (daxctl_new(&context_) != 0) context_ = nullptr;
    if (context_ != nullptr) daxctl_set_log_priority(context_, 0);
  }
  Dax(const Dax&) = delete;
  Dax& operator=(const Dax&) = delete;
  ~Dax() {
    if (context_ != nullptr) daxctl_unref(context_);
  }
  // The device that begins where the region does: all of it, as long as nobody divided it.
  daxctl_dev* device_at(uint64_t start) const {
    if (context_ == nullptr) return nullptr;
    daxctl_region* region = nullptr;
    daxctl_region_foreach(context_, region) {
      daxctl_dev* device = nullptr;
      daxctl_dev_foreach(region, device) if (daxctl_dev_get_resource(device) == start) return device;
    }
    return nullptr;
  }

 private:
  daxctl_ctx* context_ = nullptr;
};

Result<PmemNamespace> NdctlKernel::enable_volatile(uint64_t region_start) {
  const Dax dax;
  daxctl_dev* device = dax.device_at(region_start);
  if (device == nullptr) {
    return Error{.code = ErrorCode::not_found,
                 .where = "PmemKernel",
                 .detail = "the region did not become a dax device; is dax_cxl loaded?"};
  }
  if (daxctl_dev_is_enabled(device) == 0) {
    if (const int code = daxctl_dev_enable_devdax(device); code < 0)
      return os_error(-code, "PmemKernel", "cannot enable " + dev_path(daxctl_dev_get_devname(device)));
  }
  PmemNamespace one;
  one.name = daxctl_dev_get_devname(device);
  one.device = dev_path(daxctl_dev_get_devname(device));
  wait_for_path(one.device);
  one.device_bytes = daxctl_dev_get_size(device);
  one.device_number = makedev(static_cast<unsigned>(daxctl_dev_get_major(device)),
                              static_cast<unsigned>(daxctl_dev_get_minor(device)));
  return one;
}

Status NdctlKernel::disable_volatile(uint64_t region_start) {
  const Dax dax;
  daxctl_dev* device = dax.device_at(region_start);
  if (device == nullptr) return {};
  if (const int code = daxctl_dev_disable(device); code < 0)
    return os_error(-code, "PmemKernel", "cannot disable " + dev_path(daxctl_dev_get_devname(device)));
  return {};
}

// Does not wait for anything: the event loop calls it.
Result<UniqueFd> NdctlKernel::open(const PmemNamespace& one, int flags) {
  constexpr const char* where = "PmemKernel::open";
  if (one.device.empty()) {
    return Error{
        .code = ErrorCode::not_found, .where = where, .detail = "namespace " + one.name + " has no device now"};
  }
  UniqueFd fd(::open(one.device.c_str(), flags | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid() && errno == ENOENT) {
    return Error{.code = ErrorCode::unavailable,
                 .os_errno = EAGAIN,
                 .where = where,
                 .detail = one.device + " of namespace " + one.name +
                           " is not in /dev yet; try again. If it stays so, /dev is no devtmpfs"};
  }
  if (!fd.valid()) return os_error(errno, where, "cannot open " + one.device);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return os_error(errno, where, "cannot look at " + one.device);
  if (!S_ISCHR(status.st_mode) || status.st_rdev != one.device_number) {
    return Error{.code = ErrorCode::corrupt,
                 .where = where,
                 .detail = one.device + " is not the device of namespace " + one.name + ", but " +
                           std::to_string(major(status.st_rdev)) + ":" + std::to_string(minor(status.st_rdev)) +
                           "; something else made a node of that name"};
  }
  return fd;
}

}  // namespace

std::unique_ptr<PmemKernel> make_pmem_kernel() {
  return std::make_unique<NdctlKernel>();
}

}  // namespace terrace::daemon
