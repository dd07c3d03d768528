// SPDX-License-Identifier: Apache-2.0
// Names of a PMU's events into numbers for perf_event_open(2), as /sys/bus/event_source/devices describes them.
//
// Place     sysfs → here → access_events.cc.
// Threads   Any; nothing is kept.
// Memory    libc only.
#pragma once

#include <cstdint>

namespace terrace::tiering {

struct PmuEvent {
  uint32_t type = 0;
  uint64_t config[3] = {};
  bool precise = false;  // asks for precise_ip
};

// "event=0xcd,umask=0x1,ldlat=3" by the format files of `device` (a directory). A later term replaces an
// earlier one of its name. False: a term that the format does not describe, or a value that does not fit.
bool encode_terms(const char* device, const char* terms, PmuEvent* event);

// What samples memory accesses with their addresses on this machine: PEBS loads, else IBS. Writes the event
// that must lead its group, if one must, and returns how many events that makes: 0, 1 or 2 (the last samples).
uint32_t find_memory_event(const char* devices, PmuEvent events[2]);

}  // namespace terrace::tiering
