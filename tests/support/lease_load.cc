// SPDX-License-Identifier: Apache-2.0
// A tenant that never rests: grants, stamps, checks, renews and releases leases in a loop and says what the
// manager acknowledged, so that a driver can kill the manager at any moment and compare afterwards.
//
// One line an event, written before the next step:
//   granting                       a grant was asked for; until the next line its outcome is open
//   granted ID EPOCH BYTES [movable]   acknowledged; its memory read as zeros and now carries this lease's stamp
//   extents ID DEVICE:OFFSET:LENGTH,...
//   renewed ID · releasing ID · released ID
//   resizing ID · moving ID · transferring ID   with --mix all; until the next line about ID its outcome is open
//   changed ID EPOCH BYTES         ... acknowledged: the lease as it is now; the stamps of the rest are intact
//   notice ID revoking|lost|move   the manager took it back, or would like it elsewhere
//   lost ID                        dropped without a release of ours
//   refused OPERATION CODE [ID]    an error that changed nothing
//   unknown OPERATION [ID]         the manager did not answer within the call timeout
//   broken WHAT                    a promise was broken (memory not zero, a stamp gone); exit code 3
//   stopped OPERATIONS             the end, after SIGTERM or the asked number of operations
#include <signal.h>

#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "core/base/prng.h"
#include "core/base/units.h"
#include "terrace/mapping.h"
#include "terrace/session.h"
#include "tests/support/holder.h"

namespace terrace::test {
namespace {

std::atomic<bool> stop_asked{false};

struct Options {
  std::string socket, pool, tenant, label;
  std::string size_max = "8M", ttl = "120s", wait = "0s", mix = "churn", peer_tenant = "load-peer";
  uint64_t seed = 1, leases_max = 6, operations = 0, pause_ms = 0;
  bool release_at_end = false;
};

class Load {
 public:
  // `peer`: of the tenant that leases are handed to and come back from; null: none are.
  Load(const Options& options, std::unique_ptr<Session> session, std::unique_ptr<Session> peer,
       uint64_t size_max, uint64_t ttl_ns, uint64_t wait_ns)
      : options_(options),
        prng_(options.seed),
        size_max_(size_max),
        ttl_ns_(ttl_ns),
        wait_ns_(wait_ns),
        sessions_{std::move(session), std::move(peer)} {}

  int run() {
    for (const std::unique_ptr<Session>& session : sessions_)
      if (session != nullptr) session->on_notice([this](const LeaseNotice& notice) { hear(notice); });
    uint64_t operations = 0;
    while (!stop_asked && !broken_ && (options_.operations == 0 || operations < options_.operations)) {
      give_back_wanted();
      step();
      ++operations;
      if (options_.pause_ms != 0) std::this_thread::sleep_for(std::chrono::milliseconds(options_.pause_ms));
    }
    while (options_.release_at_end && !broken_ && !held_.empty()) release(held_.begin()->first);
    say("stopped " + std::to_string(operations));
    return broken_ ? 3 : 0;
  }

 private:
  struct Held {
    std::shared_ptr<Lease> lease;
    std::unique_ptr<Mapping> mapping;
    uint64_t owner = 0;  // what its pages are stamped with, for as long as it lives
    bool movable = false;
    size_t side = 0;  // whose it is: the session's index
  };

  void hear(const LeaseNotice& notice) {
    const char* what = notice.move_requested                  ? " move"
                       : notice.state == LeaseState::revoking ? " revoking"
                                                              : " lost";
    say("notice " + text(notice.lease) + what);
    const std::lock_guard<std::mutex> lock(mutex_);
    (notice.move_requested ? wanted_elsewhere_ : wanted_back_).insert(notice.lease);
  }

  void step() {
    const uint64_t dice = prng_.below(10);
    if (held_.empty() || (held_.size() < options_.leases_max && dice < 5)) return grant();
    auto at = held_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(prng_.below(held_.size())));
    if (sessions_[1] != nullptr && dice >= 3 && prng_.below(2) == 0) return change(at->first);
    if (dice < 7) return verify(at->first);
    if (dice < 8) return renew(at->first);
    release(at->first);
  }

