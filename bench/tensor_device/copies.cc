// SPDX-License-Identifier: Apache-2.0
// Bandwidth of copies, registered and staged, up and down, over the yardstick; the time of a small copy; and
// how near the emulated device keeps to its limits.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>

#include "bench/tensor_device/driver_link.h"
#include "bench/tensor_device/support.h"

namespace terrace::bench {
namespace {

// A lease's memory as the emulated backend makes it.
class Lease {
 public:
  explicit Lease(uint64_t bytes) : bytes_(bytes) {
    const int fd = ::memfd_create("bench", MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) die("no memory file");
    memory_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    ::close(fd);
    if (memory_ == MAP_FAILED) die("a memory file cannot be mapped");
    std::memset(memory_, 0x5a, bytes);
  }
  ~Lease() { ::munmap(memory_, bytes_); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  std::span<std::byte> span() { return {static_cast<std::byte*>(memory_), bytes_}; }

 private:
  void* memory_;
  uint64_t bytes_;
};

double gib_per_s(uint64_t bytes, double duration_s) {
  return static_cast<double>(bytes) / static_cast<double>(gib) / duration_s;
}

constexpr uint64_t pieces = 16;

struct Speeds {
  std::vector<double> up, up_pieces, down, staged_up, staged_down, yardstick, yardstick_pieces, yardstick_down;
  std::vector<double> pageable_up, pageable_down;  // the driver's own staging
};

// The driver itself on a GPU; memcpy where the device's memory is this process's.
void measure_yardstick(const DriverLink* link, const DeviceBuffer& buffer, Lease& plain, Lease& unknown,
                       Speeds& speeds) {
  const uint64_t bytes = buffer.bytes();
  if (link != nullptr) {
    speeds.yardstick.push_back(gib_per_s(bytes, link->up_s(1)));
    speeds.yardstick_pieces.push_back(gib_per_s(bytes, link->up_s(pieces)));
    speeds.yardstick_down.push_back(gib_per_s(bytes, link->down_s()));
    speeds.pageable_up.push_back(gib_per_s(bytes, link->copy_up_s(unknown.span())));
    speeds.pageable_down.push_back(gib_per_s(bytes, link->copy_down_s(unknown.span())));
    return;
  }
  auto* to = reinterpret_cast<std::byte*>(buffer.address());
  const std::byte* from = plain.span().data();
  const auto copied_in = [&](uint64_t piece) {
    return gib_per_s(bytes, seconds([&] {
                       for (uint64_t at = 0; at + piece <= bytes; at += piece)
                         std::memcpy(to + at, from + at, piece);
                     }));
  };
  speeds.yardstick.push_back(copied_in(bytes));
  speeds.yardstick_pieces.push_back(copied_in(bytes / pieces));
  speeds.yardstick_down.push_back(speeds.yardstick.back());
}

// One after the other within a round: what the machine does meanwhile meets all of them.
void measure_round(DeviceStream& stream, const std::shared_ptr<DeviceBuffer>& buffer, Lease& registered,
                   Lease& unknown, Speeds& speeds) {
  const uint64_t bytes = buffer->bytes();
  const auto timed = [&](auto begin) { return gib_per_s(bytes, seconds([&] { must(must(begin()).wait()); })); };
  const uint64_t piece = bytes / pieces;
  speeds.up.push_back(timed([&] { return stream.upload(buffer, 0, registered.span()); }));
  // As a program does: many tensors, one wait.
  speeds.up_pieces.push_back(timed([&] {
    Result<DeviceEvent> last = DeviceEvent();
    for (uint64_t at = 0; at + piece <= bytes; at += piece) {
      last = stream.upload(buffer, at, registered.span().subspan(at, piece));
    }
    return last;
  }));
  speeds.down.push_back(timed([&] { return stream.download(registered.span(), buffer, 0); }));
  speeds.staged_up.push_back(timed([&] { return stream.upload(buffer, 0, unknown.span()); }));
  speeds.staged_down.push_back(timed([&] { return stream.download(unknown.span(), buffer, 0); }));
}

double small_copy_us(DeviceStream& stream, const std::shared_ptr<DeviceBuffer>& buffer,
                     std::span<const std::byte> from, int rounds) {
  std::vector<double> times;
  for (int round = 0; round < rounds * 100; ++round) {
    times.push_back(seconds([&] { must(must(stream.upload(buffer, 0, from)).wait()); }) * 1e6);
  }
  return median(std::move(times));
}

// The driver alone, of memory that it has pinned.
double small_yardstick_us(const DriverLink& link, std::span<const std::byte> from, int rounds) {
  std::vector<double> times;
  for (int round = 0; round < rounds * 100; ++round) times.push_back(link.copy_up_s(from) * 1e6);
  const double small_us = median(std::move(times));
  std::printf("%-34s %8.1f us\n", "yardstick, 4 KiB up", small_us);
  return small_us;
}

}  // namespace

void measure_copies(DeviceMemory& device, const Sizes& sizes, nlohmann::json& out) {
  Lease registered(sizes.copy_bytes), unknown(sizes.copy_bytes), plain(sizes.copy_bytes);
  std::unique_ptr<HostRegistration> registration;
  const double register_s =
      seconds([&] { registration = must(device.register_host(registered.span(), HostAccess::read_write)); });
  // Figures of registered memory that were those of staged copies would say nothing.
  if (!registration->direct()) die("not registered: " + registration->reason());
  const auto buffer = must(device.allocate(sizes.copy_bytes, "bench"));
  const auto stream = must(device.make_stream());
  must(must(stream->upload(buffer, 0, unknown.span())).wait());  // pages and pinned buffers are there
  std::optional<DriverLink> link;
  if (device.info().kind == DeviceKind::cuda) link.emplace(device.info().ordinal, plain.span());
  Speeds speeds;
  for (int round = 0; round < sizes.rounds; ++round) {
    measure_yardstick(link ? &*link : nullptr, *buffer, plain, unknown, speeds);
    measure_round(*stream, buffer, registered, unknown, speeds);
  }
  const double yardstick = median(speeds.yardstick), yardstick_pieces = median(speeds.yardstick_pieces),
               yardstick_down = median(speeds.yardstick_down);
  const auto line = [&](const char* name, const char* key, std::vector<double> values, double over) {
    const double value = median(std::move(values));
    std::printf("%-34s %8.2f GiB/s  %5.2f of the yardstick\n", name, value, value / over);
    out[key] = value / over;
  };
  std::printf("%-34s %8.2f GiB/s\n", "yardstick, one copy", yardstick);
  out["yardstick_gib_per_s"] = yardstick;
  line("up, registered", "upload_over_yardstick", speeds.up, yardstick);
  line("up, registered, 16 tensors", "upload_tensors_over_yardstick", speeds.up_pieces, yardstick_pieces);
  line("down, registered", "download_over_yardstick", speeds.down, yardstick_down);
  line("up, staged", "staged_upload_over_yardstick", speeds.staged_up, yardstick);
  line("down, staged", "staged_download_over_yardstick", speeds.staged_down, yardstick_down);
  out["register_ms_per_gib"] = 1e3 / gib_per_s(sizes.copy_bytes, register_s);
  if (link) {
    line("up, the driver's own staging", "driver_staged_upload_over_yardstick", speeds.pageable_up, yardstick);
    line("down, the driver's own staging", "driver_staged_download_over_yardstick", speeds.pageable_down,
         yardstick_down);
    out["yardstick_small_us"] = small_yardstick_us(*link, plain.span().first(sizes.small_bytes), sizes.rounds);
  }
  std::printf("%-34s %8.1f ms a GiB\n", "registering", out["register_ms_per_gib"].get<double>());
  const double small_us =
      small_copy_us(*stream, buffer, registered.span().first(sizes.small_bytes), sizes.rounds);
  std::printf("%-34s %8.1f us\n", "4 KiB up, begun and waited for", small_us);
  out["small_upload_us"] = small_us;
}

void measure_limits(const Sizes& sizes, nlohmann::json& out) {
  // A tenth of what the machine copies at: the limit decides, not the machine.
  const uint64_t bytes_per_s = 512 * mib;
  const auto device = must(DeviceMemory::make_emulated({.capacity_bytes = sizes.limit_bytes,
                                                        .upload_bytes_per_s = bytes_per_s,
                                                        .download_bytes_per_s = bytes_per_s}));
  const auto buffer = must(device->allocate(sizes.limit_bytes, "bench"));
  const auto up = must(device->make_stream());
  std::vector<std::byte> from(sizes.limit_bytes);
  const double bound_s = static_cast<double>(sizes.limit_bytes) / static_cast<double>(bytes_per_s);
  std::vector<double> times;
  for (int round = 0; round < std::min(sizes.rounds, 3); ++round) {
    times.push_back(seconds([&] { must(must(up->upload(buffer, 0, from)).wait()); }));
  }
  const double took_s = median(std::move(times));
  std::printf("%-34s %8.3f of the limit's time\n", "emulated device, 512 MiB/s", took_s / bound_s);
  out["emulated_time_over_limit"] = took_s / bound_s;
}

}  // namespace terrace::bench
