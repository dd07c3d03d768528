// SPDX-License-Identifier: Apache-2.0
// What runs show of themselves, read as strangers' files: whatever they hold, what comes out is safe and true,
// or a problem in words.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/run/run_report.h"
#include "cli/run/run_reporter.h"
#include "cli/run/run_table.h"
#include "cli/run/top_scan.h"
#include "cli/terminal/local_time.h"
#include "core/base/prng.h"
#include "core/base/units.h"

using namespace terrace;
using namespace terrace::cli;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

RunDocument some_run(int pid = ::getpid()) {
  RunDocument run;
  run.pid = pid;
  run.uid = ::geteuid();
  run.start_ticks = start_ticks_of("/proc", pid);
  run.program = "redis-server";
  run.command = "redis-server --port 7000";
  run.pool = "main";
  run.policy = "benefit-density";
  run.ddr_budget_bytes = 128 * mib;
  run.cxl_budget_bytes = gib;
  run.elapsed_ns = 5 * ns_per_s;
  run.interval_ns = ns_per_s;
  run.report.stats.ddr_used = 100 * mib;
  run.report.stats.leased_bytes = 512 * mib;
  run.report.stats.totals.processes = 3;
  supply::ProcessReport process;
  process.pid = 4242;
  process.name = "redis-server";
  process.small_known = process.room_known = true;
  process.small_age_ns = 7;
  process.migration = supply::MigrationState::running;
  uint64_t next = 1'000'000;
  supply::MemoryReport& memory = process.memory;
  for (uint64_t* field : {&memory.live_ddr, &memory.live_cxl, &memory.large_bytes, &memory.small_bytes,
                          &memory.ddr_bytes, &memory.leased_bytes, &memory.longest_free_bytes,
                          &memory.free_bytes, &memory.promotions, &memory.demotions, &memory.refused,
                          &memory.fallbacks, &memory.promotions_per_s, &memory.copy_bytes_per_s})
    *field = next += 1'234'567;
  memory.refused_by[1] = 9;
  process.classes = {{.large = false, .bytes_min = 64, .bytes_max = 64, .blocks = 10, .bytes = 640},
                     {.large = true,
                      .bytes_min = mib,
                      .bytes_max = 2 * mib - 4096,
                      .blocks = 1,
                      .bytes = mib,
                      .allocations = 12}};
  run.report.sum = process.memory;
  run.report.classes = process.classes;
  run.report.classes[0].bytes_at_peak = 700;
  run.report.processes = {process};
  run.report.leases = {{.id = 7,
                        .label = "run:redis",
                        .owner = 4242,
                        .owner_name = "redis-server",
                        .bytes = 64 * mib,
                        .live_bytes = 3 * mib}};
  return run;
}

// A place of its own, of this user only.
struct Place {
  Place() {
    char name[] = "/tmp/terrace-top-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    root = name;
    places.prefix = root + "/runs-";
    places.uid = ::geteuid();
    REQUIRE(::mkdir(own().c_str(), 0700) == 0);
  }
  ~Place() { CHECK(std::system(("rm -rf " + root).c_str()) == 0); }
  std::string own() const { return places.prefix + std::to_string(::geteuid()); }
  void file(const std::string& name, const std::string& content) const {
    std::ofstream(own() + "/" + name) << content;
  }
  bool has(const std::string& name) const { return ::access((own() + "/" + name).c_str(), F_OK) == 0; }
  std::string root;
  RunPlaces places;
};

std::string text_of(const RunDocument& run) {
  return to_json(run).dump();
}

std::string own_name() {
  return std::to_string(::getpid());
}

}  // namespace

TEST_CASE("Run document: what is written is what is read") {
  const RunDocument run = some_run();
  const auto back = run_from_json(text_of(run));
  REQUIRE(back.ok());
  CHECK(to_json(*back) == to_json(run));
  CHECK(back->report.processes[0].memory.refused_by[1] == 9);
  CHECK(back->report.processes[0].migration == supply::MigrationState::running);
}

