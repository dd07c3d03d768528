// SPDX-License-Identifier: Apache-2.0
// Preloaded into terraced: a memdev that libcxl would list, and whose health is what the file of TERRACE_AILING_MEMDEV says.
// Neither the kernel nor QEMU has one that can be made to ail.
//
// Place     health_test.py. All above libcxl is as with a device: the inventory, the look once a minute, the finding.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

char a_memdev, a_command;

// Whether the file has this word.
int ails(const char* word) {
  const char* path = std::getenv("TERRACE_AILING_MEMDEV");
  std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "r");
  if (file == nullptr) return 0;
  char text[256] = "";
  const size_t bytes = std::fread(text, 1, sizeof(text) - 1, file);
  std::fclose(file);
  text[bytes] = '\0';
  return std::strstr(text, word) != nullptr ? 1 : 0;
}

}  // namespace

// As <cxl/libcxl.h> has them, with the types of which nobody here knows more than that they are pointers.
extern "C" {

void* cxl_memdev_get_first(void*) {
  return &a_memdev;
}
void* cxl_memdev_get_next(void*) {
  return nullptr;
}
const char* cxl_memdev_get_devname(void*) {
  return "mem0";
}
const char* cxl_memdev_get_host(void*) {
  return "0000:35:00.0";
}
unsigned long long cxl_memdev_get_serial(void*) {
  return 0x51;
}
unsigned long long cxl_memdev_get_ram_size(void*) {
  return 256ull << 20;
}
unsigned long long cxl_memdev_get_pmem_size(void*) {
  return 0;
}
int cxl_memdev_get_numa_node(void*) {
  return -1;
}
const char* cxl_memdev_get_firmware_verison(void*) {
  return "1";
}
int cxl_memdev_is_enabled(void*) {
  return 1;
}
int cxl_memdev_get_ram_qos_class(void*) {
  return 0;
}
int cxl_memdev_get_pmem_qos_class(void*) {
  return 0;
}

void* cxl_cmd_new_get_health_info(void*) {
  return &a_command;
}
int cxl_cmd_submit(void*) {
  return 0;
}
int cxl_cmd_get_mbox_status(void*) {
  return 0;
}
void cxl_cmd_unref(void*) {}
int cxl_cmd_health_info_get_media_data_lost(void*) {
  return ails("lost");
}
int cxl_cmd_health_info_get_media_persistence_lost(void*) {
  return 0;
}
int cxl_cmd_health_info_get_media_data_loss_imminent(void*) {
  return ails("imminent");
}
int cxl_cmd_health_info_get_media_persistence_loss_imminent(void*) {
  return 0;
}
int cxl_cmd_health_info_get_media_not_ready(void*) {
  return 0;
}
int cxl_cmd_health_info_get_hw_replacement_needed(void*) {
  return ails("replace");
}
int cxl_cmd_health_info_get_maintenance_needed(void*) {
  return 0;
}
int cxl_cmd_health_info_get_performance_degraded(void*) {
  return 0;
}
int cxl_cmd_health_info_get_ext_life_used_critical(void*) {
  return 0;
}
int cxl_cmd_health_info_get_ext_life_used_warning(void*) {
  return 0;
}
int cxl_cmd_health_info_get_ext_temperature_critical(void*) {
  return 0;
}
int cxl_cmd_health_info_get_ext_temperature_warning(void*) {
  return 0;
}

}  // extern "C"
