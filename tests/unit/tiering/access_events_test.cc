// SPDX-License-Identifier: Apache-2.0
// The rings are tested on crafted contents and on this machine's own faults. Sampling by a PMU is not: where
// the tests run there is none, so only its absence and the encoding of its events are.
#include "tiering/hotness/access_events.h"

#include <linux/perf_event.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "tests/support/eventually.h"
#include "tests/support/skip.h"
#include "tests/unit/tiering/two_files.h"
#include "tiering/hotness/pmu_event.h"
#include "tiering/hotness/sampler.h"

using namespace terrace;
using namespace terrace::test;
using tiering::AccessEvent;
using tiering::EventSource;
using tiering::Residency;

namespace {

// A ring of 4 KiB whose contents the test writes.
struct Crafted {
  static constexpr uint64_t bytes = 4096;
  explicit Crafted(EventSource source = EventSource::minor_faults) : data(bytes) {
    ring.attach(&page, data.data(), bytes, source);
  }
  void put(const void* from, size_t size) {
    for (size_t i = 0; i < size; ++i) data[(page.data_head + i) % bytes] = static_cast<const char*>(from)[i];
    page.data_head += size;
  }
  void put_header(uint32_t type, uint16_t size) {
    const perf_event_header header{.type = type, .misc = 0, .size = size};
    put(&header, sizeof(header));
  }
  void put_words(std::initializer_list<uint64_t> words) {
    for (const uint64_t word : words) put(&word, sizeof(word));
  }
  void put_fault(uint64_t address, uint64_t time_ns) {
    put_header(PERF_RECORD_SAMPLE, 32);
    put_words({uint64_t{77} << 32 | 76, time_ns, address});
  }
  uint32_t drain() {
    return ring.drain(
        [](void* owner, const AccessEvent& event) {
          static_cast<std::vector<AccessEvent>*>(owner)->push_back(event);
        },
        &events, &counts);
  }

  perf_event_mmap_page page{};
  std::vector<char> data;
  tiering::EventRing ring;
  tiering::EventCounts counts;
  std::vector<AccessEvent> events;
};

struct Faults {
  std::vector<AccessEvent> drain(tiering::AccessEvents& from) {
    std::vector<AccessEvent> seen;
    from.drain(
        [](void* owner, const AccessEvent& event) {
          static_cast<std::vector<AccessEvent>*>(owner)->push_back(event);
        },
        &seen);
    return seen;
  }
  bool open() {
    const bool works = events.open() && events.opened(EventSource::minor_faults);
    if (!works)
      TERRACE_SKIP(userfaultfd, "minor faults refused: " << std::string(events.why(EventSource::minor_faults)));
    return works;
  }
  // Of those drained, the ones in the range.
  std::vector<AccessEvent> in(TwoFiles& files) {
    std::vector<AccessEvent> seen = drain(events);
    const auto base = reinterpret_cast<uintptr_t>(files.base());
    std::erase_if(seen, [&](const AccessEvent& event) {
      return event.address < base || event.address >= base + files.memory.bytes();
    });
    return seen;
  }
  tiering::AccessEvents events;
};

void store(char* at) {
  *reinterpret_cast<volatile char*>(at) = 1;
}

struct DeviceFiles {
  DeviceFiles() {
    char path[] = "/tmp/t-pmu-XXXXXX";
    REQUIRE(::mkdtemp(path) != nullptr);
    root = path;
  }
  ~DeviceFiles() { std::filesystem::remove_all(root); }
  void put(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((root / name).parent_path());
    std::ofstream(root / name) << text << "\n";
  }
  std::filesystem::path root;
};

}  // namespace