TEST_CASE("Run document: what is not known is null, and stays so") {
  RunDocument run = some_run();
  run.pool.clear();
  run.report.processes[0].small_known = run.report.processes[0].room_known = false;
  const nlohmann::json document = to_json(run);
  CHECK(document["exit_code"].is_null());
  CHECK(document["run"]["pool"].is_null());
  CHECK(document["process_list"][0]["small_age_ns"].is_null());
  CHECK(document["process_list"][0]["memory"]["external_fragmentation"].is_null());
  CHECK(document["memory"]["free_bytes"].is_null());
  CHECK(document["size_classes"][0]["allocations"].is_null());
  const auto back = run_from_json(document.dump());
  REQUIRE(back.ok());
  CHECK(!back->report.processes[0].small_known);
  CHECK(!back->report.processes[0].room_known);
}

TEST_CASE("Run document: cut short anywhere it is refused") {
  const std::string text = text_of(some_run());
  for (size_t length = 0; length < text.size(); length += 7) {
    CAPTURE(length);
    CHECK(!run_from_json(text.substr(0, length)).ok());
  }
}

TEST_CASE("Run document: any value in the place of another is refused or harmless") {
  const nlohmann::json good = to_json(some_run());
  const nlohmann::json flat = good.flatten();
  const std::vector<nlohmann::json> wrongs = {nullptr,
                                              true,
                                              -1,
                                              1.5,
                                              "x",
                                              nlohmann::json::array(),
                                              UINT64_MAX,
                                              nlohmann::json::object(),
                                              std::string(5000, '\x1b')};
  for (const auto& item : flat.items()) {
    for (const nlohmann::json& wrong : wrongs) {
      nlohmann::json bad = good;
      bad[nlohmann::json::json_pointer(item.key())] = wrong;
      const auto read = run_from_json(bad.dump());
      if (!read.ok()) continue;
      // What was taken can be shown: no control characters, no crash.
      RunView view;
      view.run = *read;
      const std::string table = top_table({view}, {.processes = true, .classes = true, .columns = 100});
      CHECK(table.find('\x1b') == std::string::npos);
      const std::string summary = run_summary(*read);
      CHECK(summary.find('\x1b') == std::string::npos);
    }
  }
  for (const auto& item : good.items()) {
    nlohmann::json bad = good;
    bad.erase(item.key());
    CAPTURE(item.key());
    if (item.key() != "live_bytes" && item.key() != "supervised") CHECK(!run_from_json(bad.dump()).ok());
  }
}

