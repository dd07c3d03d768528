// SPDX-License-Identifier: Apache-2.0
#include "tiering/hotness/access_events.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "tiering/hotness/pmu_event.h"

namespace terrace::tiering {
namespace {

// 4096 faults. Both sources together stay below what kernel.perf_event_mlock_kb (516) allows a processor. That
// is the first thread's, and of all that come from it; others get less, since there may be many.
constexpr uint64_t ring_bytes = 128 * 1024, ring_bytes_other = 16 * 1024;
constexpr uint64_t samples_per_s = 10'000;                             // of all processors together, at most
constexpr uint64_t samples_per_s_min = 20, samples_per_s_max = 4'000;  // of one

// As perf_event_open(2) lays a sample out for what is asked for here.
struct Sample {
  perf_event_header header;
  uint32_t process, thread;
  uint64_t time_ns, address;
  uint64_t period;  // memory samples only
};
struct LostRecord {
  perf_event_header header;
  uint64_t id, lost;
};
constexpr size_t fault_bytes = offsetof(Sample, period);
static_assert(sizeof(perf_event_header) == 8 && sizeof(Sample) == 40 && sizeof(LostRecord) == 24);

perf_event_attr common_attributes() {
  perf_event_attr attributes{};
  attributes.size = sizeof(attributes);
  attributes.inherit = 1;
  attributes.inherit_thread = 1;  // a forked child's addresses are not ours
  attributes.exclude_hv = 1;
  attributes.use_clockid = 1;
  attributes.clockid = CLOCK_MONOTONIC;
  attributes.sample_type = PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_ADDR;
  return attributes;
}

int open_perf_event(perf_event_attr* attributes, int thread, uint32_t processor, int leader) {
  return static_cast<int>(::syscall(SYS_perf_event_open, attributes, thread, static_cast<int>(processor),
                                    leader, PERF_FLAG_FD_CLOEXEC));
}

uint32_t processors() {
  const long count = ::sysconf(_SC_NPROCESSORS_CONF);
  return static_cast<uint32_t>(std::clamp<long>(count, 1, AccessEvents::processors_max));
}

size_t page_bytes() {
  return static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

struct DirectoryEntry {  // of getdents64(2)
  uint64_t inode;
  int64_t next;
  uint16_t bytes;
  uint8_t type;
  char name[1];  // and more
};

}  // namespace

struct AccessEvents::Tables {
  EventRing rings[events_max];
  void* mapped[events_max];
  size_t mapped_bytes[events_max];
};

struct AccessEvents::Request {
  EventSource source;
  perf_event_attr attributes;
  perf_event_attr leader;  // opened first where `led`
  bool led = false;
  OpenEvent open = nullptr;
  uint64_t ring_bytes = tiering::ring_bytes;
};

void EventRing::attach(perf_event_mmap_page* page, const char* data, uint64_t bytes, EventSource source) {
  page_ = page;
  data_ = data;
  bytes_ = bytes;
  tail_ = 0;
  source_ = source;
}

void EventRing::copy_out(uint64_t at, void* to, size_t bytes) const {
  const uint64_t from = at & (bytes_ - 1);
  const size_t whole = std::min<size_t>(bytes, bytes_ - from);
  memcpy(to, data_ + from, whole);
  memcpy(static_cast<char*>(to) + whole, data_, bytes - whole);
}

uint32_t EventRing::drain(VisitEvent visit, void* owner, EventCounts* counts) {
  // acquire: pairs with the kernel's store of data_head: the records before it are whole.
  const uint64_t head = __atomic_load_n(&page_->data_head, __ATOMIC_ACQUIRE);
  uint32_t seen = 0;
  if (head - tail_ > bytes_) {  // behind us, or further on than the ring is long
    ++counts->damaged;
    tail_ = head;
  }
  while (tail_ != head) {
    perf_event_header header{};
    const uint64_t left = head - tail_;
    if (left >= sizeof(header)) copy_out(tail_, &header, sizeof(header));
    if (header.size < sizeof(header) || header.size > left) {
      ++counts->damaged;  // where the next one begins is not known
      tail_ = head;
      break;
    }
    const bool counted = source_ == EventSource::memory_samples;
    if (header.type == PERF_RECORD_SAMPLE) {
      const size_t wanted = counted ? sizeof(Sample) : fault_bytes;
      Sample sample{};
      if (header.size == wanted) {
        copy_out(tail_, &sample, wanted);
        visit(owner, {.address = sample.address,
                      .time_ns = sample.time_ns,
                      .count = counted ? sample.period : 1,
                      .thread = sample.thread,
                      .source = source_});
        ++seen;
      } else {
        ++counts->damaged;
      }
    } else if (header.type == PERF_RECORD_LOST && header.size >= sizeof(LostRecord)) {
      LostRecord lost{};
      copy_out(tail_, &lost, sizeof(lost));
      counts->lost += lost.lost;
    }
    tail_ += header.size;
  }
  counts->seen += seen;
  // release: pairs with the kernel's load of data_tail: it writes over records only after they were read.
  __atomic_store_n(&page_->data_tail, tail_, __ATOMIC_RELEASE);
  return seen;
}

bool AccessEvents::open(const char* devices, OpenEvent ask) {
  close();
  if (ask == nullptr) ask = open_perf_event;
  void* tables = ::mmap(nullptr, sizeof(Tables), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (tables == MAP_FAILED) {
    for (Place& place : places_) place = {.rings = 0, .refused = ENOMEM, .no_room = true};
    return false;
  }
  tables_ = static_cast<Tables*>(tables);
  process_ = ::getpid();

  Request faults{
      .source = EventSource::minor_faults, .attributes = common_attributes(), .leader = {}, .open = ask};
  faults.attributes.type = PERF_TYPE_SOFTWARE;
  faults.attributes.config = PERF_COUNT_SW_PAGE_FAULTS_MIN;
  faults.attributes.sample_period = 1;
  open_source(faults);

  PmuEvent events[2];
  const uint32_t count = find_memory_event(devices, events);
  if (count == 0) {
    places_[static_cast<uint32_t>(EventSource::memory_samples)].refused = ENOENT;
  } else {
    Request samples{
        .source = EventSource::memory_samples, .attributes = common_attributes(), .leader = {}, .open = ask};
    auto fill = [](perf_event_attr* attributes, const PmuEvent& event) {
      attributes->type = event.type;
      attributes->config = event.config[0];
      attributes->config1 = event.config[1];
      attributes->config2 = event.config[2];
    };
    fill(&samples.attributes, events[count - 1]);
    if (events[count - 1].precise) samples.attributes.precise_ip = 3;
    // The kernel adapts the period of each event, so that it comes as often as that at most.
    samples.attributes.freq = 1;
    samples.attributes.sample_freq =
        std::clamp(samples_per_s / processors(), samples_per_s_min, samples_per_s_max);
    samples.attributes.sample_type |= PERF_SAMPLE_PERIOD;
    samples.led = count == 2;
    if (samples.led) {
      samples.leader = common_attributes();
      samples.leader.sample_type = 0;
      fill(&samples.leader, events[0]);
    }
    open_source(samples);
  }
  return opened();
}

void AccessEvents::close() {
  if (tables_ == nullptr) return;
  // The kernel gives a forked child none of the rings; something else may be there by now.
  if (process_ == ::getpid())
    for (uint32_t i = 0; i < mapped_; ++i) ::munmap(tables_->mapped[i], tables_->mapped_bytes[i]);
  ::munmap(tables_, sizeof(Tables));
  tables_ = nullptr;
  mapped_ = ring_count_ = threads_missed_ = 0;
  for (Place& place : places_) place = {};
  counts_ = {};
}

const char* AccessEvents::why(EventSource source) const {
  const Place& place = places_[static_cast<uint32_t>(source)];
  if (place.refused == 0) return nullptr;
  if (place.no_room) return "no room for rings (kernel.perf_event_mlock_kb)";
  switch (place.refused) {
    case ENOENT:
    case ENODEV:
    case EOPNOTSUPP: return "this machine has no PMU for it";
    case EACCES:
    case EPERM: return "forbidden (kernel.perf_event_paranoid, seccomp)";
    case ENOSYS: return "the kernel has no perf events";
    case EMFILE:
    case ENFILE: return "no descriptor left";
    default: return strerrorname_np(place.refused);
  }
}

void AccessEvents::open_source(Request& request) {
  Place& place = places_[static_cast<uint32_t>(request.source)];
  const int list = ::open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (list < 0) {
    place.refused = errno;
    return;
  }
  alignas(DirectoryEntry) char entries[4096];
  bool going_on = true;
  while (going_on) {
    const long got = ::syscall(SYS_getdents64, list, entries, sizeof(entries));
    if (got <= 0) break;
    for (long at = 0; at < got && going_on;) {
      const auto* entry = reinterpret_cast<const DirectoryEntry*>(entries + at);
      at += entry->bytes;
      if (entry->name[0] >= '1' && entry->name[0] <= '9')
        going_on = open_thread(request, static_cast<int>(strtol(entry->name, nullptr, 10)));
      if (place.rings > 0) request.ring_bytes = ring_bytes_other;
    }
  }
  ::close(list);
  if (place.rings > 0) {
    place.refused = 0;
    place.no_room = false;
  } else if (place.refused == 0) {
    place.refused = ENOENT;
  }
}

// False: no use in trying the other threads.
bool AccessEvents::open_thread(Request& request, int thread) {
  const Place& place = places_[static_cast<uint32_t>(request.source)];
  const uint32_t count = processors();
  for (uint32_t processor = 0; processor < count; ++processor) {
    if (open_event(request, thread, processor)) continue;
    if (errno == ENODEV) continue;    // not running, or not of this PMU
    if (errno == ESRCH) return true;  // the thread is gone
    if (place.rings == 0) return false;
    ++threads_missed_;
    return true;
  }
  return true;
}

// What was refused with this errno is asked for with less: without the kernel's own accesses, less precise, and at last without
// leaving anything out, which AMD's IBS cannot. false: there is no less.
bool AccessEvents::ask_for_less(Request& request, int failed) {
  perf_event_attr& attributes = request.attributes;
  const bool leaves_out = attributes.exclude_hv != 0;
  if ((failed == EACCES || failed == EPERM) && leaves_out && attributes.exclude_kernel == 0) {
    attributes.exclude_kernel = 1;
    return true;
  }
  if (failed != EINVAL && failed != EOPNOTSUPP) return false;
  if (attributes.precise_ip > 1) {
    attributes.precise_ip = (attributes.precise_ip - 1u) & 3u;
    return true;
  }
  if (!leaves_out) return false;
  attributes.exclude_hv = attributes.exclude_kernel = 0;
  request.leader.exclude_hv = 0;
  return true;
}

// False: errno.
bool AccessEvents::open_event(Request& request, int thread, uint32_t processor) {
  Place& place = places_[static_cast<uint32_t>(request.source)];
  int fd = -1, leader = -1, first = 0;
  for (;;) {
    if (request.led) {
      request.leader.exclude_kernel = request.attributes.exclude_kernel;
      leader = request.open(&request.leader, thread, processor, -1);
    }
    if (!request.led || leader >= 0) fd = request.open(&request.attributes, thread, processor, leader);
    if (fd >= 0) break;
    const int failed = errno;
    if (leader >= 0) ::close(leader);
    leader = -1;
    if (first == 0 || failed == EACCES || failed == EPERM) first = failed;  // what can be mended
    if (!ask_for_less(request, failed)) break;
  }
  if (fd >= 0) {
    void* at = nullptr;
    first = leader < 0 ? 0 : keep(leader, page_bytes(), &at);
    if (first == 0) first = keep(fd, page_bytes() + request.ring_bytes, &at);
    if (first == 0) {
      tables_->rings[ring_count_++].attach(static_cast<perf_event_mmap_page*>(at),
                                           static_cast<const char*>(at) + page_bytes(), request.ring_bytes,
                                           request.source);
      ++place.rings;
    } else {
      place.no_room = true;
    }
    ::close(fd);
  }
  if (leader >= 0) ::close(leader);
  if (first != 0 && place.refused == 0 && first != ESRCH) place.refused = first;
  errno = first;
  return first == 0;
}

// A mapping keeps the event when its descriptor is closed.
int AccessEvents::keep(int fd, size_t bytes, void** at) {
  if (mapped_ == events_max) return ENOSPC;
  *at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (*at == MAP_FAILED) return errno;
  tables_->mapped[mapped_] = *at;
  tables_->mapped_bytes[mapped_++] = bytes;
  return 0;
}

uint32_t AccessEvents::drain(VisitEvent visit, void* owner) {
  uint32_t seen = 0;
  for (uint32_t i = 0; i < ring_count_; ++i) seen += tables_->rings[i].drain(visit, owner, &counts_);
  return seen;
}

}  // namespace terrace::tiering
