// SPDX-License-Identifier: Apache-2.0
// What the pool manager costs: grants and releases with state on a disk and in memory, latency over an empty
// RPC, a hundred thousand live leases, a scrape of them, renewals, a restart, scrubbing.
//
//   bench_lease [--smoke] [--json FILE] [--dir DIRECTORY] [--memory-dir DIRECTORY] [--seconds S] [--only GROUP]
//
// A pair is a grant of 2 MiB, its descriptor received and mapped, and the release: two commits, each one
// fdatasync when nobody else commits at the same moment. `fdatasync_per_s` is measured in the same rounds on
// the same disk into a file of the kind that the manager's journal is (written before, not growing), so that
// `..._1_over_allowed` is pairs over half of it. Clients are connections of one process with one event loop;
// each does one thing at a time.
#include <fcntl.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/lease/client.h"
#include "bench/lease/manager.h"
#include "bench/lease/scrape.h"
#include "bench/lease/scrub.h"
#include "core/base/unique_fd.h"
#include "core/base/units.h"

using namespace terrace;
using namespace terrace::bench;
using Clock = std::chrono::steady_clock;

namespace {

struct Settings {
  bool smoke = false;
  double seconds = 2;
  int rounds = 5;
  std::string disk, memory;
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

double percentile(std::vector<double>& values, double share) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

double fdatasyncs_per_s(const std::string& directory, double seconds) {
  const std::string path = directory + "/probe";
  const UniqueFd file(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  if (!file.valid()) die("cannot write in " + directory);
  constexpr size_t file_bytes = 8 << 20;
  const std::vector<char> zeros(file_bytes, '\0');
  if (::pwrite(file.get(), zeros.data(), file_bytes, 0) < 0 || ::fsync(file.get()) != 0) die("fsync failed");
  const auto begin = Clock::now();
  uint64_t count = 0;
  while (seconds_since(begin) < seconds) {
    const auto at = static_cast<off_t>(count * 512 % file_bytes);
    if (::pwrite(file.get(), zeros.data(), 512, at) < 0 || ::fdatasync(file.get()) != 0)
      die("fdatasync failed");
    ++count;
  }
  ::unlink(path.c_str());
  return static_cast<double>(count) / seconds_since(begin);
}

// --- pairs --------------------------------------------------------------------------------------------

struct PairRun {
  Clock::time_point begin;
  double seconds;
  bool touch;
  uint64_t pairs = 0;
};

kj::Promise<void> pair_after_pair(Client& client, PairRun& run) {
  if (seconds_since(run.begin) >= run.seconds) return kj::READY_NOW;
  return client.grant(60 * ns_per_s, true, run.touch)
      .then([&client](Client::Granted granted) { return client.release(kj::mv(granted)); })
      .then([&client, &run] {
        ++run.pairs;
        return pair_after_pair(client, run);
      });
}

double pairs_per_s(const std::string& socket, int clients, double seconds, bool touch = false) {
  Loop loop;
  std::vector<std::unique_ptr<Client>> all;
  for (int i = 0; i < clients; ++i) {
    all.push_back(std::make_unique<Client>(loop, socket));
    all.back()->open_session();
  }
  PairRun run{Clock::now(), seconds, touch, 0};
  kj::Vector<kj::Promise<void>> promises;
  for (const auto& client : all) promises.add(pair_after_pair(*client, run));
  kj::joinPromises(promises.releaseAsArray()).wait(loop.io.waitScope);
  return static_cast<double>(run.pairs) / seconds_since(run.begin);
}

void measure_durable(const Settings& settings, nlohmann::json& figures) {
  const ScratchDirectory scratch(settings.disk);
  std::vector<double> syncs, ones, fours, many, ratio_one, ratio_many;
  Manager manager({scratch.path(), scratch.path() + "/state", 512 * mib});
  for (int round = 0; round < settings.rounds; ++round) {  // in turn, so that a drifting disk touches all alike
    syncs.push_back(fdatasyncs_per_s(scratch.path(), settings.seconds));
    ones.push_back(pairs_per_s(manager.socket(), 1, settings.seconds));
    fours.push_back(pairs_per_s(manager.socket(), 4, settings.seconds));
    many.push_back(pairs_per_s(manager.socket(), 64, settings.seconds));
    ratio_one.push_back(ones.back() / (syncs.back() / 2));
    ratio_many.push_back(many.back() / ones.back());
  }
  figures["fdatasync_per_s"] = median(syncs);
  figures["grant_release_durable_pairs_per_s_1"] = median(ones);
  figures["grant_release_durable_pairs_per_s_4"] = median(fours);
  figures["grant_release_durable_pairs_per_s_64"] = median(many);
  figures["grant_release_durable_1_over_allowed"] = median(ratio_one);
  figures["grant_release_durable_64_over_1"] = median(ratio_many);
}

// --- latency ------------------------------------------------------------------------------------------

std::vector<double> echo_us(const std::string& socket, int calls) {
  Loop loop;
  Client client(loop, socket);
  std::vector<double> times;
  for (int i = 0; i < calls; ++i) {
    const auto begin = Clock::now();
    client.echo().wait(loop.io.waitScope);
    times.push_back(seconds_since(begin) * 1e6);
  }
  return times;
}

std::vector<double> grant_us(const std::string& socket, int calls) {
  Loop loop;
  Client client(loop, socket);
  client.open_session();
  std::vector<double> times;
  for (int i = 0; i < calls; ++i) {
    const auto begin = Clock::now();
    auto granted = client.grant(60 * ns_per_s, false).wait(loop.io.waitScope);
    times.push_back(seconds_since(begin) * 1e6);
    client.release(kj::mv(granted)).wait(loop.io.waitScope);
  }
  return times;
}

void measure_memory(const Settings& settings, nlohmann::json& figures) {
  const ScratchDirectory scratch(settings.memory);
  const EchoServer echo(scratch.path());
  std::vector<double> ones, fours, touched, ratios, echoes, grants;
  Manager manager({scratch.path(), scratch.path() + "/state", 512 * mib});
  const int calls = settings.smoke ? 300 : 5000;
  for (int round = 0; round < settings.rounds; ++round) {
    ones.push_back(pairs_per_s(manager.socket(), 1, settings.seconds));
    fours.push_back(pairs_per_s(manager.socket(), 4, settings.seconds));
    touched.push_back(pairs_per_s(manager.socket(), 1, settings.seconds, true));
    auto empty = echo_us(echo.socket(), calls);
    auto granted = grant_us(manager.socket(), calls);
    echoes.push_back(percentile(empty, 0.5));
    grants.push_back(percentile(granted, 0.5));
    ratios.push_back(grants.back() / echoes.back());
  }
  figures["grant_release_tmpfs_pairs_per_s_1"] = median(ones);
  figures["grant_release_tmpfs_pairs_per_s_4"] = median(fours);
  figures["grant_release_tmpfs_touched_pairs_per_s_1"] = median(touched);
  figures["rpc_echo_us_p50"] = median(echoes);
  figures["grant_us_p50"] = median(grants);
  figures["grant_us_p50_over_rpc_echo"] = median(ratios);
}

// --- scale --------------------------------------------------------------------------------------------

// Grants until `count` leases are alive, 64 at a time.
void fill(const std::string& socket, uint64_t count) {
  Loop loop;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 16; ++i) {
    clients.push_back(std::make_unique<Client>(loop, socket));
    clients.back()->open_session();
  }
  for (uint64_t done = 0; done < count;) {
    kj::Vector<kj::Promise<void>> promises;
    for (const auto& client : clients) {
      for (int i = 0; i < 4 && done < count; ++i, ++done)
        promises.add(client->grant(86'400 * ns_per_s, false).ignoreResult());
    }
    kj::joinPromises(promises.releaseAsArray()).wait(loop.io.waitScope);
  }
}

void measure_scale(const Settings& settings, nlohmann::json& figures) {
  const uint64_t few = settings.smoke ? 100 : 1000, many = settings.smoke ? 2000 : 100'000;
  const ScratchDirectory scratch(settings.memory);
  Manager manager({scratch.path(), scratch.path() + "/state", (many + 64) * 2 * mib, true});
  const int calls = settings.smoke ? 200 : 4000;
  const int rounds = settings.smoke ? 1 : 3;
  const uint64_t rss_empty = manager.rss_bytes();
  fill(manager.socket(), few);
  std::vector<double> at_few, at_many, restarts;
  for (int i = 0; i < rounds; ++i) {
    auto times = grant_us(manager.socket(), calls);
    at_few.push_back(percentile(times, 0.5));
  }
  fill(manager.socket(), many - few);
  for (int i = 0; i < rounds; ++i) {
    auto times = grant_us(manager.socket(), calls);
    at_many.push_back(percentile(times, 0.5));
  }
  measure_scrape(manager, settings.smoke, figures);
  const uint64_t rss_full = manager.rss_bytes();
  for (int i = 0; i < rounds; ++i) restarts.push_back(manager.restart());
  figures["leases_live"] = many;
  figures["grant_us_p50_at_1k"] = median(at_few);
  figures["grant_us_p50_at_100k"] = median(at_many);
  figures["grant_us_p50_at_100k_over_1k"] = median(at_many) / median(at_few);
  figures["rss_bytes_per_lease_at_100k"] =
      static_cast<double>(rss_full - rss_empty) / static_cast<double>(many);
  figures["rss_after_restart_bytes_per_lease"] =
      (static_cast<double>(manager.rss_bytes()) - static_cast<double>(rss_empty)) / static_cast<double>(many);
  figures["restart_s_at_100k"] = median(restarts);
}

// --- renewals -----------------------------------------------------------------------------------------

struct Renewer {
  std::unique_ptr<Client> client;
  std::vector<uint64_t> leases;
};

struct RenewRun {
  Clock::time_point begin;
  double seconds;
  uint64_t renewals = 0;
  std::vector<double> times_us;
};

kj::Promise<void> renew_again(Renewer& renewer, RenewRun& run) {
  if (seconds_since(run.begin) >= run.seconds) return kj::READY_NOW;
  const auto sent = Clock::now();
  return renewer.client->renew(renewer.leases).then([&renewer, &run, sent] {
    run.times_us.push_back(seconds_since(sent) * 1e6);
    run.renewals += renewer.leases.size();
    return renew_again(renewer, run);
  });
}

RenewRun renewals(Loop& loop, std::vector<Renewer>& renewers, double seconds) {
  RenewRun run{Clock::now(), seconds, 0, {}};
  kj::Vector<kj::Promise<void>> promises;
  for (Renewer& renewer : renewers) promises.add(renew_again(renewer, run));
  kj::joinPromises(promises.releaseAsArray()).wait(loop.io.waitScope);
  run.seconds = seconds_since(run.begin);
  return run;
}

// Each client renews all its leases in one call, as libterrace's Session does; then each a single one.
void measure_renewals(const Settings& settings, nlohmann::json& figures) {
  const int clients = settings.smoke ? 50 : 1000;
  constexpr int leases_each = 10;
  const ScratchDirectory scratch(settings.memory);
  Manager manager({scratch.path(), scratch.path() + "/state",
                   static_cast<uint64_t>(clients) * leases_each * 2 * mib, true});
  Loop loop;
  std::vector<Renewer> renewers(static_cast<size_t>(clients));
  for (Renewer& renewer : renewers) {
    renewer.client = std::make_unique<Client>(loop, manager.socket());
    renewer.client->open_session();
    for (int i = 0; i < leases_each; ++i)
      renewer.leases.push_back(renewer.client->grant(3600 * ns_per_s, false).wait(loop.io.waitScope).id);
  }
  std::vector<double> rates, p99, single_rates, single_p99;
  for (int round = 0; round < settings.rounds; ++round) {
    RenewRun run = renewals(loop, renewers, settings.seconds);
    rates.push_back(static_cast<double>(run.renewals) / run.seconds);
    p99.push_back(percentile(run.times_us, 0.99));
  }
  for (Renewer& renewer : renewers) renewer.leases.resize(1);
  for (int round = 0; round < settings.rounds; ++round) {
    RenewRun run = renewals(loop, renewers, settings.seconds);
    single_rates.push_back(static_cast<double>(run.renewals) / run.seconds);
    single_p99.push_back(percentile(run.times_us, 0.99));
  }
  figures["renewals_per_s"] = median(rates);
  figures["renewal_call_us_p99"] = median(p99);
  figures["renewals_single_per_s"] = median(single_rates);
  figures["renewal_single_us_p99"] = median(single_p99);
  figures["renewing_clients"] = clients;
  figures["leases_per_renewing_client"] = leases_each;
}

// --- a rack -------------------------------------------------------------------------------------------
// Hosts whose leases have a TTL of a minute, each of which renews all it has in one call every 20 s.

kj::Promise<void> grant_all(Renewer& renewer, size_t count) {
  if (renewer.leases.size() == count) return kj::READY_NOW;
  return renewer.client->grant(3600 * ns_per_s, false).then([&renewer, count](auto granted) {
    renewer.leases.push_back(granted.id);
    return grant_all(renewer, count);
  });
}

// Calls at their times, however long the ones before took: what waits counts as waiting.
kj::Promise<void> renew_on_time(kj::Timer& timer, Renewer& renewer, RenewRun& run, kj::TimePoint due,
                                kj::Duration period, int calls) {
  if (calls == 0) return kj::READY_NOW;
  return timer.atTime(due).then([&timer, &renewer, &run, due, period, calls] {
    const kj::Duration late = kj::systemPreciseMonotonicClock().now() - due;
    const auto sent = Clock::now();
    return renewer.client->renew(renewer.leases).then([&timer, &renewer, &run, due, period, calls, sent, late] {
      run.times_us.push_back(seconds_since(sent) * 1e6 + static_cast<double>(late / kj::MICROSECONDS));
      run.renewals += renewer.leases.size();
      return renew_on_time(timer, renewer, run, due + period, period, calls - 1);
    });
  });
}

void measure_rack(const Settings& settings, nlohmann::json& figures) {
  const size_t hosts = settings.smoke ? 20 : 1000, leases_each = settings.smoke ? 20 : 1000;
  const kj::Duration period = (settings.smoke ? 1 : 20) * kj::SECONDS;
  const int periods = settings.smoke ? 1 : 3;
  const ScratchDirectory scratch(settings.memory);
  Manager manager({scratch.path(), scratch.path() + "/state", (hosts * leases_each + 64) * 2 * mib, true});
  Loop loop;
  std::vector<Renewer> renewers(hosts);
  kj::Vector<kj::Promise<void>> grants;
  for (Renewer& renewer : renewers) {
    renewer.client = std::make_unique<Client>(loop, manager.socket());
    renewer.client->open_session();
    grants.add(grant_all(renewer, leases_each));
  }
  kj::joinPromises(grants.releaseAsArray()).wait(loop.io.waitScope);

  RenewRun run{Clock::now(), 0, 0, {}};
  kj::Timer& timer = loop.io.provider->getTimer();
  const kj::TimePoint begin = kj::systemPreciseMonotonicClock().now() + 100 * kj::MILLISECONDS;
  const double cpu_before = manager.cpu_seconds();
  kj::Vector<kj::Promise<void>> promises;
  for (size_t i = 0; i < hosts; ++i)
    promises.add(renew_on_time(timer, renewers[i], run, begin + period * i / hosts, period, periods));
  kj::joinPromises(promises.releaseAsArray()).wait(loop.io.waitScope);
  run.seconds = seconds_since(run.begin);
  figures["rack_hosts"] = hosts;
  figures["rack_leases_per_host"] = leases_each;
  figures["rack_renewals_per_s"] = static_cast<double>(run.renewals) / run.seconds;
  figures["rack_manager_core_pct"] = 100 * (manager.cpu_seconds() - cpu_before) / run.seconds;
  figures["rack_renew_call_us_p50"] = percentile(run.times_us, 0.5);
  figures["rack_renew_call_us_p99"] = percentile(run.times_us, 0.99);
}

bool in_memory(const std::string& directory) {
  struct statfs info {};
  constexpr long tmpfs_magic = 0x01021994;
  return ::statfs(directory.c_str(), &info) == 0 && info.f_type == tmpfs_magic;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  std::string json_file, only;
  settings.disk = std::filesystem::temp_directory_path().string();
  settings.memory = "/dev/shm";
  CLI::App app{"What the pool manager costs, over what the disk, the memory and an empty RPC allow."};
  app.add_flag("--smoke", settings.smoke, "a run short enough for the test suite");
  app.add_option("--json", json_file, "write the figures there");
  app.add_option("--dir", settings.disk, "a directory on the disk to measure");
  app.add_option("--memory-dir", settings.memory, "a directory on a memory file system");
  app.add_option("--seconds", settings.seconds, "of each measurement");
  app.add_option("--only", only, "one group: durable, memory, scale, renewals, rack or scrub");
  CLI11_PARSE(app, argc, argv);
  if (settings.smoke) {
    settings.seconds = 0.2;
    settings.rounds = 1;
  }
  if (!in_memory(settings.memory)) die(settings.memory + " is no tmpfs; name one with --memory-dir");

  nlohmann::json figures{{"rounds", settings.rounds}};
  if (only.empty() || only == "durable") measure_durable(settings, figures);
  if (only.empty() || only == "memory") measure_memory(settings, figures);
  if (only.empty() || only == "scale") measure_scale(settings, figures);
  if (only.empty() || only == "renewals") measure_renewals(settings, figures);
  if (only.empty() || only == "rack") measure_rack(settings, figures);
  if (only.empty() || only == "scrub") measure_scrub(settings.smoke, settings.memory, figures);
  std::printf("%s\n", figures.dump(2).c_str());
  if (!json_file.empty()) std::ofstream(json_file) << figures.dump(2) << '\n';
  return 0;
}
