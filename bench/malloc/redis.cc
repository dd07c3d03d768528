// SPDX-License-Identifier: Apache-2.0
// redis-server on a heap: operations a second, and whether a snapshot taken under writes is one.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "bench/malloc/in_turn.h"
#include "bench/malloc/redis_client.h"
#include "core/base/units.h"

namespace terrace::bench {
namespace {

constexpr const char* server_program = "/usr/bin/redis-server";
constexpr const char* benchmark_program = "/usr/bin/redis-benchmark";
constexpr double start_limit_s = 20;
constexpr double save_limit_s = 120;

constexpr const char* no_redis = "no redis-server or redis-benchmark here";
bool has_redis() {
  return std::filesystem::exists(server_program) && std::filesystem::exists(benchmark_program);
}

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "terrace-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) die("cannot make a directory");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A server in `folder`, gone with this object.
class Server {
 public:
  Server(const std::string& folder, Heap heap, const Supply* supply) : socket_(folder + "/s") {
    pid_ = start_program({server_program, "--port", "0", "--unixsocket", socket_, "--dir", folder, "--save", "",
                          "--rdbcompression", "no", "--appendonly", "no"},
                         environment_for(heap, supply), folder + "/log");
    const double begin = now_s();
    while (pid_ > 0 && now_s() - begin < start_limit_s && !ready_ && alive()) {
      ready_ = client.connect(socket_) && client.ask({"PING"}) == "PONG";
      if (!ready_) ::usleep(5000);
    }
  }
  ~Server() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // After its connection was lost: it may be about to end.
  std::string why_gone() {
    for (int i = 0; i < 200 && alive(); ++i) ::usleep(5000);
    return alive() ? "redis-server does not answer" : failure();
  }
  // Empty: it serves.
  std::string failure() {
    if (pid_ > 0 && alive()) return ready_ ? "" : "redis-server does not answer";
    return "redis-server ended" + ending_;
  }
  const std::string& socket() const { return socket_; }
  // What all its threads ran, in seconds: finer than the clock ticks of /proc/PID/stat.
  double cpu_s() const {
    double ns = 0;
    std::error_code ended;
    for (const auto& task :
         std::filesystem::directory_iterator("/proc/" + std::to_string(pid_) + "/task", ended)) {
      double one = 0;
      std::ifstream(task.path() / "schedstat") >> one;
      ns += one;
    }
    return ns / 1e9;
  }
  RedisClient client;

 private:
  bool alive() {
    int status = 0;
    if (pid_ <= 0) return false;
    if (::waitpid(pid_, &status, WNOHANG) == 0) return true;
    if (WIFSIGNALED(status)) ending_ = " by signal " + std::to_string(WTERMSIG(status));
    pid_ = -1;
    return false;
  }
  std::string socket_, ending_;
  pid_t pid_ = -1;
  bool ready_ = false;
};

// ---- operations

// Requests a second of `test` in redis-benchmark's table: "SET","123.45",...
double requests_per_s(const std::string& csv, const std::string& test) {
  std::istringstream lines(csv);
  for (std::string line; std::getline(lines, line);)
    if (line.rfind('"' + test + "\",\"", 0) == 0) return std::atof(line.c_str() + test.size() + 4);
  return 0;
}

struct Operations {
  double set = 0, get = 0;
};

Outcome operations(const Sizes& sizes, Heap heap, const Supply* supply, Operations* result) {
  Folder folder;
  Server server(folder.path(), heap, supply);
  Outcome outcome;
  outcome.why = server.failure();
  if (!outcome.why.empty()) return outcome;
  const uint64_t requests = sizes.smoke ? 20'000 : 300'000;
  const double cpu_before_s = server.cpu_s();
  outcome = run_program({benchmark_program, "-s", server.socket(), "-t", "set,get", "-n",
                         std::to_string(requests), "-r", "200000", "-d", "64", "-c", "16", "-P", "16", "--csv"},
                        environment_for(Heap::glibc, nullptr));
  if (!server.failure().empty()) outcome.why = server.failure();
  *result = {requests_per_s(outcome.output, "SET"), requests_per_s(outcome.output, "GET")};
  if (outcome.why.empty() && (result->set == 0 || result->get == 0))
    outcome.why = "redis-benchmark gave no figures";
  outcome.figure = std::sqrt(result->set * result->get);
  const double cpu_s = server.cpu_s() - cpu_before_s;
  outcome.by_cpu = cpu_s > 0 ? 2 * static_cast<double>(requests) / cpu_s : 0;
  return outcome;
}

void measure_operations(const Sizes& sizes, Report& report, Peer& peer) {
  Supply ddr(4 * gib, 0), tiered(gib, 4 * gib, true);
  const std::vector<Heap> heaps = {Heap::jemalloc, Heap::whole, Heap::tiered, Heap::memtier};
  std::map<Heap, std::vector<double>> sets, gets;
  InTurn runs(sizes.smoke ? 1 : 3 * sizes.rounds, heaps, [&](Heap heap) {
    Operations one;
    Supply& supply = heap == Heap::tiered ? tiered : ddr;
    Outcome outcome = operations(sizes, heap, &supply, &one);
    supply.settle();
    sets[heap].push_back(one.set);
    gets[heap].push_back(one.get);
    return outcome;
  });
  compare_with_peer(runs, "redis_ops", false, peer);
  figure_or_missing(report, "redis_ops_over_jemalloc", runs.ratio(Heap::whole, Heap::jemalloc),
                    runs.why(Heap::whole, Heap::jemalloc), at_least(0.97));
  if (auto ratio = runs.ratio_by_cpu(Heap::whole, Heap::jemalloc))
    report.detail("redis_ops_over_jemalloc_by_cpu", *ratio);
  if (auto ratio = runs.ratio(Heap::tiered, Heap::jemalloc))
    report.detail("redis_ops_over_jemalloc_tiered", *ratio);
  for (Heap heap : heaps) {
    report.detail(std::string("redis_set_per_s_") + name_of(heap), median(sets[heap]));
    report.detail(std::string("redis_get_per_s_") + name_of(heap), median(gets[heap]));
  }
}

// ---- snapshots

// Every value says which round of writing it is of, in both halves. Rounds store over the values in place, in
// the order of the keys, over one connection: where the BGSAVE stood among the writes is known to the key, and
// so is what each value of the snapshot has to be.
class DataSet {
 public:
  explicit DataSet(const Sizes& sizes)
      : small_(sizes.smoke ? 20'000 : 300'000), large_(sizes.smoke ? 64 : 1024) {}