TEST_CASE("EventRing: faults come with address, time and thread, also where a record wraps") {
  Crafted crafted;
  uint64_t number = 0;
  // 32 bytes a record, and one of 24 now and then: each offset of a wrap comes up.
  for (int round = 0; round < 100; ++round) {
    crafted.events.clear();
    for (int i = 0; i < 100; ++i) {
      ++number;
      crafted.put_fault(number << 12, number);
    }
    crafted.put_header(PERF_RECORD_THROTTLE, 24);
    crafted.put_words({0, 0});
    REQUIRE(crafted.drain() == 100);
    for (uint64_t i = 0; i < 100; ++i) {
      const AccessEvent& event = crafted.events[i];
      REQUIRE(event.address == (number - 99 + i) << 12);
      REQUIRE(event.time_ns == number - 99 + i);
      REQUIRE(event.thread == 77);
      REQUIRE(event.count == 1);
    }
    REQUIRE(crafted.page.data_tail == crafted.page.data_head);
  }
  CHECK(crafted.counts.seen == 10'000);
  CHECK(crafted.counts.damaged == 0);
  CHECK(crafted.drain() == 0);
}

TEST_CASE("EventRing: a record split inside its header is read whole") {
  Crafted crafted;
  // An odd offset, which no kernel makes.
  crafted.put_header(PERF_RECORD_THROTTLE, Crafted::bytes - 5);
  crafted.page.data_head = Crafted::bytes - 5;
  CHECK(crafted.drain() == 0);
  crafted.put_fault(0x1234'5678, 9);
  REQUIRE(crafted.drain() == 1);
  CHECK(crafted.events[0].address == 0x1234'5678);
  CHECK(crafted.events[0].time_ns == 9);
}

TEST_CASE("EventRing: memory samples carry their period") {
  Crafted crafted(EventSource::memory_samples);
  crafted.put_header(PERF_RECORD_SAMPLE, 40);
  crafted.put_words({uint64_t{5} << 32 | 4, 17, 0x7000, 12'345});
  REQUIRE(crafted.drain() == 1);
  CHECK(crafted.events[0].address == 0x7000);
  CHECK(crafted.events[0].count == 12'345);
  CHECK(crafted.events[0].source == EventSource::memory_samples);
}

TEST_CASE("EventRing: what the kernel lost is counted, and samples of another layout are passed over") {
  Crafted crafted;
  crafted.put_fault(0x1000, 1);
  crafted.put_header(PERF_RECORD_LOST, 24);
  crafted.put_words({3, 41});
  crafted.put_header(PERF_RECORD_LOST, 8);  // too short to say how many
  crafted.put_header(PERF_RECORD_SAMPLE, 24);
  crafted.put_words({0, 0});
  crafted.put_header(PERF_RECORD_SAMPLE, 40);
  crafted.put_words({0, 0, 0, 0});
  crafted.put_fault(0x2000, 2);
  CHECK(crafted.drain() == 2);
  CHECK(crafted.counts.lost == 41);
  CHECK(crafted.counts.damaged == 2);
  CHECK(crafted.events.back().address == 0x2000);
}

TEST_CASE("EventRing: sizes of zero and beyond the ring end the reading, and it goes on behind them") {
  for (const uint16_t size : std::initializer_list<uint16_t>{0, 7, 64, 65'528}) {
    Crafted crafted;
    crafted.put_fault(0x1000, 1);
    crafted.put_header(PERF_RECORD_SAMPLE, size);
    crafted.put_words({1, 2});
    CHECK(crafted.drain() == 1);
    CHECK(crafted.counts.damaged == 1);
    CHECK(crafted.page.data_tail == crafted.page.data_head);
    crafted.put_fault(0x3000, 3);
    CHECK(crafted.drain() == 1);
    CHECK(crafted.events.back().address == 0x3000);
  }
  Crafted cut;  // less than a header
  cut.page.data_head = 4;
  CHECK(cut.drain() == 0);
  CHECK(cut.counts.damaged == 1);
}

TEST_CASE(
    "EventRing: a head behind the tail, or further on than the ring is long, is taken as where to go on") {
  for (const uint64_t head : {uint64_t{0}, uint64_t{64 + Crafted::bytes + 8}, UINT64_MAX - 7}) {
    Crafted crafted;
    crafted.put_fault(0x1000, 1);
    crafted.put_fault(0x2000, 2);
    CHECK(crafted.drain() == 2);
    crafted.page.data_head = head;
    crafted.page.data_tail = 1;  // of no concern to the reader
    CHECK(crafted.drain() == 0);
    CHECK(crafted.counts.damaged == 1);
    crafted.put_fault(0x3000, 3);
    CHECK(crafted.drain() == 1);
    CHECK(crafted.events.back().address == 0x3000);
  }
}

TEST_CASE("EventRing: any bytes at all are read within the ring") {
  uint64_t random = 1;
  auto next = [&] { return random = random * 6364136223846793005u + 1442695040888963407u; };
  for (int round = 0; round < 2000; ++round) {
    Crafted crafted(round % 2 == 0 ? EventSource::minor_faults : EventSource::memory_samples);
    for (size_t i = 0; i < Crafted::bytes; i += 8) {
      // Types that are known and sizes that are small, so that many records are walked.
      const uint64_t word = (next() >> 33) % 12 | ((next() >> 33) % 64) << 48;
      std::memcpy(crafted.data.data() + i, &word, sizeof(word));
    }
    for (int i = 0; i < 8; ++i) {
      crafted.page.data_head += (next() >> 33) % (Crafted::bytes + 64);
      crafted.drain();
      REQUIRE(crafted.page.data_tail == crafted.page.data_head);
    }
  }
}

TEST_CASE("AccessEvents: the first touch of each granule after a zap is seen, with address, time and thread") {
  TwoFiles files(16, 64 * kib);
  REQUIRE(files.memory.map(0, 16, Residency::ddr) == 0);
  std::memset(files.base(), 1, files.memory.bytes());
  Faults faults;
  if (!faults.open()) return;
  faults.in(files);
  REQUIRE(::madvise(files.base(), files.memory.bytes(), MADV_DONTNEED) == 0);
  const uint64_t begin_ns = tiering::monotonic_ns();
  for (uint32_t granule = 0; granule < 16; granule += 2) store(files.at(granule) + 4096 * granule + 24);
  const uint64_t end_ns = tiering::monotonic_ns();
  const std::vector<AccessEvent> seen = faults.in(files);
  REQUIRE(seen.size() == 8);
  for (uint32_t i = 0; i < 8; ++i) {
    const auto wanted = reinterpret_cast<uintptr_t>(files.at(2 * i) + 4096 * 2 * i + 24);
    CHECK(std::any_of(seen.begin(), seen.end(), [&](const AccessEvent& event) {
      return event.address == wanted && event.time_ns >= begin_ns && event.time_ns <= end_ns &&
             event.thread == static_cast<uint32_t>(::gettid()) && event.count == 1;
    }));
  }
  CHECK(faults.events.counts().damaged == 0);
}

TEST_CASE(
    "AccessEvents: threads begun before and after are seen; a forked child is not, and leaves all as it is") {
  TwoFiles files(8, 64 * kib);
  REQUIRE(files.memory.map(0, 8, Residency::ddr) == 0);
  std::atomic<int> step{0};
  std::atomic<uint32_t> earlier_id{0};
  std::thread earlier([&] {
    earlier_id = static_cast<uint32_t>(::gettid());
    step.store(1);
    step.notify_all();
    step.wait(1);
    store(files.at(1));
  });
  step.wait(0);
  Faults faults;
  if (faults.open()) {
    faults.in(files);
    step.store(2);
    step.notify_all();
    earlier.join();
    uint32_t later_id = 0;
    std::thread later([&] {
      later_id = static_cast<uint32_t>(::gettid());
      store(files.at(2));
      std::thread([&] { store(files.at(3)); }).join();
    });
    later.join();
    std::vector<AccessEvent> seen = faults.in(files);
    auto seen_at = [&](uint32_t granule) -> const AccessEvent* {
      const auto address = reinterpret_cast<uintptr_t>(files.at(granule));
      auto at = std::find_if(seen.begin(), seen.end(),
                             [&](const AccessEvent& event) { return event.address == address; });
      return at == seen.end() ? nullptr : &*at;
    };
    for (uint32_t granule = 1; granule < 4; ++granule) CHECK_MESSAGE(seen_at(granule) != nullptr, granule);
    REQUIRE(seen.size() == 3);
    REQUIRE(seen_at(1) != nullptr);
    REQUIRE(seen_at(2) != nullptr);
    CHECK(seen_at(1)->thread == earlier_id);
    CHECK(seen_at(2)->thread == later_id);
    CHECK(seen_at(3) != nullptr);
    // The range itself is not inherited.
    constexpr size_t both_bytes = 8192;
    void* both = ::mmap(nullptr, both_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(both != MAP_FAILED);
    auto* pages = static_cast<char*>(both);
    const pid_t child = ::fork();
    if (child == 0) {
      store(pages);
      faults.events.close();
      ::_exit(0);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    store(pages + 4096);
    seen = faults.drain(faults.events);
    auto is_seen = [&](char* at) {
      return std::any_of(seen.begin(), seen.end(), [&](const AccessEvent& event) {
        return event.address == reinterpret_cast<uintptr_t>(at);
      });
    };
    CHECK_FALSE(is_seen(pages));
    CHECK(is_seen(pages + 4096));
    ::munmap(both, both_bytes);
  } else {
    step.store(2);
    step.notify_all();
    earlier.join();
  }
}

TEST_CASE("AccessEvents: no descriptor stays open, and closing every one of the program's changes nothing") {
  TwoFiles files(4, 64 * kib);
  REQUIRE(files.memory.map(0, 4, Residency::ddr) == 0);
  auto descriptors = [] {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
    return count;
  };
  const size_t before = descriptors();
  Faults faults;
  if (!faults.open()) return;
  CHECK(descriptors() == before);
  faults.in(files);
  store(files.at(0));
  CHECK(faults.in(files).size() == 1);
  faults.events.close();
  CHECK_FALSE(faults.events.opened());
  CHECK(faults.events.drain([](void*, const AccessEvent&) {}, nullptr) == 0);
  REQUIRE(faults.open());  // and once more
  store(files.at(1));
  CHECK(faults.in(files).size() == 1);
}

TEST_CASE("AccessEvents: more faults than the rings hold are counted as lost, and reading goes on") {
  constexpr uint32_t pages = 40'000;
  TwoFiles files(pages / 16, 64 * kib);
  REQUIRE(files.memory.map(0, pages / 16, Residency::ddr) == 0);
  Faults faults;
  if (!faults.open()) return;
  for (uint32_t page = 0; page < pages; ++page) store(files.base() + page * 4096ull);
  const size_t first = faults.in(files).size();
  CHECK(first < pages);
  // The kernel says so with the next record that has room.
  REQUIRE(::madvise(files.base(), 64 * kib, MADV_DONTNEED) == 0);
  store(files.at(0));
  CHECK(faults.in(files).size() == 1);
  CHECK(faults.events.counts().lost > 0);
  CHECK(faults.events.counts().damaged == 0);
}

TEST_CASE("AccessEvents: says what is refused and why, where there is no PMU") {
  DeviceFiles devices;
  tiering::AccessEvents events;
  events.open(devices.root.c_str());
  CHECK_FALSE(events.opened(EventSource::memory_samples));
  CHECK(events.refused(EventSource::memory_samples) == ENOENT);
  CHECK(std::string(events.why(EventSource::memory_samples)).find("no PMU") != std::string::npos);
  // Files of a PMU that the kernel does not have.
  devices.put("ibs_op/type", "4000000");
  devices.put("ibs_op/format/cnt_ctl", "config:19");
  events.open(devices.root.c_str());
  CHECK_FALSE(events.opened(EventSource::memory_samples));
  CHECK(events.refused(EventSource::memory_samples) != 0);
  CHECK(events.why(EventSource::memory_samples) != nullptr);
}

// Both granules are used in every exposure, so that the sweeps alone find them alike.
TEST_CASE("AccessEvents: with a sweep's faults the sampler tells much used granules from less used ones") {
  TwoFiles files(16, 64 * kib);
  REQUIRE(files.memory.map(0, 16, Residency::ddr) == 0);
  std::memset(files.base(), 1, files.memory.bytes());
  Faults faults;
  tiering::Sampler sampler;
  if (!faults.open()) return;
  if (const int failed = sampler.open(&files.memory); failed != 0) {
    TERRACE_SKIP(pagemap_scan, "no PAGEMAP_SCAN, errno " << failed);
    return;
  }
  sampler.expect_first_touches();
  tiering::PolicyMemory policy{};
  std::atomic<bool> stop{false};
  std::thread user([&] {
    for (uint64_t due_ns = 0; !stop;) {
      store(files.at(3));
      if (const uint64_t now_ns = tiering::monotonic_ns(); now_ns >= due_ns) {
        store(files.at(9));
        due_ns = now_ns + 15'000'000;
      }
    }
  });
  int sweeps = 0;
  float busy = 0, other = 0;
  CHECK(eventually(
      [&] {
        ++sweeps;
        sampler.set_wait_ns(20'000'000);
        sampler.begin(tiering::monotonic_ns());
        ::usleep(20'000);
        const uint64_t now_ns = tiering::monotonic_ns();
        for (const AccessEvent& event : faults.in(files)) {
          const uint64_t offset = event.address - reinterpret_cast<uintptr_t>(files.base());
          sampler.note_first_touch(static_cast<uint32_t>(offset / (64 * kib)), offset % (64 * kib),
                                   event.time_ns);
        }
        sampler.finish(policy, now_ns, 0.1f);
        busy = tiering::heat_at(files.memory.granules()[3], policy, now_ns);
        other = tiering::heat_at(files.memory.granules()[9], policy, now_ns);
        return sweeps > 40 && other > 0 && busy > 2 * other;
      },
      std::chrono::seconds(60)));
  MESSAGE("heat " << busy << " and " << other << " after " << sweeps << " sweeps");
  stop = true;
  user.join();
}

TEST_CASE("PMU events: terms become bits as the format files say; what they do not describe is refused") {
  DeviceFiles devices;
  devices.put("cpu/type", "4");
  devices.put("cpu/format/event", "config:0-7");
  devices.put("cpu/format/umask", "config:8-15");
  devices.put("cpu/format/ldlat", "config1:0-15");
  devices.put("cpu/format/split", "config2:0-3,60-63");
  const std::string cpu = (devices.root / "cpu").string();
  tiering::PmuEvent event;
  REQUIRE(tiering::encode_terms(cpu.c_str(), "event=0xcd,umask=0x1,ldlat=3", &event));
  CHECK(event.config[0] == 0x1cd);
  CHECK(event.config[1] == 3);
  REQUIRE(tiering::encode_terms(cpu.c_str(), "split=0x95", &event));
  CHECK(event.config[2] == (uint64_t{0x9} << 60 | 0x5));
  for (const char* wrong : {"event=0x100", "nothing=1", "event=", "event=1;umask=2", "=1", "../type=1"})
    CHECK_FALSE(tiering::encode_terms(cpu.c_str(), wrong, &event));

  tiering::PmuEvent found[2];
  CHECK(tiering::find_memory_event(devices.root.c_str(), found) == 0);
  devices.put("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3");
  REQUIRE(tiering::find_memory_event(devices.root.c_str(), found) == 1);
  CHECK(found[0].type == 4);
  CHECK(found[0].config[0] == 0x1cd);
  CHECK(found[0].config[1] == 30);
  CHECK(found[0].precise);
  devices.put("cpu/events/mem-loads-aux", "event=0x03,umask=0x82");
  REQUIRE(tiering::find_memory_event(devices.root.c_str(), found) == 2);
  CHECK(found[0].config[0] == 0x8203);
  CHECK(found[1].config[0] == 0x1cd);

  DeviceFiles amd;
  amd.put("ibs_op/type", "11");
  amd.put("ibs_op/format/cnt_ctl", "config:19");
  REQUIRE(tiering::find_memory_event(amd.root.c_str(), found) == 1);
  CHECK(found[0].type == 11);
  CHECK(found[0].config[0] == 1u << 19);
}

namespace {

// As AMD's IBS: it can leave nothing out, and is not precise. Behind it are this process's own faults, whose records have the same form.
constexpr uint32_t ibs_type = 4'000'001;
std::atomic<int> asked_of_ibs = 0, ibs_errno = 0;

int open_as_ibs(perf_event_attr* attributes, int thread, uint32_t processor, int leader) {
  perf_event_attr real = *attributes;
  if (attributes->type == ibs_type) {
    ++asked_of_ibs;
    if (attributes->exclude_kernel != 0 || attributes->exclude_hv != 0 || attributes->precise_ip != 0) {
      errno = EINVAL;
      return -1;
    }
    if (ibs_errno != 0) {
      errno = ibs_errno;
      return -1;
    }
    real.type = PERF_TYPE_SOFTWARE;
    real.config = PERF_COUNT_SW_PAGE_FAULTS_MIN;
    real.freq = 0;
    real.sample_period = 1;
    real.exclude_kernel = ::geteuid() == 0 ? 0 : 1;
  }
  return static_cast<int>(
      ::syscall(SYS_perf_event_open, &real, thread, static_cast<int>(processor), leader, PERF_FLAG_FD_CLOEXEC));
}

}  // namespace

TEST_CASE(
    "AccessEvents: a PMU that can leave nothing out is asked without that, and says when it is forbidden "
    "then") {
  DeviceFiles amd;
  amd.put("ibs_op/type", std::to_string(ibs_type));
  amd.put("ibs_op/format/cnt_ctl", "config:19");
  Faults faults;
  if (!faults.open()) return;
  REQUIRE(faults.events.open(amd.root.c_str(), open_as_ibs));
  CHECK_MESSAGE(faults.events.opened(EventSource::memory_samples),
                faults.events.why(EventSource::memory_samples));
  CHECK(asked_of_ibs >= 2);
  TwoFiles files(4, 64 * kib);
  REQUIRE(files.memory.map(0, 4, Residency::ddr) == 0);
  store(files.base());
  bool sampled = false;
  for (const AccessEvent& event : faults.in(files)) sampled |= event.source == EventSource::memory_samples;
  CHECK(sampled);

  ibs_errno = EACCES;
  REQUIRE(faults.events.open(amd.root.c_str(), open_as_ibs));
  ibs_errno = 0;
  CHECK_FALSE(faults.events.opened(EventSource::memory_samples));
  CHECK(std::string(faults.events.why(EventSource::memory_samples)).starts_with("forbidden"));
}
