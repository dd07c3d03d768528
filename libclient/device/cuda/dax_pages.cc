// SPDX-License-Identifier: Apache-2.0
#include "libclient/device/cuda/dax_pages.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "terrace/mapping.h"

namespace terrace::device {
namespace {

// "7f5c00000000-7f5c00200000 rw-s 00000000 00:05 312   /dev/dax0.1 (deleted)"
struct Line {
  uintptr_t begin = 0, end = 0;
  std::string_view path;
};

bool read_line(std::string_view text, Line& line) {
  const char* const last = text.data() + text.size();
  const auto begin = std::from_chars(text.data(), last, line.begin, 16);
  if (begin.ec != std::errc() || begin.ptr == last || *begin.ptr != '-') return false;
  const auto end = std::from_chars(begin.ptr + 1, last, line.end, 16);
  if (end.ec != std::errc()) return false;
  const size_t slash = text.find('/');
  line.path = slash == std::string_view::npos ? std::string_view() : text.substr(slash);
  return true;
}

bool names_dax(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return name.size() > 3 && name.starts_with("dax") && name[3] >= '0' && name[3] <= '9';
}

}  // namespace

bool maps_show_dax(std::string_view maps, std::span<const std::byte> memory, const MayPin& may_pin) {
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  while (!maps.empty()) {
    const size_t length = maps.find('\n');
    Line line;
    if (read_line(maps.substr(0, length), line) && line.begin < begin + memory.size() && begin < line.end &&
        !line.path.empty() && names_dax(line.path)) {
      const size_t first = std::max(line.begin, begin) - begin;
      const size_t last = std::min(line.end, begin + memory.size()) - begin;
      if (!may_pin || !may_pin(memory.subspan(first, last - first))) return true;
    }
    if (length == std::string_view::npos) return false;
    maps.remove_prefix(length + 1);
  }
  return false;
}

bool lies_on_dax(std::span<const std::byte> memory, const MayPin& may_pin) {
  std::ifstream file("/proc/self/maps");
  if (!file) return true;
  std::ostringstream text;
  text << file.rdbuf();
  return maps_show_dax(text.view(), memory, may_pin);
}

bool ends_with_its_holder(std::span<const std::byte> part) {
  const std::shared_ptr<Lease> lease = lease_of_memory(part);
  return lease != nullptr && lease->on_fence() == OnFence::kill;
}

}  // namespace terrace::device
