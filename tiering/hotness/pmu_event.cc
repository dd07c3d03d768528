// SPDX-License-Identifier: Apache-2.0
#include "tiering/hotness/pmu_event.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <initializer_list>

namespace terrace::tiering {
namespace {

constexpr size_t text_bytes = 256;

// The file's first line; false: there is none, or it is too long to be one of these.
bool read_line(const char* directory, const char* name, char* text) {
  char path[PATH_MAX];
  const int length = snprintf(path, sizeof(path), "%s/%s", directory, name);
  if (length < 0 || static_cast<size_t>(length) >= sizeof(path)) return false;
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t got = fd < 0 ? -1 : ::read(fd, text, text_bytes);
  if (fd >= 0) ::close(fd);
  if (got <= 0 || static_cast<size_t>(got) >= text_bytes) return false;
  text[got] = 0;
  text[strcspn(text, "\n")] = 0;
  return true;
}

bool read_type(const char* device, uint32_t* type) {
  char text[text_bytes];
  if (!read_line(device, "type", text)) return false;
  *type = static_cast<uint32_t>(strtoul(text, nullptr, 10));
  return *type != 0;
}

// "config1:0-15" or "config:0-7,32-35": the value's bits go there, lowest first.
bool place_bits(const char* format, uint64_t value, uint64_t config[3]) {
  if (strncmp(format, "config", 6) != 0) return false;
  format += 6;
  uint32_t word = 0;
  if (*format == '1' || *format == '2') word = static_cast<uint32_t>(*format++ - '0');
  if (*format++ != ':') return false;
  for (;;) {
    char* end = nullptr;
    const unsigned long first = strtoul(format, &end, 10);
    if (end == format) return false;
    unsigned long last = first;
    if (*end == '-') {
      format = end + 1;
      last = strtoul(format, &end, 10);
      if (end == format) return false;
    }
    if (first > last || last > 63) return false;
    const unsigned long width = last - first + 1;
    const uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
    config[word] = (config[word] & ~(mask << first)) | (value & mask) << first;
    value = width == 64 ? 0 : value >> width;
    if (*end != ',') return *end == 0 && value == 0;
    format = end + 1;
  }
}

}  // namespace

bool encode_terms(const char* device, const char* terms, PmuEvent* event) {
  while (*terms != 0) {
    char name[64] = "format/";
    const size_t prefix = strlen(name), length = strcspn(terms, "=,");
    if (length == 0 || prefix + length >= sizeof(name) || memchr(terms, '/', length) != nullptr) return false;
    memcpy(name + prefix, terms, length);
    name[prefix + length] = 0;
    terms += length;
    uint64_t value = 1;  // of a term without one
    if (*terms == '=') {
      char* end = nullptr;
      value = strtoull(terms + 1, &end, 0);
      if (end == terms + 1) return false;
      terms = end;
    }
    if (*terms == ',')
      ++terms;
    else if (*terms != 0)
      return false;
    char format[text_bytes];
    if (!read_line(device, name, format) || !place_bits(format, value, event->config)) return false;
  }
  return true;
}

uint32_t find_memory_event(const char* devices, PmuEvent events[2]) {
  // The processors of one kind, or the fast ones of two.
  for (const char* name : {"cpu", "cpu_core"}) {
    char device[PATH_MAX - 64], terms[text_bytes];
    snprintf(device, sizeof(device), "%s/%s", devices, name);
    PmuEvent event;
    if (!read_type(device, &event.type) || !read_line(device, "events/mem-loads", terms)) continue;
    // Nearly every load is in the nearest caches: those that took longer than that are what tiers change.
    if (!encode_terms(device, terms, &event) || !encode_terms(device, "ldlat=30", &event)) continue;
    event.precise = true;
    PmuEvent leader;  // since Sapphire Rapids
    if (read_line(device, "events/mem-loads-aux", terms)) {
      leader.type = event.type;
      if (!encode_terms(device, terms, &leader)) continue;
      events[0] = leader;
      events[1] = event;
      return 2;
    }
    events[0] = event;
    return 1;
  }
  char device[PATH_MAX - 64];
  snprintf(device, sizeof(device), "%s/ibs_op", devices);
  PmuEvent event;
  if (!read_type(device, &event.type) || !encode_terms(device, "cnt_ctl=1", &event)) return 0;
  events[0] = event;
  return 1;
}

}  // namespace terrace::tiering
