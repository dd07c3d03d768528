// SPDX-License-Identifier: Apache-2.0
// A tenant for the tests in guests: one Session, one lease, mapped through libpmem2. Reads a command a line
// from stdin and answers each with one line "= ..."; notices are printed as they come. Accesses to the lease
// survive its being taken away and say so: SIGBUS. An argument names the tenant for which it acts, where root may.
//
// Threads   The main thread, the Session's own for notices, and the one that `spin` starts.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>
#include <thread>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/base/units.h"
#include "terrace/mapping.h"
#include "terrace/session.h"
#include "tests/guest/page_pin.h"
#include "tests/support/holder.h"

namespace terrace::test {
namespace {

constexpr size_t map_align = 2 * mib;  // what a dax device asks of every mapping

std::string named(const Error& error) {
  return "error " + std::string(error_code_name(error.code));
}

// Bytes that depend on their place and on a seed, so that any of them, found anywhere, tells where it belongs.
std::byte pattern(uint64_t seed, uint64_t at) {
  uint64_t value = (at / 8 + 1) * 0x9e3779b97f4a7c15ull ^ seed * 0xbf58476d1ce4e5b9ull;
  value ^= value >> 31;
  return static_cast<std::byte>(value >> (at % 8 * 8));
}

class Tenant {
 public:
  explicit Tenant(std::unique_ptr<Session> session) : session_(std::move(session)) {
    session_->on_notice([](const LeaseNotice& notice) {
      const char* state = notice.state == LeaseState::live       ? "live"
                          : notice.state == LeaseState::revoking ? "revoking"
                                                                 : "lost";
      say(std::string("notice ") + (notice.move_requested ? "move" : state) + " " + notice.reason);
    });
  }
  ~Tenant() {
    stop_ = true;
    if (spinner_.joinable()) spinner_.join();
  }
  Tenant(const Tenant&) = delete;
  Tenant& operator=(const Tenant&) = delete;

  std::string perform(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "grant" || verb == "grant-kill") return grant(verb, words);
    if (verb == "attach") return attach(words, LeaseAccess::read_write);
    if (verb == "attach-read") return attach(words, LeaseAccess::read_only);
    if (verb == "remap-kept") return try_map(kept_.get());
    if (verb == "unpin") return pin_.empty_pipe();
    if (verb == "finish-write") return finish_write(words);
    if (verb == "reads") return pin_.reads();
    if (lease_ == nullptr) return "error no lease";
    if (verb == "object") return object();
    if (verb == "extents") return extents();
    if (verb == "state") return state();
    if (verb == "epoch") return std::to_string(lease_->epoch().value);
    if (verb == "renew") return outcome(lease_->renew());
    if (verb == "remap") return try_map(lease_->fd());
    if (verb == "try-write") return try_write();
    if (verb == "keep") return keep();
    if (verb == "granularity") return mapping_->store_granularity();
    if (verb == "nodes") return nodes();
    if (verb == "release") return release();
    if (verb == "spin") return spin();
    if (verb == "pin" || verb == "begin-write" || verb == "read-directly") return pin(verb, words);
    return bytes(verb, words);
  }

 private:
  static std::string outcome(const Status& status) { return status.ok() ? "ok" : named(status.error()); }

  std::string grant(const std::string& verb, std::istringstream& words) {
    LeaseRequest request;
    if (verb == "grant-kill") request.on_fence = OnFence::kill;
    words >> request.pool >> request.bytes >> request.label;
    request.detached = true;  // tests look at leases of tenants that they killed
    uint64_t ttl_s = 0;
    if (words >> ttl_s) request.ttl_ns = ttl_s * ns_per_s;
    return hold(session_->grant(request));
  }
  std::string attach(std::istringstream& words, LeaseAccess access) {
    uint64_t id = 0;
    words >> id;
    return hold(session_->attach(LeaseId{id}, "", access));
  }
  std::string hold(Result<std::shared_ptr<Lease>> lease) {
    if (!lease.ok()) return named(lease.error()) + " " + lease.error().detail;
    mapping_.reset();
    lease_ = std::move(*lease);
    auto mapping = Mapping::map(lease_);
    if (!mapping.ok()) return named(mapping.error()) + " " + mapping.error().detail;
    mapping_ = std::move(*mapping);
    return std::to_string(lease_->id().value) + " " + std::to_string(mapping_->const_bytes().size());
  }

