// SPDX-License-Identifier: Apache-2.0
// The kernel's records of this process's memory accesses: one for every minor fault, and, where the processor
// can, samples of its loads with their addresses (Intel PEBS, AMD IBS).
//
// After a sweep has taken a granule's translation away (sampler.h), the fault of its next use gives the time of
// that use; the sweep alone only says that there was one. Memory samples need no sweep. Either may be refused,
// by a machine without a PMU or by kernel.perf_event_paranoid: why() says so, and the rest works.
//
// There is an event with its ring for each thread, processor and source (the kernel requires one a processor
// for inherited events). Threads that start later write into the rings of their parents. No descriptor stays
// open: if a program closes all descriptors, nothing is lost, since the mappings keep the events.
//
// Place     perf_event_open(2) → AccessEvents → engine → Sampler::note_first_touch(), Engine::note_access().
// Threads   One at a time: the engine's.
// Memory    libc only; tables are mapped.
#pragma once

#include <cstddef>
#include <cstdint>

struct perf_event_attr;
struct perf_event_mmap_page;

namespace terrace::tiering {

enum class EventSource : uint8_t { minor_faults = 0, memory_samples = 1 };
inline constexpr uint32_t event_sources = 2;

struct AccessEvent {
  uint64_t address = 0;
  uint64_t time_ns = 0;  // CLOCK_MONOTONIC
  uint64_t count = 0;    // what the sample stands for: 1, or so many loads
  uint32_t thread = 0;
  EventSource source = EventSource::minor_faults;
};
using VisitEvent = void (*)(void* owner, const AccessEvent& event);

struct EventCounts {
  uint64_t seen = 0;
  uint64_t lost = 0;     // the kernel found no room for them
  uint64_t damaged = 0;  // records, or rings, that made no sense and were passed over
};

// The reader's side of one ring. What is in it is the kernel's, but taken as anybody's: no length in it is
// used unchecked.
class EventRing {
 public:
  // `page` is followed by nothing; `data` holds `bytes`, a power of 2.
  void attach(perf_event_mmap_page* page, const char* data, uint64_t bytes, EventSource source);
  // Visits what was complete when it was called. Returns how many events.
  uint32_t drain(VisitEvent visit, void* owner, EventCounts* counts);

 private:
  void copy_out(uint64_t at, void* to, size_t bytes) const;

  perf_event_mmap_page* page_ = nullptr;
  const char* data_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t tail_ = 0;  // ours: what the page says of it is written, never read
  EventSource source_ = EventSource::minor_faults;
};

class AccessEvents {
 public:
  AccessEvents() = default;
  ~AccessEvents() { close(); }
  AccessEvents(const AccessEvents&) = delete;
  AccessEvents& operator=(const AccessEvents&) = delete;

  // Asks for both sources, for every thread of now and what they begin. True: at least one of them works. A
  // thread that begins while this runs, begun by one not yet reached, is not seen. `devices`: of sysfs; tests. `ask`:
  // perf_event_open(2), for tests of PMUs that are not there.
  using OpenEvent = int (*)(perf_event_attr* attributes, int thread, uint32_t processor, int leader);
  bool open(const char* devices = "/sys/bus/event_source/devices", OpenEvent ask = nullptr);
  void close();  // nothing in a forked child: the rings are not there
  bool opened() const { return opened(EventSource::minor_faults) || opened(EventSource::memory_samples); }
  bool opened(EventSource source) const { return places_[static_cast<uint32_t>(source)].rings > 0; }
  // 0, or the errno with which the kernel refused the source; and that in words, nullptr: it works.
  int refused(EventSource source) const { return places_[static_cast<uint32_t>(source)].refused; }
  const char* why(EventSource source) const;
  // Threads of which no event is seen since there are too many (events_max).
  uint32_t threads_missed() const { return threads_missed_; }

  // Visits everything that came since. Returns how many events.
  uint32_t drain(VisitEvent visit, void* owner);
  const EventCounts& counts() const { return counts_; }

  static constexpr uint32_t processors_max = 512;
  static constexpr uint32_t events_max = 1024;  // one a thread, processor and source

 private:
  struct Place {
    uint32_t rings = 0;
    int refused = 0;
    bool no_room = false;  // refused when mapping
  };
  struct Tables;

  struct Request;

  static bool ask_for_less(Request& request, int failed);
  void open_source(Request& request);
  bool open_thread(Request& request, int thread);
  bool open_event(Request& request, int thread, uint32_t processor);
  int keep(int fd, size_t bytes, void** at);

  Tables* tables_ = nullptr;
  Place places_[event_sources];
  EventCounts counts_;
  uint32_t mapped_ = 0, ring_count_ = 0, threads_missed_ = 0;
  int process_ = 0;
};

}  // namespace terrace::tiering