TEST_CASE("Run document: random bytes and flipped ones are never taken for what they are not") {
  Prng random(7);
  const std::string good = text_of(some_run());
  for (int round = 0; round < 2000; ++round) {
    std::string bad = good;
    for (uint64_t i = 0, flips = 1 + random.below(8); i < flips; ++i)
      bad[random.below(bad.size())] = static_cast<char>(random.next());
    const auto read = run_from_json(bad);
    if (read.ok()) CHECK(read->report.processes.size() <= 1);
  }
  CHECK(!run_from_json(std::string(100'000, '[')).ok());
}

TEST_CASE("Run document: rates are of the time between two") {
  RunDocument before = some_run(), now = some_run();
  before.written_ns = 10 * ns_per_s;
  now.written_ns = 12 * ns_per_s;
  now.report.sum.promotions += 30;
  now.report.sum.promoted_bytes += 60 * mib;
  now.report.processes[0].memory.demotions += 4;
  set_rates(before, &now);
  CHECK(now.report.sum.promotions_per_s == 15);
  CHECK(now.report.sum.copy_bytes_per_s == 30 * mib);
  CHECK(now.report.processes[0].memory.demotions_per_s == 2);
  CHECK(now.report.processes[0].memory.promotions_per_s == 0);
  // Counters that went back (another process of the number): none, not a huge one.
  now.report.sum.promotions = 0;
  set_rates(before, &now);
  CHECK(now.report.sum.promotions_per_s == 0);
}

TEST_CASE("Runs: one is found, with its age") {
  Place place;
  RunDocument run = some_run();
  run.written_ns = 1;
  place.file(own_name(), text_of(run));
  const RunScan scan = scan_runs(place.places);
  CHECK(scan.problems.empty());
  REQUIRE(scan.runs.size() == 1);
  CHECK(scan.runs[0].run.command == "redis-server --port 7000");
  // Written when the machine started: whoever says nothing for so long is named.
  CHECK(scan.runs[0].state == RunState::silent);
  CHECK(scan.runs[0].age_ns > 0);
}

TEST_CASE("Runs: what ended ones left is swept, what is nobody's is named") {
  Place place;
  place.file("999999999", "{}");
  place.file("999999999.new", "{");
  RunDocument other = some_run();
  other.start_ticks += 1;  // another process had the number
  place.file(own_name(), text_of(other));
  place.file("notes", "x");
  const RunScan scan = scan_runs(place.places);
  CHECK(scan.runs.empty());
  CHECK(scan.swept == 3);
  CHECK(!place.has("999999999"));
  CHECK(!place.has(own_name()));
  REQUIRE(scan.problems.size() == 1);
  CHECK(contains(scan.problems[0], "notes is not named as a process"));
}

TEST_CASE("Runs: links, pipes, strangers' and half files harm nobody") {
  Place place;
  const std::string mine = place.own() + "/" + own_name();
  SUBCASE("a link") {
    REQUIRE(::symlink("/etc/passwd", mine.c_str()) == 0);
  }
  SUBCASE("a pipe that nobody writes to") {
    REQUIRE(::mkfifo(mine.c_str(), 0600) == 0);
  }
  SUBCASE("a directory") {
    REQUIRE(::mkdir(mine.c_str(), 0700) == 0);
  }
  SUBCASE("half a document") {
    place.file(own_name(), text_of(some_run()).substr(0, 500));
  }
  SUBCASE("another process's") {
    place.file(own_name(), text_of(some_run(1)));
  }
  SUBCASE("one with two names") {
    place.file(own_name(), text_of(some_run()));
    REQUIRE(::link(mine.c_str(), (place.root + "/second").c_str()) == 0);
  }
  SUBCASE("one that is far too long") {
    place.file(own_name(), "");
    REQUIRE(::truncate(mine.c_str(), off_t{1} << 40) == 0);
  }
  SUBCASE("a directory that others may write to") {
    place.file(own_name(), text_of(some_run()));
    REQUIRE(::chmod(place.own().c_str(), 0777) == 0);
  }
  const RunScan scan = scan_runs(place.places);
  CHECK(scan.runs.empty());
  CHECK(scan.problems.size() == 1);
}

TEST_CASE("Top: columns give way to a narrow terminal, the important ones last") {
  std::vector<RunView> runs(2);
  runs[0].run = some_run();
  runs[1].run = some_run(1);
  runs[1].run.report.sum.large_bytes *= 100;
  for (const size_t columns : {200u, 120u, 80u, 60u, 40u, 20u, 8u}) {
    CAPTURE(columns);
    const std::string text = top_table(runs, {.processes = true, .classes = true, .columns = columns});
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find('\n', at);
      CHECK(end - at <= columns);
      at = end + 1;
    }
    if (columns >= 60) CHECK(contains(text, "LIVE"));
    CHECK(contains(text.substr(0, text.find('\n')), "COPYING") == (columns >= 120));
  }
  // Those with the most live bytes come first.
  const std::string text = top_table(runs, {.columns = 200});
  const size_t line = text.find('\n') + 1;
  CHECK(text.substr(text.find_first_not_of(' ', line), 2) == "1 ");
}

TEST_CASE("Top: no more lines than the terminal has") {
  std::vector<RunView> runs(30);
  for (RunView& one : runs) one.run = some_run();
  const std::string text = top_table(runs, {.processes = true, .columns = 80, .rows = 10});
  CHECK(std::count(text.begin(), text.end(), '\n') == 10);
}

TEST_CASE("Report file: replaced whole; a pipe is written into") {
  Place place;
  const std::string path = place.root + "/stats.json";
  REQUIRE(write_report(path, "one").ok());
  REQUIRE(write_report(path, "second").ok());
  std::string text;
  std::ifstream(path) >> text;
  CHECK(text == "second");
  const std::string pipe = place.root + "/pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  REQUIRE(write_report(pipe, "hello").ok());
  char buffer[16] = {};
  CHECK(::read(reader, buffer, sizeof(buffer)) == 5);
  ::close(reader);
  CHECK(!write_report(place.root + "/nowhere/file", "x").ok());
}

TEST_CASE("Interval: seconds or durations, in bounds") {
  CHECK(*parse_interval("--interval", "2") == 2 * ns_per_s);
  CHECK(*parse_interval("--interval", "0.5") == ns_per_s / 2);
  CHECK(*parse_interval("--interval", "500ms") == ns_per_s / 2);
  for (const char* wrong : {"", "0", "0.05", "-1", "x", "2d", "1e9"}) {
    CAPTURE(wrong);
    CHECK(!parse_interval("--interval", wrong).ok());
  }
}
