// SPDX-License-Identifier: Apache-2.0
// Memdevs and decoders through libcxl.
#include <cxl/libcxl.h>

#include <algorithm>
#include <cstdarg>
#include <cstring>
#include <memory>

#include "daemon/inventory/library_view.h"
#include "daemon/inventory/sysfs.h"

namespace terrace::inventory {
namespace {

struct ContextUnref {
  void operator()(cxl_ctx* context) const { cxl_unref(context); }
};
struct CommandUnref {
  void operator()(cxl_cmd* command) const { cxl_cmd_unref(command); }
};

// The library prints to stderr unless told otherwise; what matters is in our notes.
void silent(cxl_ctx*, int, const char*, int, const char*, const char*, va_list) {}

std::string text(const char* words) {
  return words == nullptr ? std::string() : std::string(words);
}

uint64_t known(unsigned long long number) {
  return number == ~0ull ? 0 : number;
}

std::string in_words(cxl_cmd* command) {
  struct State {
    int (*is)(cxl_cmd*);
    const char* words;
  };
  const State states[] = {
      {cxl_cmd_health_info_get_media_data_lost, "media lost data"},
      {cxl_cmd_health_info_get_media_persistence_lost, "media no longer persistent"},
      {cxl_cmd_health_info_get_media_data_loss_imminent, "media about to lose data"},
      {cxl_cmd_health_info_get_media_persistence_loss_imminent, "persistence about to be lost"},
      {cxl_cmd_health_info_get_media_not_ready, "media not ready"},
      {cxl_cmd_health_info_get_hw_replacement_needed, "to be replaced"},
      {cxl_cmd_health_info_get_maintenance_needed, "maintenance needed"},
      {cxl_cmd_health_info_get_performance_degraded, "slower than it should be"},
      {cxl_cmd_health_info_get_ext_life_used_critical, "end of life"},
      {cxl_cmd_health_info_get_ext_life_used_warning, "near its end of life"},
      {cxl_cmd_health_info_get_ext_temperature_critical, "too hot or cold"},
      {cxl_cmd_health_info_get_ext_temperature_warning, "warm or cold"}};
  std::string words;
  for (const State& state : states)
    if (state.is(command) > 0) words += (words.empty() ? "" : ", ") + std::string(state.words);
  return words.empty() ? "ok" : words;
}

std::string read_health(cxl_memdev* memdev) {
  const std::unique_ptr<cxl_cmd, CommandUnref> command(cxl_cmd_new_get_health_info(memdev));
  if (!command) return "not readable: out of memory";
  if (const int failed = cxl_cmd_submit(command.get()); failed < 0) {
    if (failed == -EACCES || failed == -EPERM) return "not readable: root only";
    if (failed == -ENOTTY || failed == -EOPNOTSUPP) return "not told by this device";
    return "not readable: " + text(std::strerror(-failed));
  }
  if (const int status = cxl_cmd_get_mbox_status(command.get()); status != 0) {
    constexpr int unsupported = 0x15;  // CXL 2.0, 8.2.8.4.5.1
    return status == unsupported ? "not told by this device"
                                 : "not readable: mailbox status " + std::to_string(status);
  }
  return in_words(command.get());
}

Memdev read_memdev(cxl_memdev* device, bool health) {
  Memdev memdev;
  memdev.name = text(cxl_memdev_get_devname(device));
  memdev.host = text(cxl_memdev_get_host(device));
  memdev.serial = memdev_serial(cxl_memdev_get_serial(device), memdev.name, memdev.host);
  memdev.ram_bytes = known(cxl_memdev_get_ram_size(device));
  memdev.pmem_bytes = known(cxl_memdev_get_pmem_size(device));
  memdev.numa_node = cxl_memdev_get_numa_node(device);
  memdev.firmware = text(cxl_memdev_get_firmware_verison(device));  // the library's own spelling
  memdev.enabled = cxl_memdev_is_enabled(device) != 0;
  memdev.model = read_memdev_model("", memdev.name);
  memdev.path = read_memdev_path("", memdev.name);
#ifdef TERRACE_LIBCXL_QOS
  memdev.ram_qos_class = cxl_memdev_get_ram_qos_class(device);
  memdev.pmem_qos_class = cxl_memdev_get_pmem_qos_class(device);
#else
  memdev.ram_qos_class = read_qos_class("", memdev.name, "ram");
  memdev.pmem_qos_class = read_qos_class("", memdev.name, "pmem");
#endif
  memdev.health = health ? read_health(device) : std::string();
  return memdev;
}

const char* kind_of(cxl_port* port) {
  return cxl_port_is_root(port) ? "root" : cxl_port_is_endpoint(port) ? "endpoint" : "switch";
}

Decoder read_decoder(cxl_port* port, cxl_decoder* found) {
  Decoder decoder{.name = text(cxl_decoder_get_devname(found)),
                  .kind = kind_of(port),
                  .port = text(cxl_port_get_devname(port))};
  decoder.start = known(cxl_decoder_get_resource(found));
  decoder.bytes = known(cxl_decoder_get_size(found));
  decoder.ways = cxl_decoder_get_interleave_ways(found);
  decoder.granularity = cxl_decoder_get_interleave_granularity(found);
  decoder.pmem = cxl_decoder_is_pmem_capable(found);
  decoder.ram = cxl_decoder_is_volatile_capable(found);
  if (cxl_port_is_root(port)) decoder.free_bytes = known(cxl_decoder_get_max_available_extent(found));
  if (cxl_port_is_endpoint(port)) {
    decoder.bytes = known(cxl_decoder_get_dpa_size(found));
    if (cxl_memdev* memdev = cxl_decoder_get_memdev(found); memdev != nullptr)
      decoder.targets.push_back(read_memdev_serial("", text(cxl_memdev_get_devname(memdev))));
    decoder.pmem = cxl_decoder_get_mode(found) == CXL_DECODER_MODE_PMEM;
    decoder.ram = cxl_decoder_get_mode(found) == CXL_DECODER_MODE_RAM;
  } else {
    for (int i = 0; i < cxl_decoder_get_nr_targets(found); ++i)
      if (cxl_target* target = cxl_decoder_get_target_by_position(found, i); target != nullptr)
        decoder.targets.push_back(text(cxl_target_get_devname(target)));
  }
  // The library knows the region of a persistent one only.
  decoder.region = read_word("/sys/bus/cxl/devices/" + decoder.name + "/region");
  return decoder;
}

void read_decoders(Inventory& inventory, cxl_port* port) {
  cxl_decoder* decoder = nullptr;
  cxl_decoder_foreach(port, decoder) inventory.decoders.push_back(read_decoder(port, decoder));
  cxl_port* below = nullptr;
  cxl_port_foreach(port, below) read_decoders(inventory, below);
  cxl_endpoint* endpoint = nullptr;
  cxl_endpoint_foreach(port, endpoint) {
    cxl_port* its = cxl_endpoint_get_port(endpoint);
    if (its == nullptr) continue;
    cxl_decoder_foreach(its, decoder) inventory.decoders.push_back(read_decoder(its, decoder));
  }
}

}  // namespace

void read_cxl(Inventory& inventory, bool health) {
  cxl_ctx* raw = nullptr;
  if (const int failed = cxl_new(&raw); failed != 0) {
    inventory.notes.push_back("libcxl cannot start: " + text(std::strerror(-failed)));
    return;
  }
  const std::unique_ptr<cxl_ctx, ContextUnref> context(raw);
  cxl_set_log_fn(context.get(), silent);
  cxl_memdev* memdev = nullptr;
  cxl_memdev_foreach(context.get(), memdev) inventory.memdevs.push_back(read_memdev(memdev, health));
  cxl_bus* bus = nullptr;
  cxl_bus_foreach(context.get(), bus) read_decoders(inventory, cxl_bus_get_port(bus));
  std::sort(inventory.memdevs.begin(), inventory.memdevs.end(),
            [](const Memdev& a, const Memdev& b) { return a.serial < b.serial; });
  const auto rank = [](const Decoder& one) { return one.kind == "root" ? 0 : one.kind == "switch" ? 1 : 2; };
  std::stable_sort(inventory.decoders.begin(), inventory.decoders.end(),
                   [&rank](const Decoder& a, const Decoder& b) {
                     return rank(a) != rank(b) ? rank(a) < rank(b) : a.name < b.name;
                   });
}

}  // namespace terrace::inventory
