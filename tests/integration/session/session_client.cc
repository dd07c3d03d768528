// SPDX-License-Identifier: Apache-2.0
// A tenant for session_test.py: one Session, one lease, one Mapping and one Arena. Reads a command a line from
// stdin, answers each with one line; notices are printed as they come.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <mutex>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/base/units.h"
#include "core/os/userfaultfd.h"
#include "terrace/arena.h"
#include "terrace/mapping.h"
#include "terrace/session.h"
#include "terrace/tiering.h"

using namespace terrace;

namespace {

void say(const std::string& line) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::cout << line << std::endl;
}

std::string named(const Error& error) {
  return std::string("error ") + std::string(error_code_name(error.code));
}
std::string outcome(const Status& status) {
  return status.ok() ? "ok" : named(status.error());
}

const char* state_name(LeaseState state) {
  switch (state) {
    case LeaseState::live: return "live";
    case LeaseState::revoking: return "revoking";
    case LeaseState::lost: return "lost";
  }
  return "?";
}

// What a read(2) into a page of shared memory does that is write-protected through a userfaultfd of
// `device_fd`: "waits", then "EFAULT" or how many bytes it brought once the page was released.
std::string read_into_protected_page(int device_fd) {
  const auto uffd = os::open_userfaultfd(device_fd, UFFD_FEATURE_PAGEFAULT_FLAG_WP);
  if (!uffd.ok()) return named(uffd.error());
  const uint64_t bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const UniqueFd file(::memfd_create("protected", MFD_CLOEXEC));
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return "error ftruncate";
  void* page = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (page == MAP_FAILED) return "error mmap";
  std::memset(page, 1, bytes);
  const auto start = reinterpret_cast<uint64_t>(page);
  uffdio_register watch{.range = {start, bytes}, .mode = UFFDIO_REGISTER_MODE_WP, .ioctls = 0};
  uffdio_writeprotect protect{.range = {start, bytes}, .mode = UFFDIO_WRITEPROTECT_MODE_WP};
  if (::ioctl(uffd->get(), UFFDIO_REGISTER, &watch) != 0) return "error register";
  if (::ioctl(uffd->get(), UFFDIO_WRITEPROTECT, &protect) != 0) return "error protect";
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0 || ::write(ends[1], "abcd", 4) != 4) return "error pipe";
  const UniqueFd in(ends[0]), out(ends[1]);
  std::string result;
  std::thread reader([&] {
    const ssize_t got = ::read(in.get(), page, 4);
    result = got < 0 ? (errno == EFAULT ? "EFAULT" : "another error") : std::to_string(got);
  });
  pollfd event{.fd = uffd->get(), .events = POLLIN, .revents = 0};
  const bool waits = ::poll(&event, 1, 5000) == 1;
  uffd_msg fault{};
  const bool kernel_fault =
      waits && ::read(uffd->get(), &fault, sizeof fault) == sizeof fault && fault.event == UFFD_EVENT_PAGEFAULT;
  protect.mode = 0;
  ::ioctl(uffd->get(), UFFDIO_WRITEPROTECT, &protect);
  reader.join();
  const bool same = std::memcmp(page, "abcd", 4) == 0;
  ::munmap(page, bytes);
  return std::string(kernel_fault ? "waits " : "") + result + (same ? " abcd" : "");
}

class Tenant {
 public:
  explicit Tenant(std::unique_ptr<Session> session) : session_(std::move(session)) {
    session_->on_notice([](const LeaseNotice& notice) {
      say(std::string("notice ") + (notice.move_requested ? "move" : state_name(notice.state)) + " " +
          std::to_string(notice.grace_ns / ns_per_ms) + " " + notice.reason);
    });
  }