  void change(LeaseId id) {
    const Held& held = held_.at(id);
    if (held.mapping == nullptr) return release(id);
    const uint64_t dice = prng_.below(held.movable ? 4 : 3);
    if (dice == 3) return move(id);
    if (dice == 2) return transfer(id);
    resize(id);
  }

  void grant() {
    LeaseRequest request;
    request.pool = options_.pool;
    request.bytes = prng_.between(1, size_max_);
    request.ttl_ns = ttl_ns_;
    request.detached = true;  // what was acknowledged is looked for when this process has ended
    request.movable = sessions_[1] != nullptr && prng_.below(2) == 0;
    if (prng_.below(2) == 0) request.wait_ns = wait_ns_;
    if (!options_.label.empty()) request.label = options_.label + '-' + std::to_string(++labels_);
    say("granting");
    Result<std::shared_ptr<Lease>> granted = sessions_[0]->grant(request);
    if (!granted.ok()) return report("grant", {}, granted.error());
    const std::shared_ptr<Lease> lease = std::move(granted).value();
    say("granted " + std::to_string(lease->id().value) + ' ' + std::to_string(lease->epoch().value) + ' ' +
        std::to_string(lease->bytes()) + (request.movable ? " movable" : ""));
    if (Result<LeaseInfo> info = lease->info(); info.ok())
      say("extents " + std::to_string(lease->id().value) + ' ' + extents_text(*info));
    Result<std::unique_ptr<Mapping>> mapping = Mapping::map(lease);
    if (!mapping.ok()) {  // it may have been revoked already; otherwise the driver sees a lease it expects
      report("map", lease->id(), mapping.error());
      held_[lease->id()] = Held{lease, nullptr, owner_of(*lease), request.movable, 0};
      return;
    }
    const uint64_t owner = owner_of(*lease);
    Held& held = held_[lease->id()] = Held{lease, std::move(mapping).value(), owner, request.movable, 0};
    const std::span<std::byte> bytes = held.mapping->bytes();
    size_t dirty = bytes.size();
    const bool survived = touch([&] {
      dirty = first_nonzero(bytes);
      stamp(bytes, owner);
    });
    if (survived && dirty != bytes.size())
      break_off("lease " + text(lease->id()) + " is not zero at " + text(dirty));
  }

  void verify(LeaseId id) {
    const Held& held = held_.at(id);
    if (held.mapping == nullptr) return;
    const std::span<std::byte> bytes = held.mapping->bytes();
    const uint64_t owner = held.owner;
    size_t wrong = bytes.size();
    const bool survived = touch([&] { wrong = first_unstamped(bytes, owner); });
    if (survived && wrong != bytes.size()) break_off("lease " + text(id) + " lost its stamp at " + text(wrong));
    if (!survived) {
      say("lost " + text(id));
      held_.erase(id);
    }
  }

  void renew(LeaseId id) {
    const Status status = held_.at(id).lease->renew(ttl_ns_);
    if (status.ok()) return say("renewed " + text(id));
    report("renew", id, status.error());
  }

  void release(LeaseId id) {
    verify(id);
    if (broken_ || !held_.contains(id)) return;
    const std::shared_ptr<Lease> lease = held_.at(id).lease;
    held_.erase(id);  // unmapped first, as the interface asks
    say("releasing " + text(id));
    const Status status = lease->release();
    if (status.ok()) return say("released " + text(id));
    report("release", id, status.error());
  }

  // Grows or shrinks it to anything up to the largest size.
  void resize(LeaseId id) {
    Held& held = held_.at(id);
    const std::shared_ptr<Lease> lease = held.lease;
    const uint64_t before = lease->bytes();
    say("resizing " + text(id));
    const Result<LeaseInfo> resized = lease->resize(prng_.between(1, size_max_));
    if (!resized.ok()) return report_change("resize", id, resized.error());
    changed(held, &*resized);
    if (const Result<Remapped> mapped = held.mapping->resize(); !mapped.ok()) {
      held.mapping.reset();
      return report("map", id, mapped.error());
    }
    const std::span<std::byte> bytes = held.mapping->bytes();
    if (bytes.size() > before && !take_over_tail(id, bytes, before)) return;
    verify(id);
  }

