// SPDX-License-Identifier: Apache-2.0
// A tenant that behaves: grants, stamps, renews, checks and releases at a steady pace, connects anew now and then, and
// says how long that took.
//
// Lines     {"failures", "grant_us": {"p50", "p99", "max", "count"}, "renew_us": {...}, "connect_us": {...}} at the end,
//           the last of a connection with its first grant; exit code 3 when its memory was not zero or lost its stamp
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "core/base/units.h"
#include "terrace/mapping.h"
#include "terrace/session.h"
#include "tests/support/holder.h"

namespace terrace::test {
namespace {

using Clock = std::chrono::steady_clock;

nlohmann::json quantiles(std::vector<double>& us) {
  if (us.empty()) return nullptr;
  std::sort(us.begin(), us.end());
  const auto at = [&us](double part) {
    return us[static_cast<size_t>(part * static_cast<double>(us.size() - 1))];
  };
  return {{"p50", at(0.5)}, {"p99", at(0.99)}, {"max", us.back()}, {"count", us.size()}};
}

template <typename Work>
bool timed(std::vector<double>& us, const Work& work) {
  const auto begin = Clock::now();
  const bool done = work();
  us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  return done;
}

struct Options {
  std::string socket, tenant = "victim";
  double seconds = 5;
  uint64_t pause_ms = 5;
  uint64_t connect_every = 2;
};

class Probe {
 public:
  explicit Probe(const Options& options) : options_(options) {}

  // Returns the exit code.
  int run() {
    std::unique_ptr<Session> session = connect();
    if (session == nullptr) {
      say("refused connect " + last_);
      return 5;
    }
    const auto end = Clock::now() + std::chrono::duration<double>(options_.seconds);
    for (uint64_t cycle = 0; Clock::now() < end; ++cycle) {
      if (options_.connect_every != 0 && cycle % options_.connect_every == 0 && !first_grant()) return 3;
      if (!steady_grant(*session)) return 3;
      std::this_thread::sleep_for(std::chrono::milliseconds(options_.pause_ms));
    }
    say(nlohmann::json{{"failures", failures_},
                       {"last_failure", last_},
                       {"connect_us", quantiles(connects_)},
                       {"grant_us", quantiles(grants_)},
                       {"renew_us", quantiles(renewals_)}}
            .dump());
    return 0;
  }

 private:
  std::unique_ptr<Session> connect() {
    SessionOptions options;
    options.socket_path = options_.socket;
    options.tenant = options_.tenant;
    options.client_name = "latency_probe";
    Result<std::unique_ptr<Session>> session = Session::connect(options);
    if (session.ok()) return std::move(session).value();
    last_ = session.error().to_string();
    return nullptr;
  }

  std::shared_ptr<Lease> grant(Session& session) {
    LeaseRequest request;
    request.pool = "v";
    request.bytes = 2 * mib;
    request.ttl_ns = 60 * ns_per_s;
    Result<std::shared_ptr<Lease>> granted = session.grant(request);
    if (granted.ok()) return std::move(granted).value();
    last_ = granted.error().to_string();
    return nullptr;
  }

  void counted(bool done) {
    if (!done) ++failures_;
  }

  // As a program that begins: a connection of its own, and its first lease.
  bool first_grant() {
    std::unique_ptr<Session> session;
    std::shared_ptr<Lease> lease;
    counted(timed(connects_, [&] {
      session = connect();
      if (session != nullptr) lease = grant(*session);
      return lease != nullptr;
    }));
    if (lease != nullptr) counted(lease->release().ok());
    return true;
  }

  // False: its memory was somebody else's.
  bool steady_grant(Session& session) {
    std::shared_ptr<Lease> lease;
    counted(timed(grants_, [&] { return (lease = grant(session)) != nullptr; }));
    if (lease == nullptr) return true;
    Result<std::unique_ptr<Mapping>> mapping = Mapping::map(lease);
    if (!mapping.ok()) {
      say("refused map " + mapping.error().to_string());
      return false;
    }
    const std::span<std::byte> bytes = (*mapping)->bytes();
    if (first_nonzero(bytes) != bytes.size()) {
      say("breach: a new lease is not zero");
      return false;
    }
    stamp(bytes, lease->id().value);
    counted(timed(renewals_, [&] { return lease->renew().ok(); }));
    if (first_unstamped(bytes, lease->id().value) != bytes.size()) {
      say("breach: somebody wrote to a lease that is held");
      return false;
    }
    mapping->reset();
    counted(lease->release().ok());
    return true;
  }

  const Options& options_;
  std::vector<double> connects_, grants_, renewals_;
  uint64_t failures_ = 0;
  std::string last_;
};

}  // namespace
}  // namespace terrace::test

int main(int argc, char** argv) {
  terrace::test::Options options;
  CLI::App app{"Measures grants and renewals of a tenant that behaves, in pool v."};
  app.add_option("--socket", options.socket)->required();
  app.add_option("--tenant", options.tenant);
  app.add_option("--seconds", options.seconds);
  app.add_option("--pause-ms", options.pause_ms);
  app.add_option("--connect-every", options.connect_every, "cycles between fresh connections; 0: none");
  CLI11_PARSE(app, argc, argv);
  terrace::test::install_sigbus_guard();
  return terrace::test::Probe(options).run();
}
