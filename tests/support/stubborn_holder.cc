// SPDX-License-Identifier: Apache-2.0
// A tenant that ignores every notice: it takes a lease, fills it and goes on reading and writing until the
// memory is taken from under it. With --expect-zeros it takes a lease, checks that no byte of an earlier
// holder is left, and gives it back. With --leave it stamps the pages of a lease and ends, and with --verify ID
// it looks whether they still carry those stamps.
//
// Lines     holding ID EPOCH BYTES DEVICE:OFFSET:LENGTH,...   the lease, filled with 0xa5
//           notice revoking|lost REASON                       told, and ignored
//           SIGBUS at BYTE after PASSES passes                then exit code 42
//           zeros BYTES | nonzero at BYTE                     with --expect-zeros; exit code 0 or 3
//           intact ID EPOCH BYTES | unstamped at BYTE         with --verify; exit code 0 or 3
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/base/units.h"
#include "terrace/mapping.h"
#include "terrace/session.h"
#include "tests/support/holder.h"

namespace terrace::test {
namespace {

constexpr int exit_dirty = 3;
constexpr int exit_sigbus = 42;
constexpr std::byte fill{0xa5};

struct Options {
  std::string socket, pool, tenant, label, size = "64M", ttl = "60s";
  bool expect_zeros = false, leave = false, persistent = false, movable = false, on_fence_kill = false;
  uint64_t verify = 0;
};

int expect_zeros(const std::shared_ptr<Lease>& lease, std::unique_ptr<Mapping> mapping) {
  const std::span<const std::byte> bytes = mapping->const_bytes();
  const size_t nonzero = first_nonzero(bytes);
  const size_t size = bytes.size();
  mapping.reset();
  if (const Status status = lease->release(); !status.ok()) {
    say("refused release " + status.error().to_string());
    return 1;
  }
  say(nonzero == size ? "zeros " + std::to_string(size) : "nonzero at " + std::to_string(nonzero));
  return nonzero == size ? 0 : exit_dirty;
}

// Reads and writes all of it, over and over, until the kernel says no.
int hold(std::span<std::byte> bytes) {
  std::atomic<size_t> at{0};
  std::atomic<uint64_t> passes{0};
  std::atomic<bool> changed{false};
  install_sigbus_guard();
  const bool survived = touch([&] {
    while (!changed) {
      for (size_t page = 0; page < bytes.size(); page += page_bytes) {
        at.store(page, std::memory_order_relaxed);
        volatile std::byte* cell = &bytes[page];
        if (*cell != fill) changed = true;
        *cell = fill;
      }
      passes.fetch_add(1, std::memory_order_relaxed);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  if (survived) {
    say("changed at " + std::to_string(at) + ": somebody else wrote to a lease that is held");
    return exit_dirty;
  }
  say("SIGBUS at " + std::to_string(at) + " after " + std::to_string(passes) + " passes");
  return exit_sigbus;
}

int verify(Session& session, LeaseId id) {
  const Result<std::shared_ptr<Lease>> lease = session.attach(id, "", LeaseAccess::read_only);
  if (!lease.ok()) {
    say("refused attach " + lease.error().to_string());
    return 4;
  }
  const Result<std::unique_ptr<Mapping>> mapping = Mapping::map(*lease);
  if (!mapping.ok()) {
    say("refused map " + mapping.error().to_string());
    return 1;
  }
  const std::span<const std::byte> bytes = (*mapping)->const_bytes();
  size_t wrong = 0;
  install_sigbus_guard();
  const bool survived = touch([&] { wrong = first_unstamped(bytes, id.value); });
  if (survived && wrong == bytes.size()) {
    say("intact " + std::to_string(id.value) + ' ' + std::to_string((*lease)->epoch().value) + ' ' +
        std::to_string(bytes.size()));
    return 0;
  }
  say(survived ? "unstamped at " + std::to_string(wrong) : "the memory is gone");
  return exit_dirty;
}

int start(const Options& options) {
  const Result<uint64_t> bytes = parse_size(options.size);
  const Result<uint64_t> ttl_ns = parse_duration(options.ttl);
  if (!bytes.ok() || !ttl_ns.ok()) {
    say("refused options " + (bytes.ok() ? ttl_ns.error() : bytes.error()).to_string());
    return 2;
  }
  SessionOptions session_options;
  session_options.socket_path = options.socket;
  session_options.tenant = options.tenant;
  session_options.client_name = "stubborn_holder";
  Result<std::unique_ptr<Session>> session = Session::connect(session_options);
  if (!session.ok()) {
    say("refused connect " + session.error().to_string());
    return 5;
  }
  (*session)->on_notice([](const LeaseNotice& notice) {
    say(std::string("notice ") + (notice.state == LeaseState::revoking ? "revoking " : "lost ") +
        notice.reason);
  });
  if (options.verify != 0) return verify(**session, LeaseId{options.verify});
  LeaseRequest request;
  request.pool = options.pool;
  request.bytes = *bytes;
  request.ttl_ns = options.persistent ? 0 : *ttl_ns;
  request.persistent = options.persistent;
  request.movable = options.movable;
  if (options.on_fence_kill) request.on_fence = OnFence::kill;
  request.label = options.label;
  request.detached = options.leave;
  Result<std::shared_ptr<Lease>> granted = (*session)->grant(request);
  if (!granted.ok()) {
    say("refused grant " + granted.error().to_string());
    return 4;
  }
  const std::shared_ptr<Lease> lease = std::move(granted).value();
  const Result<LeaseInfo> info = lease->info();
  Result<std::unique_ptr<Mapping>> mapping = Mapping::map(lease);
  if (!info.ok() || !mapping.ok()) {
    say("refused map " + (info.ok() ? mapping.error() : info.error()).to_string());
    return 1;
  }
  if (options.leave) {
    stamp((*mapping)->bytes(), lease->id().value);
  } else if (!options.expect_zeros) {
    const std::span<std::byte> memory = (*mapping)->bytes();
    std::memset(memory.data(), static_cast<int>(fill), memory.size());
  }
  say("holding " + std::to_string(lease->id().value) + ' ' + std::to_string(lease->epoch().value) + ' ' +
      std::to_string(lease->bytes()) + ' ' + extents_text(*info));
  if (options.expect_zeros) return expect_zeros(lease, std::move(mapping).value());
  if (options.leave) return 0;
  return hold((*mapping)->bytes());
}

}  // namespace
}  // namespace terrace::test

int main(int argc, char** argv) {
  terrace::test::Options options;
  CLI::App app{"Holds a lease and ignores every notice, until SIGBUS (exit code 42)."};
  app.add_option("--socket", options.socket, "the manager's socket (default: as for terrace)");
  app.add_option("--pool", options.pool, "default: the only one");
  app.add_option("--tenant", options.tenant);
  app.add_option("--label", options.label);
  app.add_option("--size", options.size);
  app.add_option("--ttl", options.ttl);
  app.add_flag("--expect-zeros", options.expect_zeros,
               "check that the memory is all zeros, release it, and end");
  app.add_flag("--leave", options.leave, "stamp the memory and end; the lease stays")
      ->excludes("--expect-zeros");
  app.add_option("--verify", options.verify, "the ID of a lease that --leave stamped");
  app.add_flag("--persistent", options.persistent);
  app.add_flag("--movable", options.movable);
  app.add_flag("--on-fence-kill", options.on_fence_kill, "holders are ended before the memory is taken");
  CLI11_PARSE(app, argc, argv);
  return terrace::test::start(options);
}