  // What was added must be nobody's bytes; it gets this lease's stamps.
  bool take_over_tail(LeaseId id, std::span<std::byte> bytes, uint64_t before) {
    const uint64_t owner = held_.at(id).owner;
    size_t dirty = bytes.size();
    size_t wrong = before;
    const bool survived = touch([&] {
      wrong = first_unstamped(bytes.first(before), owner);
      dirty = before + first_nonzero(bytes.subspan(before));
      if (wrong == before) stamp(bytes, owner);
    });
    if (survived && wrong != before)
      break_off("lease " + text(id) + " lost its stamp at " + text(wrong) + " when it grew");
    if (survived && dirty != bytes.size())
      break_off("lease " + text(id) + " grew by memory that is not zero at " + text(dirty));
    return survived && !broken_;
  }

  void move(LeaseId id) {
    Held& held = held_.at(id);
    if (held.mapping == nullptr) return;
    say("moving " + text(id));
    const Status moved = held.mapping->move([](const std::function<void()>& body) { body(); });
    if (!moved.ok()) return report_change("move", id, moved.error());
    changed(held, nullptr);
    verify(id);
  }

  // To the other tenant of this process, which attaches it and goes on.
  void transfer(LeaseId id) {
    Held& held = held_.at(id);
    Session& other = *sessions_[1 - held.side];
    held.mapping.reset();  // as the interface asks
    say("transferring " + text(id));
    const Status given = held.lease->transfer(other.tenant());
    if (!given.ok()) {
      report_change("transfer", id, given.error());
      if (!held_.contains(id)) return;
      return map_again(id);
    }
    held.side = 1 - held.side;
    Result<std::shared_ptr<Lease>> attached = other.attach(id, "", LeaseAccess::read_write);
    if (!attached.ok()) {
      report("attach", id, attached.error());
      held_.erase(id);
      return;
    }
    held.lease = std::move(attached).value();
    changed(held, nullptr);
    map_again(id);
  }

  void map_again(LeaseId id) {
    Held& held = held_.at(id);
    Result<std::unique_ptr<Mapping>> mapping = Mapping::map(held.lease);
    if (!mapping.ok()) return report("map", id, mapping.error());
    held.mapping = std::move(mapping).value();
    verify(id);
  }

  void changed(const Held& held, const LeaseInfo* known) {
    const LeaseId id = held.lease->id();
    say("changed " + text(id) + ' ' + std::to_string(held.lease->epoch().value) + ' ' +
        std::to_string(held.lease->bytes()));
    if (known != nullptr) return say("extents " + text(id) + ' ' + extents_text(*known));
    if (const Result<LeaseInfo> info = held.lease->info(); info.ok() && info->epoch == held.lease->epoch())
      say("extents " + text(id) + ' ' + extents_text(*info));
  }

  // Of a change whose outcome nobody knows the lease is given back: what it is now would be a guess.
  void report_change(const char* operation, LeaseId id, const Error& error) {
    if (error.code == ErrorCode::cancelled)
      return say("refused " + std::string(operation) + " cancelled " + text(id) + " : " + error.to_string());
    report(operation, id, error);
    if (error.code != ErrorCode::unavailable || !held_.contains(id)) return;
    held_.at(id).mapping.reset();
    release(id);
  }

