// A tenant that behaves: grants, stamps, renews, checks and releases at a steady pace, and says how long that
// took.
//
// Lines     {"grants", "failures", "grant_us": {"p50", "p99", "max"}, "renew_us": {...}} at the end; exit code
//           3 when its memory was not zero or lost its stamp
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
};

int start(const Options& options) {
  SessionOptions session_options;
  session_options.socket_path = options.socket;
  session_options.tenant = options.tenant;
  session_options.client_name = "latency_probe";
  Result<std::unique_ptr<Session>> session = Session::connect(session_options);
  if (!session.ok()) {
    say("refused connect " + session.error().to_string());
    return 5;
  }
  install_sigbus_guard();
  std::vector<double> grants, renewals;
  uint64_t failures = 0;
  std::string last;
  const auto end = Clock::now() + std::chrono::duration<double>(options.seconds);
  while (Clock::now() < end) {
    LeaseRequest request;
    request.pool = "v";
    request.bytes = 2 * mib;
    request.ttl_ns = 60 * ns_per_s;
    std::shared_ptr<Lease> lease;
    const auto grant = [&] {
      Result<std::shared_ptr<Lease>> granted = (*session)->grant(request);
      if (granted.ok()) lease = std::move(granted).value();
      if (!granted.ok()) last = granted.error().to_string();
      return granted.ok();
    };
    if (!timed(grants, grant)) {
      ++failures;
    } else {
      Result<std::unique_ptr<Mapping>> mapping = Mapping::map(lease);
      if (!mapping.ok()) {
        say("refused map " + mapping.error().to_string());
        return 3;
      }
      const std::span<std::byte> bytes = (*mapping)->bytes();
      if (first_nonzero(bytes) != bytes.size()) {
        say("breach: a new lease is not zero");
        return 3;
      }
      stamp(bytes, lease->id().value);
      if (!timed(renewals, [&] { return lease->renew().ok(); })) ++failures;
      if (first_unstamped(bytes, lease->id().value) != bytes.size()) {
        say("breach: somebody wrote to a lease that is held");
        return 3;
      }
      mapping->reset();
      if (!lease->release().ok()) ++failures;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(options.pause_ms));
  }
  say(nlohmann::json{{"failures", failures},
                     {"last_failure", last},
                     {"grant_us", quantiles(grants)},
                     {"renew_us", quantiles(renewals)}}
          .dump());
  return 0;
}

}  // namespace
}  // namespace terrace::test

int main(int argc, char** argv) {
  terrace::test::Options options;
  CLI::App app{"Measures grants and renewals of a tenant that behaves, in pool v."};
  app.add_option("--socket", options.socket)->required();
  app.add_option("--tenant", options.tenant);
  app.add_option("--seconds", options.seconds);
  app.add_option("--pause-ms", options.pause_ms);
  CLI11_PARSE(app, argc, argv);
  return terrace::test::start(options);
}