  // What the descriptor is: "file BYTES" or "device MAJOR:MINOR".
  std::string object() const {
    struct stat status = {};
    if (::fstat(lease_->fd(), &status) != 0) return std::strerror(errno);
    if (S_ISCHR(status.st_mode))
      return "device " + std::to_string(major(status.st_rdev)) + ":" + std::to_string(minor(status.st_rdev));
    return "file " + std::to_string(status.st_size);
  }
  std::string extents() {
    const auto info = lease_->info();
    return info.ok() ? extents_text(*info) : named(info.error());
  }
  std::string state() const {
    const LeaseState state = lease_->state();
    return state == LeaseState::live ? "live" : state == LeaseState::revoking ? "revoking" : "lost";
  }
  std::string keep() {
    kept_ = UniqueFd(::fcntl(lease_->fd(), F_DUPFD_CLOEXEC, 0));
    return kept_.valid() ? "ok" : std::strerror(errno);
  }
  // A holder that goes on with the descriptor it has, past the library.
  static std::string try_map(int fd) {
    void* at = ::mmap(nullptr, map_align, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return strerrorname_np(errno);
    uint64_t value = 0;
    const bool there = touch([&] { value = *static_cast<volatile uint64_t*>(at); });
    ::munmap(at, map_align);
    return there ? "mapped" : "SIGBUS";
  }
  // A reader that would rather write: with a mapping of its own, and with the protection of one that it may
  // have.
  std::string try_write() const {
    void* at = ::mmap(nullptr, map_align, PROT_READ | PROT_WRITE, MAP_SHARED, lease_->fd(), 0);
    const std::string mapped = at == MAP_FAILED ? strerrorname_np(errno) : "mapped";
    if (at != MAP_FAILED) ::munmap(at, map_align);
    at = ::mmap(nullptr, map_align, PROT_READ, MAP_SHARED, lease_->fd(), 0);
    if (at == MAP_FAILED) return "error " + std::string(strerrorname_np(errno));
    const bool allowed = ::mprotect(at, map_align, PROT_READ | PROT_WRITE) == 0;
    const std::string changed = allowed ? "changed" : strerrorname_np(errno);
    ::munmap(at, map_align);
    return "write " + mapped + " protect " + changed;
  }
  std::string release() {
    mapping_.reset();
    const Status released = lease_->release();
    if (released.ok()) lease_.reset();
    return outcome(released);
  }

  // Where the pages of the mapping are: "NODE:PAGES,..."; pages that are not there count as the error.
  std::string nodes() {
    const std::span<const std::byte> bytes = mapping_->const_bytes();
    std::vector<void*> pages;
    for (size_t at = 0; at < bytes.size(); at += page_bytes)
      pages.push_back(const_cast<std::byte*>(&bytes[at]));
    std::vector<int> where(pages.size(), 0);
    if (::syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, where.data(), 0) != 0)
      return std::string("error ") + strerrorname_np(errno);
    std::map<int, size_t> count;
    for (const int node : where) ++count[node];
    std::string text;
    for (const auto& [node, number] : count) {
      if (!text.empty()) text += ',';
      text += (node < 0 ? strerrorname_np(-node) : std::to_string(node)) + ":" + std::to_string(number);
    }
    return text;
  }

  // pin OFFSET [PAGES] | begin-write OFFSET | read-directly OFFSET LENGTH PATH
  std::string pin(const std::string& verb, std::istringstream& words) {
    uint64_t offset = 0, length = PagePin::bytes;
    std::string path;
    words >> offset;
    if (verb == "read-directly") words >> length >> path;
    const std::span<std::byte> whole = mapping_->bytes();
    if (offset > whole.size() || length > whole.size() - offset) return "error range";
    if (verb == "pin") {
      uint64_t pages = 1;
      if (!(words >> pages)) pages = 1;
      return pages * PagePin::bytes > whole.size() - offset ? "error range"
                                                            : pin_.splice(&whole[offset], pages);
    }
    if (verb == "begin-write") return pin_.begin_write(&whole[offset]);
    return pin_.read_directly(path, &whole[offset], length);
  }
  std::string finish_write(std::istringstream& words) {
    int value = 0;
    words >> value;
    return pin_.finish_write(value);
  }

  // Reads and writes one word of every page, over and over, from a thread, until the memory is gone.
  std::string spin() {
    const std::span<std::byte> bytes = mapping_->bytes();
    spinner_ = std::thread([this, bytes] {
      std::atomic<uint64_t> passes{0};
      const bool survived = touch([&] {
        while (!stop_) {
          for (size_t at = 0; at < bytes.size(); at += page_bytes) {
            volatile auto* word = reinterpret_cast<volatile uint64_t*>(&bytes[at]);
            *word = *word;
          }
          ++passes;
        }
      });
      say((survived ? "notice stopped after " : "notice SIGBUS after ") + std::to_string(passes.load()));
    });
    return "ok";
  }

  std::string bytes(const std::string& verb, std::istringstream& words) {
    if (mapping_ == nullptr) return "error no mapping";
    const std::span<std::byte> whole = mapping_->bytes();
    uint64_t first = 0, second = 0, third = 0;
    words >> first >> second >> third;
    size_t at = 0;
    bool there = false;
    if (verb == "stamp") {
      there = touch([&] { stamp(whole, first); });
      if (there) mapping_->persist(whole);
      return there ? "ok" : "SIGBUS";
    }
    if (verb == "verify") {
      there = touch([&] { at = first_unstamped(whole, first); });
      return !there ? "SIGBUS" : at == whole.size() ? "intact" : "unstamped at " + std::to_string(at);
    }
    if (verb == "zeros") {
      there = touch([&] { at = first_nonzero(whole); });
      return !there ? "SIGBUS" : at == whole.size() ? "zeros" : "nonzero at " + std::to_string(at);
    }
    // fill | check OFFSET LENGTH SEED
    if (first > whole.size() || second > whole.size() - first) return "error range";
    const std::span<std::byte> range = whole.subspan(first, second);
    if (verb == "fill") {
      there = touch([&] {
        for (at = 0; at < range.size(); ++at) range[at] = pattern(third, at);
      });
      if (there) mapping_->persist(range);
      return there ? "ok" : "SIGBUS";
    }
    if (verb == "check") {
      there = touch([&] {
        for (at = 0; at < range.size() && range[at] == pattern(third, at);) ++at;
      });
      return !there ? "SIGBUS" : at == range.size() ? "same" : "differs at " + std::to_string(first + at);
    }
    return "error unknown command";
  }

  std::unique_ptr<Session> session_;
  std::shared_ptr<Lease> lease_;
  std::unique_ptr<Mapping> mapping_;
  UniqueFd kept_;
  std::atomic<bool> stop_{false};
  std::thread spinner_;
  PagePin pin_;
};

// `tenant` empty: the one of this uid.
int serve(const std::string& tenant_name) {
  install_sigbus_guard();
  SessionOptions options;
  options.tenant = tenant_name;
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

}  // namespace
}  // namespace terrace::test

int main(int count, char** words) {
  return terrace::test::serve(count > 1 ? words[1] : "");
}