  std::string perform(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "grant") return grant(words);
    if (verb == "attach") return attach(words);
    if (verb == "arena") return use_arena();
    if (verb == "hold") return hold_many(words);
    if (verb == "held") return held();
    if (verb == "drop") return drop_held();
    if (verb == "connected") return session_->connected() ? "yes" : "no";
    if (verb == "tenant") return session_->tenant();
    if (verb == "userfault") return userfault(words);
    if (verb == "range") return make_range(words);
    if (verb == "hammer") return hammer(words);
    if (lease_ == nullptr) return "error no lease";
    if (verb == "state") return state_name(lease_->state());
    if (verb == "renew") return outcome(lease_->renew());
    if (verb == "release") return outcome(lease_->release());
    if (verb == "resize") return resize(words);
    if (verb == "move") return outcome(mapping_->move([](const auto& body) { body(); }));
    if (verb == "transfer") {
      std::string tenant, host;
      words >> tenant >> host;
      return outcome(lease_->transfer(tenant, host));
    }
    if (verb == "usage")
      return outcome(
          lease_->report_usage({.ddr_bytes = 1, .cxl_bytes = 2, .live_bytes = 3, .holder = "tenant[1]"}));
    if (verb == "fork") return fork_child();
    if (verb == "pin") return pin();
    if (verb == "info") {
      const auto info = lease_->info();
      return info.ok() ? info->phase + " " + std::to_string(info->epoch.value) : named(info.error());
    }
    if (verb == "fill" || verb == "check") return bytes(words, verb == "fill");
    return "error unknown command";
  }

 private:
  // Through the manager's device, or what this process gets by itself.
  std::string userfault(std::istringstream& words) {
    std::string whose;
    words >> whose;
    if (whose == "own") return read_into_protected_page(-1);
    const auto device = session_->userfaultfd_device();
    return device.ok() ? read_into_protected_page(device->get()) : named(device.error());
  }
  std::string hold(Result<std::shared_ptr<Lease>> lease) {
    if (!lease.ok()) return named(lease.error());
    lease_ = std::move(*lease);
    auto mapping = Mapping::map(lease_);
    if (!mapping.ok()) return named(mapping.error());
    mapping_ = std::move(*mapping);
    return std::to_string(lease_->id().value) + " " + std::to_string(lease_->bytes());
  }
  std::string grant(std::istringstream& words) {
    LeaseRequest request;
    std::string on_fence;
    words >> request.bytes >> request.ttl_ns >> request.label >> request.wait_ns >> request.movable >>
        request.detached >> on_fence;
    if (on_fence == "kill") request.on_fence = OnFence::kill;
    return hold(session_->grant(request));
  }
  std::string attach(std::istringstream& words) {
    std::string label, access, on_fence;
    words >> label >> access >> on_fence;
    return hold(session_->attach(LeaseId{}, label,
                                 access == "ro" ? LeaseAccess::read_only : LeaseAccess::read_write,
                                 on_fence == "kill" ? OnFence::kill : OnFence::keep));
  }
  // Many leases, without a mapping; and how many of them live.
  std::string hold_many(std::istringstream& words) {
    size_t count = 0;
    LeaseRequest request;
    words >> count >> request.bytes >> request.ttl_ns;
    for (size_t i = 0; i < count; ++i) {
      auto lease = session_->grant(request);
      if (!lease.ok()) return named(lease.error());
      held_.push_back(std::move(*lease));
    }
    return held();
  }
  std::string drop_held() {
    std::erase_if(held_, [](const auto& lease) { return lease->release().ok(); });
    return held();
  }
  std::string held() const {
    size_t live = 0;
    for (const auto& lease : held_) live += lease->state() == LeaseState::live;
    return std::to_string(live) + " of " + std::to_string(held_.size());
  }
  std::string resize(std::istringstream& words) {
    uint64_t bytes = 0;
    words >> bytes;
    const auto info = lease_->resize(bytes);
    if (!info.ok()) return named(info.error());
    const auto mapped = mapping_->resize();
    return mapped.ok() ? std::to_string(mapping_->const_bytes().size()) : named(mapped.error());
  }
  std::string bytes(std::istringstream& words, bool fill) {
    int value = 0;
    words >> value;
    if (fill) {
      std::memset(mapping_->bytes().data(), value, mapping_->bytes().size());
      mapping_->persist(mapping_->const_bytes());
      return "ok";
    }
    for (const std::byte byte : mapping_->const_bytes())
      if (byte != static_cast<std::byte>(value)) return "differs";
    return "same";
  }
  std::string use_arena() {
    LeaseRequest request;
    request.bytes = 8 * mib;
    auto lease = session_->grant(request);
    if (!lease.ok()) return named(lease.error());
    ArenaOptions options;
    options.ddr_bytes = 2 * mib;
    auto arena = Arena::make(options);
    if (!arena.ok()) return named(arena.error());
    if (const Status added = (*arena)->add_lease(*lease); !added.ok()) return named(added.error());
    auto first = (*arena)->allocate(2 * mib, 1, TierPreference::ddr_first);
    auto second = (*arena)->allocate(8 * mib, 1, TierPreference::ddr_first);
    if (!first.ok() || !second.ok()) return "error allocate";
    std::memset(*first, 1, 2 * mib);
    std::memset(*second, 2, 8 * mib);
    std::string tiers = std::string(tier_name(*(*arena)->tier_of(*first))) + " " +
                        std::string(tier_name(*(*arena)->tier_of(*second)));
    arena->reset();
    const Status released = (*lease)->release();
    return released.ok() ? tiers : named(released.error());
  }

  // A child that does nothing, with what a fork gives it, until it is killed.
  static std::string fork_child() {
    const pid_t child = ::fork();
    if (child != 0) return std::to_string(child);
    for (const int fd : {0, 1, 2}) ::close(fd);  // or readers would wait for its end
    for (;;) ::pause();
  }

  // A page of the lease in a pipe of this process: pinned until the pipe is closed, by its end at the latest.
  std::string pin() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return "error pipe";
    pipes_.emplace_back(ends[0]);
    pipes_.emplace_back(ends[1]);
    const iovec page{.iov_base = mapping_->bytes().data(), .iov_len = 4096};
    return ::vmsplice(ends[1], &page, 1, 0) == 4096 ? "ok" : "error vmsplice";
  }

  // A tiered range over a lease of its size: NAME BYTES DDR_BYTES.
  std::string make_range(std::istringstream& words) {
    TieredRangeOptions options;
    words >> options.name >> options.bytes >> options.ddr_bytes_max;
    LeaseRequest request;
    request.bytes = options.bytes;
    auto lease = session_->grant(request);
    if (!lease.ok()) return named(lease.error());
    auto tiering = Tiering::start({.session = session_.get(), .round_ns = 50 * ns_per_ms});
    if (!tiering.ok()) return named(tiering.error());
    auto range = (*tiering)->make_range(options, {*lease});
    if (!range.ok()) return named(range.error());
    tiering_ = std::move(*tiering);
    range_ = std::move(*range);
    return tiering_->can_migrate() ? "migrates" : "stays";
  }
  // Writes to part of the range for a while: FIRST_BYTE BYTES SECONDS. Each word holds what was added to it.
  std::string hammer(std::istringstream& words) {
    size_t first = 0, bytes = 0;
    double seconds = 0;
    words >> first >> bytes >> seconds;
    if (range_ == nullptr) return "error no range";
    const std::span<std::byte> part = range_->bytes().subspan(first, bytes);
    constexpr size_t step = 4096;
    const auto word_at = [&](size_t at) { return reinterpret_cast<uint64_t*>(part.data() + at); };
    std::vector<uint64_t> expected;
    for (size_t at = 0; at < bytes; at += step) expected.push_back(*word_at(at));
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < end) {
      for (size_t at = 0; at < bytes; at += step) {
        ++*word_at(at);
        ++expected[at / step];
      }
    }
    for (size_t at = 0; at < bytes; at += step)
      if (*word_at(at) != expected[at / step]) return "lost a store";
    return "ok";
  }

  std::unique_ptr<Session> session_;
  std::shared_ptr<Lease> lease_;
  std::vector<std::shared_ptr<Lease>> held_;
  std::unique_ptr<Mapping> mapping_;
  std::vector<UniqueFd> pipes_;
  std::unique_ptr<Tiering> tiering_;
  std::unique_ptr<TieredRange> range_;
};

}  // namespace

int main(int argc, char** argv) {
  SessionOptions options;
  if (argc > 1) options.socket_path = argv[1];
  if (argc > 2) options.tenant = argv[2];
  auto session = Session::connect(options);
  if (!session.ok()) {
    say(named(session.error()));
    return 1;
  }
  Tenant tenant(std::move(*session));
  say("ready");
  for (std::string line; std::getline(std::cin, line);) say("= " + tenant.perform(line));
  return 0;
}
