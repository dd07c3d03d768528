// SPDX-License-Identifier: Apache-2.0
// bench_day: a day of a conversation service in numbers. Engines of two emulated hosts serve the requests of a trace over
// one KV space in a lease; at noon one of them is killed and another program takes its place. Every block that is read is
// looked at as a whole.
//
//   bench_day [--smoke] [--json FILE] [--trace FILE] [--cache 10] [--block 16K] [--engines 8] [--hosts 2] ...
//   bench_day --reads 1e8        goes on until so many blocks were read and checked, while engines are killed at random
//
// Ends with 1 when a block was wrong. --plant makes engines put wrong ones, to show that this is seen.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "bench/kv_day/engine.h"
#include "bench/kv_day/report.h"
#include "bench/kv_replay/interrupts.h"
#include "bench/lease/manager.h"

namespace terrace::bench::day {
namespace {

struct Options {
  bool smoke = false, coherent = false;
  std::string json_file, trace_file, next_program, directory = "/tmp";
  std::string block = "16K", plant;
  double cache_percent = 10, reads = 0;
  uint64_t kill_every_ms = 0, seconds = 0, stuck_after_s = 120, seed = 1;
  Settings settings;
};

template <typename Value>
Value must(Result<Value> result, const char* what) {
  if (!result.ok()) die(std::string(what) + ": " + result.error().to_string());
  return std::move(result).value();
}

Trace trace_for(const Options& options) {
  const std::string found = TERRACE_SOURCE_FOLDER "/../shared/data/mooncake_conversation_trace.jsonl";
  std::string file = options.trace_file;
  if (file.empty() && !options.smoke && std::filesystem::exists(found)) file = found;
  Trace trace = file.empty() ? make_trace(options.smoke ? 1200 : 12'000, options.seed)
                             : must(read_trace(file, 0), "trace");
  if (trace.requests.size() < 2 * hours)
    die("the trace has fewer than " + std::to_string(2 * hours) + " requests");
  if (trace.blocks.empty()) die("the trace names no block");
  return trace;
}

void fill_settings(Options& options) {
  Settings& settings = options.settings;
  settings.block_bytes = must(parse_size(options.block), "--block");
  if (settings.block_bytes < 64 || settings.block_bytes % 8 != 0)
    die("--block is a multiple of 8 bytes, at least 64");
  if (settings.hosts == 0 || settings.hosts > hosts_max || settings.engines % settings.hosts != 0)
    die("--hosts is between 1 and " + std::to_string(hosts_max) + ", and divides --engines");
  if (settings.engines > engines_max) die("--engines is at most " + std::to_string(engines_max));
  if (options.cache_percent <= 0 || options.cache_percent > 200) die("--cache is between 0 and 200 percent");
  settings.parts_per_host = settings.seats_per_host = settings.engines / settings.hosts + 1;
  if (settings.hosts * settings.parts_per_host * 2 > 64)
    die("--engines and --hosts need more than 64 parts and seats");
  if (options.plant == "torn") settings.plant = Plant::torn;
  if (options.plant == "other") settings.plant = Plant::other;
}

KvFormatOptions format_for(const Options& options) {
  const Settings& settings = options.settings;
  return {.parts = settings.hosts * settings.parts_per_host,
          .seats = settings.hosts * settings.seats_per_host,
          .block_bytes = std::max<uint64_t>(settings.block_bytes, 4 * kib),
          .max_block_bytes = std::max<uint64_t>(settings.block_bytes, 64 * kib),
          .coherence = options.coherent ? SpaceCoherence::coherent : SpaceCoherence::noncoherent};
}

uint64_t data_bytes_of(std::span<std::byte> memory) {
  const auto space = must(KvSpace::attach(memory, {}), "attach");
  return must(space->stat(), "stat").data_bytes;
}

// So that the data, without directories, has about `wanted` bytes: what directories need follows from the size.
uint64_t lease_bytes_for(uint64_t wanted, const KvFormatOptions& format) {
  uint64_t bytes = round_up(wanted + wanted / 8 + 16 * mib, 2 * mib);
  for (int attempt = 0; attempt < 4; ++attempt) {
    const kv::MemoryFile memory(bytes);
    if (const Status status = KvSpace::format(memory.bytes(), format); !status.ok())
      die("format: " + status.error().to_string());
    const uint64_t data = data_bytes_of(memory.bytes());
    const uint64_t better = round_up(bytes + wanted - std::min(data, bytes), 2 * mib);
    if (better == bytes) break;
    bytes = better;
  }
  return bytes;
}

// Every block of the trace that is there now. Nobody else is.
uint64_t check_what_is_left(const Shared& shared, std::span<std::byte> memory) {
  const auto space = must(KvSpace::attach(memory, {}), "attach");
  std::vector<std::byte> bytes(shared.settings().block_bytes);
  uint64_t checked = 0;
  for (uint32_t block = 0; block < shared.control().block_count; ++block) {
    const Result<uint64_t> got = space->get({}, {.key = key_of(block), .into = bytes});
    if (!got.ok() && got.error().code == ErrorCode::not_found) continue;
    ++checked;
    if (got.ok())
      shared.judge(block, std::span(bytes).first(*got), "at the end");
    else
      shared.found_wrong(block, "at the end", got.error().to_string());
  }
  return checked;
}

// Another file, as an upgrade brings one: by default this program's copy.
std::string next_program(const Options& options, const std::string& directory) {
  if (!options.next_program.empty()) return std::filesystem::absolute(options.next_program).string();
  const std::string path = directory + "/bench_day.next";
  std::error_code error;
  std::filesystem::copy_file("/proc/self/exe", path, error);
  if (error) die("cannot copy this program to " + path + ": " + error.message());
  return path;
}

Course course_for(const Options& options, uint64_t requests, const std::string& directory) {
  Course course;
  course.reads = static_cast<uint64_t>(options.reads);
  course.kill_every_ns = options.kill_every_ms * ns_per_ms;
  course.seconds_max = options.seconds;
  course.stuck_after_ns = options.stuck_after_s * ns_per_s;
  course.seed = options.seed;
  if (course.reads != 0) return course;
  course.upgrade_at = (requests + 1) / 2;  // the first request of hour 12
  course.next_program = next_program(options, directory);
  return course;
}

Result<int> run_day(Options& options) {
  fill_settings(options);
  const Trace trace = trace_for(options);
  DayFigures day;
  day.trace = trace.name;
  day.distinct_blocks = trace.distinct_blocks;
  const uint64_t footprint = round_up(options.settings.block_bytes, 64) + 64;  // with its name
  const auto all_bytes = static_cast<double>(trace.distinct_blocks * footprint);
  const KvFormatOptions format = format_for(options);
  day.lease_bytes = lease_bytes_for(static_cast<uint64_t>(all_bytes * options.cache_percent / 100), format);

  const InterruptsCaught caught;
  const ScratchDirectory scratch(options.directory);
  Manager manager({scratch.path(), scratch.path() + "/state", day.lease_bytes + 64 * mib});
  if (manager.socket().size() >= sizeof options.settings.socket) die("--dir is too long for a socket's name");
  std::snprintf(options.settings.socket, sizeof options.settings.socket, "%s", manager.socket().c_str());
  SessionOptions to_manager;
  to_manager.socket_path = manager.socket();
  TERRACE_ASSIGN_OR_RETURN(const auto session, Session::connect(to_manager));
  LeaseRequest request;
  request.bytes = day.lease_bytes;
  request.mode = LeaseMode::shared_coherent;
  request.label = lease_label;
  TERRACE_ASSIGN_OR_RETURN(const auto lease, session->grant(request));
  TERRACE_ASSIGN_OR_RETURN(const auto mapping, Mapping::map(lease));
  TERRACE_RETURN_IF_ERROR(KvSpace::format(mapping->bytes(), format));
  day.data_bytes = data_bytes_of(mapping->bytes());
  day.cache_over_trace = static_cast<double>(day.data_bytes) / all_bytes;

  const Shared shared(options.settings, trace);
  const Course course = course_for(options, trace.requests.size(), scratch.path());
  shared.control().end_request = course.reads != 0 ? UINT64_MAX : trace.requests.size();
  day.upgrade_at = course.upgrade_at;
  {
    Processes processes(shared, course);
    TERRACE_RETURN_IF_ERROR(processes.start_all());
    TERRACE_ASSIGN_OR_RETURN(day.happened, processes.run());
  }
  day.checked_at_end = check_what_is_left(shared, mapping->bytes());

  kv::Figures figures;
  report(shared, day, figures);
  if (!options.json_file.empty()) {
    std::ofstream file(options.json_file);
    file << figures.json().dump(2) << "\n";
    if (!file.flush()) return Error{ErrorCode::io_error, 0, "figures", "cannot write " + options.json_file};
  }
  if (shared.control().wrong == 0) return 0;
  std::fprintf(stderr, "bench_day: %s\n", shared.control().first_wrong);
  return 1;
}

}  // namespace
}  // namespace terrace::bench::day

int main(int argc, char** argv) {
  using namespace terrace::bench::day;
  Options options;
  Settings& settings = options.settings;
  int shared_fd = -1;
  uint32_t engine = 0, process = 0;
  CLI::App app(
      "A day of a conversation service: engines on two emulated hosts over one KV space, one of them upgraded "
      "at noon");
  app.add_flag("--smoke", options.smoke, "A short run on a small generated trace");
  app.add_option("--json", options.json_file, "Also write the numbers there");
  app.add_option(
      "--trace", options.trace_file,
      "JSON lines with timestamp and hash_ids; without it the one in ../shared/data, or a generated one");
  app.add_option("--cache", options.cache_percent, "Room for so many percent of the trace's distinct blocks");
  app.add_option("--block", options.block, "Bytes of a block");
  app.add_option("--engines", settings.engines, "Processes that serve requests");
  app.add_option("--hosts", settings.hosts,
                 "Emulated hosts, which ask each other nothing; they divide the engines");
  app.add_flag("--coherent", options.coherent,
               "As if their caches were coherent: no lines are written back or dropped");
  app.add_option("--next", options.next_program,
                 "The bench_day that engine 0 runs from noon on; a copy of this one unless said");
  app.add_option(
      "--reads", options.reads,
      "Go through the trace again and again until so many blocks were read and checked, without an upgrade");
  app.add_option("--rereads", settings.rereads,
                 "Recent prompts that are read once more behind each request (with --reads: 16)");
  app.add_option("--kill-every", options.kill_every_ms,
                 "Milliseconds, on average, between two kills (with --reads: 500); 0: none");
  app.add_option("--seconds", options.seconds, "Stop after so long in any case");
  app.add_option("--stuck-after", options.stuck_after_s,
                 "Seconds without a request served after which it is given up");
  app.add_option("--dir", options.directory, "Where the manager's directories are made");
  app.add_option("--seed", options.seed, "Of the kills and of a generated trace");
  app.add_option("--plant", options.plant,
                 "Put wrong blocks now and then: torn ones, or other ones than their keys say")
      ->check(CLI::IsMember({"torn", "other"}));
  app.add_option("--engine", engine)->group("");
  app.add_option("--process", process)->group("");
  app.add_option("--shared-fd", shared_fd)->group("");
  CLI11_PARSE(app, argc, argv);
  if (shared_fd >= 0) return run_engine(shared_fd, engine, process);
  const auto unless_said = [&](const char* option, auto& value, auto other) {
    if (app.count(option) == 0) value = other;
  };
  if (options.smoke) unless_said("--block", options.block, "1K");
  if (options.smoke) unless_said("--engines", settings.engines, 4u);
  if (options.reads > 0) unless_said("--rereads", settings.rereads, uint64_t{16});
  if (options.reads > 0) unless_said("--kill-every", options.kill_every_ms, uint64_t{500});
  const terrace::Result<int> status = run_day(options);
  if (status.ok()) return *status;
  std::fprintf(stderr, "bench_day: %s\n", status.error().to_string().c_str());
  return 1;
}