  void give_back_wanted() {
    std::set<LeaseId> elsewhere;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      elsewhere.swap(wanted_elsewhere_);
    }
    for (const LeaseId id : elsewhere)
      if (held_.contains(id) && !broken_) move(id);
    std::set<LeaseId> wanted;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      wanted.swap(wanted_back_);
    }
    for (const LeaseId id : wanted)
      if (held_.contains(id)) release(id);
  }

  void report(const char* operation, LeaseId id, const Error& error) {
    const std::string suffix = id.valid() ? ' ' + text(id) : std::string();
    switch (error.code) {
      case ErrorCode::unavailable:
      case ErrorCode::cancelled: say("unknown " + std::string(operation) + suffix); break;
      case ErrorCode::lease_expired:
      case ErrorCode::lease_revoked:
      case ErrorCode::not_found:
        say("lost" + suffix);
        held_.erase(id);
        break;
      default:
        say("refused " + std::string(operation) + ' ' + std::string(error_code_name(error.code)) + suffix +
            " : " + error.to_string());
    }
  }

  void break_off(const std::string& what) {
    say("broken " + what);
    broken_ = true;
  }

  static uint64_t owner_of(const Lease& lease) { return lease.id().value * 1'000'003 + lease.epoch().value; }
  static std::string text(LeaseId id) { return std::to_string(id.value); }
  static std::string text(size_t number) { return std::to_string(number); }

  const Options& options_;
  std::map<LeaseId, Held> held_;
  Prng prng_;
  uint64_t size_max_;
  uint64_t ttl_ns_;
  uint64_t wait_ns_;
  uint64_t labels_ = 0;
  bool broken_ = false;
  std::mutex mutex_;  // guards the two sets
  std::set<LeaseId> wanted_back_, wanted_elsewhere_;
  // Last, so that they go first: their threads call the handler until then.
  std::array<std::unique_ptr<Session>, 2> sessions_;
};

int start(const Options& options) {
  const Result<uint64_t> size_max = parse_size(options.size_max);
  const Result<uint64_t> ttl_ns = parse_duration(options.ttl);
  const Result<uint64_t> wait_ns = parse_duration(options.wait);
  if (!size_max.ok() || !ttl_ns.ok() || !wait_ns.ok()) {
    say("refused options: --size-max, --ttl or --wait is none");
    return 2;
  }
  ::signal(SIGTERM, [](int) { stop_asked = true; });
  ::signal(SIGINT, [](int) { stop_asked = true; });
  install_sigbus_guard();
  SessionOptions session_options;
  session_options.socket_path = options.socket;
  session_options.tenant = options.tenant;
  session_options.client_name = "lease_load";
  Result<std::unique_ptr<Session>> session = Session::connect(session_options);
  if (!session.ok()) {
    say("refused connect " + session.error().to_string());
    return 5;
  }
  std::unique_ptr<Session> peer;
  if (options.mix == "all") {
    session_options.tenant = options.peer_tenant;
    Result<std::unique_ptr<Session>> second = Session::connect(session_options);
    if (!second.ok()) {
      say("refused connect " + second.error().to_string());
      return 5;
    }
    peer = std::move(second).value();
  }
  return Load(options, std::move(session).value(), std::move(peer), *size_max, *ttl_ns, *wait_ns).run();
}

}  // namespace
}  // namespace terrace::test

int main(int argc, char** argv) {
  terrace::test::Options options;
  CLI::App app{"Grants, checks, renews and releases leases in a loop, and says what was acknowledged."};
  app.add_option("--socket", options.socket, "the manager's socket (default: as for terrace)");
  app.add_option("--pool", options.pool, "default: the only one");
  app.add_option("--tenant", options.tenant);
  app.add_option("--label", options.label, "label leases LABEL-1, LABEL-2, ...");
  app.add_option("--size-max", options.size_max, "of one lease");
  app.add_option("--ttl", options.ttl, "of each lease");
  app.add_option("--wait", options.wait, "how long every second grant may wait in the queue of a full pool");
  app.add_option("--mix", options.mix, "churn: grant, renew, release; all: resize, move and transfer as well")
      ->check(CLI::IsMember({"churn", "all"}));
  app.add_option("--peer-tenant", options.peer_tenant, "whom leases are handed to and come back from");
  app.add_option("--seed", options.seed);
  app.add_option("--leases-max", options.leases_max, "held at once");
  app.add_option("--operations", options.operations, "stop after this many; 0: at SIGTERM");
  app.add_option("--pause-ms", options.pause_ms, "rest between two operations");
  app.add_flag("--release-at-end", options.release_at_end);
  CLI11_PARSE(app, argc, argv);
  return terrace::test::start(options);
}
