// SPDX-License-Identifier: Apache-2.0
// Dax regions and devices through libdaxctl, namespaces through libndctl.
#include <daxctl/libdaxctl.h>
#include <ndctl/libndctl.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>

#include "daemon/inventory/library_view.h"
#include "daemon/inventory/sysfs.h"

namespace terrace::inventory {
namespace {

struct DaxctlUnref {
  void operator()(daxctl_ctx* context) const { daxctl_unref(context); }
};
struct NdctlUnref {
  void operator()(ndctl_ctx* context) const { ndctl_unref(context); }
};

void silent_daxctl(daxctl_ctx*, int, const char*, int, const char*, const char*, va_list) {}
void silent_ndctl(ndctl_ctx*, int, const char*, int, const char*, const char*, va_list) {}

std::string text(const char* words) {
  return words == nullptr ? std::string() : std::string(words);
}

uint64_t known(unsigned long long number) {
  return number == ~0ull ? 0 : number;
}

DaxDevice read_device(daxctl_dev* device, const DaxRegion& region, bool dynamic) {
  DaxDevice dax{.name = text(daxctl_dev_get_devname(device)), .region = region.name};
  dax.start = known(daxctl_dev_get_resource(device));
  dax.bytes = daxctl_dev_get_size(device);
  dax.align_bytes = known(daxctl_dev_get_align(device));
  dax.target_node = daxctl_dev_get_target_node(device);
  dax.dynamic = dynamic;
  dax.auto_online = daxctl_dev_will_auto_online_memory(device) > 0;
  if (daxctl_memory* memory = daxctl_dev_get_memory(device); memory != nullptr) {
    dax.mode = DaxMode::system_ram;
    dax.online = daxctl_memory_is_online(memory) > 0;
    dax.unmovable = dax.online && daxctl_memory_is_movable(memory) == 0;
  } else if (daxctl_dev_is_enabled(device) != 0) {
    dax.mode = DaxMode::devdax;
  }
  return dax;
}

DaxRegion read_region(daxctl_region* found, const Inventory& inventory, bool dynamic) {
  DaxRegion region{.name = dax_region_name(text(daxctl_region_get_path(found)))};
  region.bytes = known(daxctl_region_get_size(found));
  region.free_bytes = dynamic ? daxctl_region_get_available_size(found) : 0;
  region.align_bytes = known(daxctl_region_get_align(found));
  if (region.name.starts_with("hmem.")) region.start = read_hmem_start("", region.name);
  for (const Region& cxl : inventory.regions) {
    if (cxl.name != region.name || cxl.kind != RegionKind::ram) continue;
    region.start = cxl.start;
    region.serial = cxl.serial();
  }
  return region;
}

}  // namespace

void read_dax(Inventory& inventory) {
  daxctl_ctx* raw = nullptr;
  if (const int failed = daxctl_new(&raw); failed != 0) {
    inventory.notes.push_back("libdaxctl cannot start: " + text(std::strerror(-failed)));
    return;
  }
  const std::unique_ptr<daxctl_ctx, DaxctlUnref> context(raw);
  daxctl_set_log_fn(context.get(), silent_daxctl);
  daxctl_region* found = nullptr;
  daxctl_region_foreach(context.get(), found) {
    // A static region lacks this attribute; it is one device, of a namespace, and no region of its own.
    const bool dynamic = exists(text(daxctl_region_get_path(found)) + "/dax_region/create");
    DaxRegion region = read_region(found, inventory, dynamic);
    daxctl_dev* device = nullptr;
    daxctl_dev_foreach(found, device) {
      region.target_node = std::max(region.target_node, daxctl_dev_get_target_node(device));
      // A region keeps one empty device as the seed of the next; it holds no memory.
      if (daxctl_dev_get_size(device) == 0) continue;
      inventory.dax_devices.push_back(read_device(device, region, dynamic));
      const uint64_t start = inventory.dax_devices.back().start;
      // The first device's address is as good as the region's own where it begins there.
      if (region.start == 0 && daxctl_dev_get_size(device) == region.bytes) region.start = start;
    }
    if (!dynamic) continue;
    if (region.serial.empty() && region.start != 0 && region.name.starts_with("hmem."))
      region.serial = hmem_serial(region.start);
    inventory.dax_regions.push_back(region);
  }
  const auto by_name = [](const auto& a, const auto& b) { return a.name < b.name; };
  std::sort(inventory.dax_regions.begin(), inventory.dax_regions.end(), by_name);
  std::sort(inventory.dax_devices.begin(), inventory.dax_devices.end(), by_name);
}

namespace {

std::string device_of(ndctl_namespace* space) {
  if (ndctl_dax* dax = ndctl_namespace_get_dax(space); dax != nullptr) {
    daxctl_region* region = ndctl_dax_get_daxctl_region(dax);
    daxctl_dev* device = region == nullptr ? nullptr : daxctl_dev_get_first(region);
    return device == nullptr ? std::string() : text(daxctl_dev_get_devname(device));
  }
  if (ndctl_pfn* pfn = ndctl_namespace_get_pfn(space); pfn != nullptr)
    return text(ndctl_pfn_get_block_device(pfn));
  if (ndctl_btt* btt = ndctl_namespace_get_btt(space); btt != nullptr)
    return text(ndctl_btt_get_block_device(btt));
  return ndctl_namespace_is_enabled(space) != 0 ? text(ndctl_namespace_get_block_device(space)) : std::string();
}

const char* mode_of(ndctl_namespace* space) {
  switch (ndctl_namespace_get_mode(space)) {
    case NDCTL_NS_MODE_MEMORY: return "fsdax";
    case NDCTL_NS_MODE_SECTOR: return "sector";
    case NDCTL_NS_MODE_DEVDAX: return "devdax";
    default: return "raw";
  }
}

// As RFC 9562 has it; empty for the null one.
std::string uuid_text(const unsigned char* id) {
  if (std::all_of(id, id + 16, [](unsigned char byte) { return byte == 0; })) return {};
  std::string text;
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", id[i]);
    text += (i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "") + std::string(digits);
  }
  return text;
}

Namespace read_namespace(ndctl_region* region, ndctl_namespace* space) {
  Namespace found{.name = text(ndctl_namespace_get_devname(space)),
                  .region = text(ndctl_region_get_devname(region))};
  found.mode = mode_of(space);
  found.bytes = known(ndctl_namespace_get_size(space));
  uuid_t id = {};
  ndctl_namespace_get_uuid(space, id);
  found.uuid = uuid_text(id);
  found.label = text(ndctl_namespace_get_alt_name(space));
  found.device = device_of(space);
  return found;
}

}  // namespace

void read_namespaces(Inventory& inventory) {
  ndctl_ctx* raw = nullptr;
  if (const int failed = ndctl_new(&raw); failed != 0) {
    inventory.notes.push_back("libndctl cannot start: " + text(std::strerror(-failed)));
    return;
  }
  const std::unique_ptr<ndctl_ctx, NdctlUnref> context(raw);
  ndctl_set_log_fn(context.get(), silent_ndctl);
  ndctl_bus* bus = nullptr;
  ndctl_bus_foreach(context.get(), bus) {
    ndctl_region* region = nullptr;
    ndctl_region_foreach(bus, region) {
      ndctl_namespace* space = nullptr;
      ndctl_namespace_foreach(region, space) {
        if (ndctl_namespace_get_size(space) == 0) continue;  // the seed of the next
        inventory.namespaces.push_back(read_namespace(region, space));
      }
    }
  }
  std::sort(inventory.namespaces.begin(), inventory.namespaces.end(),
            [](const Namespace& a, const Namespace& b) { return a.name < b.name; });
}

}  // namespace terrace::inventory
