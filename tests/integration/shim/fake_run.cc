// SPDX-License-Identifier: Apache-2.0
// `terrace run` over a FakeSession: the whole shim and supervisor without a daemon.
//   fake_run [--ddr S] [--cxl S] [--pool-size S] [--min-size N] [--mmap N] [--fallback] [--tick MS]
//            [--stats FILE] [--huge-leases] [--revokes] [--away-after MS] [--policy NAME] [--round MS]
//            [--copy-budget S] -- PROGRAM ARGUMENTS
// Exits as the program did; 99 when something leaked: a lease after all its users ended.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "allocator/supply/broker.h"
#include "allocator/supply/huge_file.h"
#include "cli/program/supervisor.h"
#include "cli/run/run_processes.h"
#include "tests/support/fake_session.h"

extern char** environ;

namespace {

using terrace::supply::Broker;
using terrace::supply::BrokerOptions;
using terrace::supply::RunStats;

uint64_t size_of(const std::string& text) {
  auto size = terrace::parse_size(text);
  if (!size.ok()) std::exit(2);
  return *size;
}

int supervise(const std::vector<std::string>& command, BrokerOptions options, uint64_t pool_bytes,
              const std::string& min_size, const std::string& mmap_from, const std::string& stats_file,
              int go_away_after_ms, bool huge_leases, bool revokes) {
  terrace::cli::Supervisor supervisor;
  terrace::test::FakeSession session(pool_bytes);
  if (huge_leases) session.make_leases_by(terrace::supply::make_huge_file);
  options.warn = [](const std::string& text) { std::fprintf(stderr, "fake_run: %s\n", text.c_str()); };
  auto broker = Broker::start(session, options);
  if (!broker.ok()) {
    std::fprintf(stderr, "fake_run: %s\n", broker.error().to_string().c_str());
    return 2;
  }
  std::vector<std::string> environment;
  for (char** at = environ; *at != nullptr; ++at) environment.emplace_back(*at);
  environment.emplace_back(std::string("LD_PRELOAD=") + std::getenv("TERRACE_MALLOC_LIBRARY"));
  environment.emplace_back("TERRACE_SUPPLY=" + (*broker)->socket_path());
  environment.emplace_back("TERRACE_MIN_SIZE=" + min_size);
  environment.emplace_back("TERRACE_MMAP=" + mmap_from);
  environment.emplace_back("TERRACE_SECCOMP_FILTERS=" + std::to_string(terrace::supply::seccomp_filters()));
  auto started = supervisor.start(command[0], command, environment);
  if (!started.ok()) {
    std::fprintf(stderr, "fake_run: %s\n", started.error().to_string().c_str());
    return 2;
  }
  // The program asks for it (SIGUSR1): all leases of this moment are taken back.
  const auto revoke = [&session] {
    for (uint64_t id = 1, last = session.grants().size(); id <= last; ++id)
      session.notify({.lease = terrace::LeaseId{id},
                      .state = terrace::LeaseState::revoking,
                      .grace_ns = 60 * terrace::ns_per_s,
                      .reason = "asked for"});
  };
  if (revokes) supervisor.on_ask(revoke);
  std::jthread leaver;
  if (go_away_after_ms > 0)
    leaver = std::jthread([&session, go_away_after_ms] {
      std::this_thread::sleep_for(std::chrono::milliseconds(go_away_after_ms));
      session.go_away(true);
    });
  uint64_t ddr_usage_max = 0, cxl_usage_max = 0, live_usage_max = 0;
  std::string holder;
  uint64_t moving_max = 0;
  std::jthread watcher([&](std::stop_token stop) {
    while (!stop.stop_requested()) {
      moving_max = std::max(moving_max, (*broker)->stats().totals.processes_moving);
      uint64_t ddr = 0, cxl = 0, live = 0;
      for (const auto& entry : session.usage()) {
        ddr += entry.second.ddr_bytes;
        cxl += entry.second.cxl_bytes;
        live += entry.second.live_bytes;
        holder = entry.second.holder;
      }
      ddr_usage_max = std::max(ddr_usage_max, ddr);
      cxl_usage_max = std::max(cxl_usage_max, cxl);
      live_usage_max = std::max(live_usage_max, live);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  terrace::cli::RunProcesses processes(**broker);
  int code = supervisor.wait(processes);
  watcher.request_stop();
  watcher.join();
  RunStats stats = (*broker)->stats();
  uint64_t ddr_used = stats.ddr_used;
  broker->reset();
  const auto& t = stats.totals;
  nlohmann::json document = {{"exit_code", code},
                             {"processes", t.processes},
                             {"peak_live_bytes", stats.peak_live_bytes},
                             {"live_bytes", t.live_ddr + t.live_cxl + t.live_detached},
                             {"allocations_ddr", t.allocations_ddr},
                             {"allocations_cxl", t.allocations_cxl},
                             {"allocations_detached", t.allocations_detached},
                             {"fallbacks", t.fallbacks},
                             {"refused", t.refused},
                             {"during_fork", t.during_fork},
                             {"forks_switched", t.forks_switched},
                             {"switched_bytes", t.switched_bytes},
                             {"forks_failed", t.forks_failed},
                             {"folded_bytes", t.folded_bytes},
                             {"folds", t.folds},
                             {"leases_left", t.leases_left},
                             {"left_bytes", t.left_bytes},
                             {"leases_granted", stats.leases_granted},
                             {"leases_released", stats.leases_released},
                             {"leased_bytes_peak", stats.leased_bytes_peak},
                             {"reported_ddr_max", ddr_usage_max},
                             {"reported_cxl_max", cxl_usage_max},
                             {"reported_live_max", live_usage_max},
                             {"reported_holder", holder},
                             {"promotions", t.promotions},
                             {"demotions", t.demotions},
                             {"moves_undone", t.moves_undone},
                             {"moves_skipped", t.moves_skipped},
                             {"stalled_ns", t.stalled_ns},
                             {"copy_ns", t.copy_ns},
                             {"processes_moved", t.processes_moved},
                             {"moving_max", moving_max},
                             {"ddr_used_at_end", ddr_used},
                             {"pool_free_at_end", session.free_bytes()}};
  if (!stats_file.empty()) std::ofstream(stats_file) << document.dump(1) << "\n";
  if (go_away_after_ms == 0 && session.free_bytes() != pool_bytes) {
    std::fprintf(stderr, "fake_run: %llu bytes of leases were never given back\n",
                 static_cast<unsigned long long>(pool_bytes - session.free_bytes()));
    return 99;
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  BrokerOptions options;
  options.ddr_bytes = 8 * terrace::mib;
  options.cxl_bytes = 512 * terrace::mib;
  options.label = "fake";
  options.tick_ns = 100 * terrace::ns_per_ms;
  uint64_t pool_bytes = 2 * terrace::gib;
  std::string min_size = "4096", mmap_from = "0", stats_file;
  int go_away_after_ms = 0;
  bool huge_leases = false, revokes = false;
  // The tests' parameter: the whole suite runs with and without migration.
  if (const char* policy = std::getenv("TERRACE_TEST_POLICY"); policy != nullptr)
    options.migration.policy = policy;
  if (const char* round = std::getenv("TERRACE_TEST_ROUND_MS"); round != nullptr)
    options.migration.round_ns = std::stoull(round) * terrace::ns_per_ms;
  std::vector<std::string> words(argv + 1, argv + argc), command;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") {
      command.assign(words.begin() + static_cast<long>(i) + 1, words.end());
      break;
    }
    if (word == "--huge-leases") {
      huge_leases = true;
      continue;
    }
    if (word == "--revokes") {
      revokes = true;
      continue;
    }
    if (word == "--fallback") {
      options.fallback = true;
      continue;
    }
    if (i + 1 == words.size()) return 2;
    const std::string& value = words[++i];
    if (word == "--ddr")
      options.ddr_bytes = size_of(value);
    else if (word == "--cxl")
      options.cxl_bytes = size_of(value);
    else if (word == "--pool-size")
      pool_bytes = size_of(value);
    else if (word == "--min-size")
      min_size = value;
    else if (word == "--mmap")
      mmap_from = std::to_string(size_of(value));
    else if (word == "--stats")
      stats_file = value;
    else if (word == "--tick")
      options.tick_ns = std::stoull(value) * terrace::ns_per_ms;
    else if (word == "--policy")
      options.migration.policy = value == "static" ? "" : value;
    else if (word == "--round")
      options.migration.round_ns = std::stoull(value) * terrace::ns_per_ms;
    else if (word == "--copy-budget")
      options.migration.copy_bytes_per_s = size_of(value);
    else if (word == "--away-after")
      go_away_after_ms = std::stoi(value);
    else
      return 2;
  }
  if (command.empty() || std::getenv("TERRACE_MALLOC_LIBRARY") == nullptr) return 2;
  return supervise(command, options, pool_bytes, min_size, mmap_from, stats_file, go_away_after_ms, huge_leases,
                   revokes);
}