  size_t keys() const { return small_ + large_; }
  // One large value after each stretch of small ones.
  std::string name(size_t key) const { return "k" + std::to_string(key); }
  std::string value(size_t key, uint64_t round) const {
    char half[33];
    std::snprintf(half, sizeof(half), "%015zu:%015llu;", key, static_cast<unsigned long long>(round));
    std::string unit = std::string(half, 32) + std::string(half, 32);
    if (!is_large(key)) return unit;
    std::string text;
    text.reserve(large_bytes);
    while (text.size() < large_bytes) text += unit;
    return text;
  }
  bool is_large(size_t key) const { return key % (keys() / large_) == 0 && key / (keys() / large_) < large_; }

 private:
  static constexpr size_t large_bytes = 64 * 1024;
  size_t small_, large_;
};

constexpr size_t batch_keys = 100;

// False: the server is gone.
bool write_keys(RedisClient& client, const DataSet& data, size_t begin, size_t end, uint64_t round) {
  for (size_t at = begin; at < end; at += batch_keys) {
    for (size_t key = at; key < std::min(end, at + batch_keys); ++key) {
      if (round == 0)
        client.add({"SET", data.name(key), data.value(key, round)});
      else
        client.add({"SETRANGE", data.name(key), "0", data.value(key, round)});
    }
    if (client.exchange().empty()) return false;
  }
  return true;
}

struct Snapshot {
  double pause_ms = 0;  // what BGSAVE's own answer took: the fork
  double stall_ms = 0;  // the longest batch of writes until the dump was done
  double values = 0, torn = 0;
};

// Values of the dump that are not what the server held when it forked.
std::string count_torn(const std::string& folder, const DataSet& data, size_t saved_at, uint64_t round,
                       Snapshot* snapshot) {
  Server fresh(folder, Heap::glibc, nullptr);
  if (!fresh.failure().empty()) return "the dump cannot be loaded: " + fresh.failure();
  for (size_t at = 0; at < data.keys(); at += batch_keys) {
    const size_t end = std::min(data.keys(), at + batch_keys);
    for (size_t key = at; key < end; ++key) fresh.client.add({"GET", data.name(key)});
    auto answers = fresh.client.exchange();
    if (answers.empty()) return "the dump cannot be read";
    for (size_t key = at; key < end; ++key)
      if (answers[key - at] != data.value(key, key < saved_at ? round : round - 1)) ++snapshot->torn;
  }
  snapshot->values = static_cast<double>(data.keys());
  return {};
}

std::string save_under_writes(Server& server, const DataSet& data, size_t saved_at, Snapshot* snapshot) {
  RedisClient& client = server.client;
  if (!write_keys(client, data, 0, data.keys(), 0) || !write_keys(client, data, 0, saved_at, 1))
    return "while loading: " + server.why_gone();
  double begin = now_s();
  const std::string answer = client.ask({"BGSAVE"});
  snapshot->pause_ms = (now_s() - begin) * 1000;
  if (answer.rfind("Background", 0) != 0) return "BGSAVE: " + (answer.empty() ? server.why_gone() : answer);
  const double saving_since = now_s();
  uint64_t round = 1;
  for (size_t at = saved_at; now_s() - saving_since < save_limit_s; at += batch_keys) {
    if (at >= data.keys()) {
      at = 0;
      ++round;
    }
    begin = now_s();
    if (!write_keys(client, data, at, std::min(data.keys(), at + batch_keys), round))
      return "while writing: " + server.why_gone();
    snapshot->stall_ms = std::max(snapshot->stall_ms, (now_s() - begin) * 1000);
    if ((at / batch_keys) % 16 != 0 || client.info("rdb_bgsave_in_progress") == "1") continue;
    const std::string status = client.info("rdb_last_bgsave_status");
    return status == "ok" ? "" : "BGSAVE ended with " + status;
  }
  return "BGSAVE is not done after " + std::to_string(static_cast<int>(save_limit_s)) + " s";
}

Outcome snapshot(const Sizes& sizes, Heap heap, Supply* supply, Snapshot* result) {
  Folder folder;
  DataSet data(sizes);
  const size_t saved_at = data.keys() / 2 / batch_keys * batch_keys;
  Outcome outcome;
  {
    Server server(folder.path(), heap, supply);
    outcome.why = server.failure();
    if (outcome.why.empty()) outcome.why = save_under_writes(server, data, saved_at, result);
  }
  if (outcome.why.empty()) outcome.why = count_torn(folder.path(), data, saved_at, 1, result);
  outcome.figure = std::max(result->pause_ms, result->stall_ms);
  return outcome;
}

void measure_snapshots(const Sizes& sizes, Report& report, Peer& peer) {
  const std::vector<Heap> heaps = {Heap::glibc, Heap::whole, Heap::memtier, Heap::memtier_two_tiers};
  std::map<Heap, std::vector<double>> pauses, stalls;
  std::map<Heap, double> torn, values;
  bool leased = false;
  InTurn runs(sizes.rounds, heaps, [&](Heap heap) {
    // Most of it on leases, and memory moves: what `terrace run` does with a data set larger than DDR.
    Supply supply(sizes.smoke ? 2 * mib : 64 * mib, 2 * gib, true);
    Snapshot one;
    Outcome outcome = snapshot(sizes, heap, &supply, &one);
    if (!outcome.why.empty()) return outcome;
    pauses[heap].push_back(one.pause_ms);
    stalls[heap].push_back(one.stall_ms);
    torn[heap] += one.torn;
    values[heap] += one.values;
    leased = leased || (heap == Heap::whole && supply.stats().leases_granted > 0);
    return outcome;
  });
  compare_with_peer(runs, "bgsave_pause_ms", true, peer);
  const std::string why = runs.why(Heap::whole, Heap::glibc);
  if (runs.failure(Heap::whole).empty())
    report.figure("bgsave_torn_values", torn[Heap::whole], at_most(0));
  else
    report.missing("bgsave_torn_values", why, at_most(0));
  figure_or_missing(report, "bgsave_pause_ms_over_plain", runs.ratio(Heap::whole, Heap::glibc), why,
                    at_most(1.5));
  report.detail("bgsave_used_leases", leased);
  for (Heap heap : heaps) {
    const std::string name = name_of(heap);
    report.detail("bgsave_torn_values_" + name,
                  runs.failure(heap).empty() ? nlohmann::json(torn[heap]) : nlohmann::json(runs.failure(heap)));
    report.detail("bgsave_values_checked_" + name, values[heap]);
    report.detail("bgsave_fork_ms_" + name, median(pauses[heap]));
    report.detail("bgsave_longest_stall_ms_" + name, median(stalls[heap]));
  }
}

}  // namespace

void measure_redis(const Sizes& sizes, Report& report, Peer& peer) {
  if (has_redis()) return measure_operations(sizes, report, peer);
  report.missing("redis_ops_over_jemalloc", no_redis, at_least(0.97));
}

void measure_bgsave(const Sizes& sizes, Report& report, Peer& peer) {
  if (has_redis()) return measure_snapshots(sizes, report, peer);
  report.missing("bgsave_torn_values", no_redis, at_most(0));
  report.missing("bgsave_pause_ms_over_plain", no_redis, at_most(1.5));
}

}  // namespace terrace::bench
