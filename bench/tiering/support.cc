// SPDX-License-Identifier: Apache-2.0
#include "bench/tiering/support.h"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/os/memory_map.h"

namespace terrace::bench {

void die(const std::string& text) {
  std::fprintf(stderr, "bench_tiering: %s\n", text.c_str());
  std::exit(1);
}

void must(const Status& status, const char* what) {
  if (!status.ok()) die(std::string(what) + ": " + status.error().to_string());
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

static double read_clock(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

double seconds() {
  return read_clock(CLOCK_MONOTONIC);
}

double thread_cpu_seconds() {
  return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

void populate(int fd, uint64_t bytes) {
  auto place = must(os::MemoryMap::reserve(bytes, 2 * mib), "reserve");
  void* at = ::mmap(place.data(), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  if (at == MAP_FAILED) die("cannot map a memory file");
  ::madvise(at, bytes, MADV_HUGEPAGE);
  if (::madvise(at, bytes, MADV_POPULATE_WRITE) != 0) die("not enough memory for this size");
  constexpr int madv_collapse = 25;     // newer than Debian 12's headers
  ::madvise(at, bytes, madv_collapse);  // as a manager's leases are where the machine has huge pages
}

bool in_huge_pages(const void* at, uint64_t bytes) {
  FILE* file = std::fopen("/proc/self/smaps", "r");
  if (file == nullptr) return false;
  char line[512];
  unsigned long long begin = 0, end = 0, kib_huge = 0, sum = 0;
  const auto from = reinterpret_cast<uintptr_t>(at);
  bool inside = false;
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::sscanf(line, "%llx-%llx ", &begin, &end) == 2) inside = begin < from + bytes && end > from;
    if (inside && std::sscanf(line, "ShmemPmdMapped: %llu kB", &kib_huge) == 1) sum += kib_huge;
  }
  std::fclose(file);
  return sum * kib >= bytes / 10 * 9;
}

TwoFiles::TwoFiles(uint64_t bytes, uint64_t granule_bytes)
    : map(must(os::MemoryMap::reserve(bytes, 2 * mib), "reserve")),
      ddr(must(granule_bytes < 2 * mib ? os::make_memory_file("ddr", bytes)
                                       : os::make_huge_memory_file("ddr", bytes, &huge),
               "memory file")),
      cxl(must(granule_bytes < 2 * mib ? os::make_memory_file("cxl", bytes)
                                       : os::make_huge_memory_file("cxl", bytes, &huge),
               "memory file")) {
  populate(cxl.get(), bytes);
  populate(ddr.get(), bytes);
  if (memory.open({.base = reinterpret_cast<char*>(map.data()),
                   .bytes = bytes,
                   .granule_bytes = granule_bytes,
                   .ddr_fd = ddr.get(),
                   .join_pages = !huge}) != 0 ||
      memory.add_segment(cxl.get(), bytes) != 0 ||
      memory.map(0, static_cast<uint32_t>(bytes / granule_bytes), tiering::Residency::ddr) != 0)
    die("cannot lay out a tiered range");
}

TwoFiles::~TwoFiles() {
  memory.close();
}

std::shared_ptr<Lease> make_lease(Session& session, uint64_t bytes) {
  LeaseRequest request;
  request.bytes = bytes;
  auto lease = must(session.grant(request), "grant");
  populate(lease->fd(), bytes);
  return lease;
}

}  // namespace terrace::bench
