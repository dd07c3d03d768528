// SPDX-License-Identifier: Apache-2.0
#include "daemon/inventory/serials.h"

#include <cinttypes>
#include <cstdio>

#include "core/base/limits.h"

namespace terrace::inventory {
namespace {

std::string hex(uint64_t number) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%" PRIx64, number);
  return text;
}

// FNV-1a: the names it goes into are kept in the store, so that it may never change.
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

std::string memdev_serial(uint64_t serial, const std::string& name, const std::string& host) {
  return serial != 0 && serial != UINT64_MAX ? hex(serial) : name + "@" + host;
}

std::string hmem_serial(uint64_t start) {
  return "dax:hmem@" + hex(start);
}

std::string region_serial(RegionKind kind, std::span<const std::string> memdevs, uint64_t position_bytes) {
  const std::string prefix = kind == RegionKind::pmem ? "pmem:" : "dax:";
  std::string joined;
  for (const std::string& memdev : memdevs) joined += (joined.empty() ? "" : ".") + memdev;
  const std::string place = position_bytes == 0 ? std::string() : "@" + hex(position_bytes);
  if (prefix.size() + joined.size() + place.size() <= limits::name_bytes_max) return prefix + joined + place;
  char digest[24];
  std::snprintf(digest, sizeof digest, "%016" PRIx64, hash_of(joined));
  const std::string end = "." + std::to_string(memdevs.size()) + "-way." + digest + place;
  return prefix + memdevs.front().substr(0, limits::name_bytes_max - prefix.size() - end.size()) + end;
}

}  // namespace terrace::inventory
