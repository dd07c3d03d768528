// SPDX-License-Identifier: Apache-2.0
// bench_kv: a KV cache under a trace of requests: each block is a named tensor of a space that several workers
// share in one lease, with local replicas in DDR; a worker is killed now and then.
//
//   bench_kv [--smoke] [--json FILE] [--trace FILE] [--requests N] [--workers N] ...
//
// Ends with 1 when a block was lost, torn or stale. Truth is kept beside Terrace (truth.h). --plant makes the
// workers do wrong, to show that this is seen.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "bench/kv_replay/block.h"
#include "bench/kv_replay/processes.h"
#include "bench/kv_replay/report.h"
#include "bench/kv_replay/worker.h"
#include "bench/lease/manager.h"
#include "core/base/kernel_clock.h"
#include "core/base/units.h"

namespace terrace::bench {
namespace {

template <typename Value>
Value must(Result<Value> result, const char* what) {
  if (!result.ok()) die(std::string(what) + ": " + result.error().to_string());
  return std::move(result).value();
}

struct Options {
  bool smoke = false;
  std::string json_file, trace_file, directory = "/tmp";
  std::string block = "64K", ddr = "64M", cxl = "2G";
  uint64_t requests = 0, kill_every = 500, seed = 1, stuck_after_s = 300;
  Settings settings;
};

uint64_t bytes_of(const std::string& text) {
  return must(parse_size(text), text.c_str());
}

Trace trace_for(const Options& options) {
  const std::string found = TERRACE_SOURCE_FOLDER "/../shared/data/mooncake_conversation_trace.jsonl";
  std::string file = options.trace_file;
  if (file.empty() && !options.smoke && std::filesystem::exists(found)) file = found;
  if (!file.empty()) return must(read_trace(file, options.requests), "trace");
  const uint64_t requests = options.requests != 0 ? options.requests : options.smoke ? 400 : 4000;
  return make_trace(static_cast<uint32_t>(requests), options.seed);
}

double reuse_in(const Trace& trace) {
  return 1 - static_cast<double>(trace.distinct_blocks) / static_cast<double>(trace.blocks.size());
}

// A block copied from memory that is in no cache, and looked at: what the protocol's reads are compared with.
double copy_us(uint64_t block_bytes) {
  const uint64_t count = std::max<uint64_t>(16, (128 * mib) / block_bytes);
  std::vector<uint64_t> from(count * block_bytes / 8, 1), to(block_bytes / 8);
  std::vector<double> times;
  for (uint64_t index = 0; index < count; ++index) {
    const uint64_t begin = monotonic_ns();
    std::memcpy(to.data(), from.data() + index * to.size(), block_bytes);
    if (see_block(std::as_bytes(std::span(to))).whole) die("a block of nothing looks whole");
    times.push_back(static_cast<double>(monotonic_ns() - begin) / 1000);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// --- the run -------------------------------------------------------------------------------------------

// Everything that was published and not removed is there, whole and newest, and nothing else. Every worker has
// ended, and every one that was killed has had a successor: nothing is under way.
uint64_t check_what_is_left(SharedRun& run, TensorSpace& space) {
  std::vector<std::byte> bytes(run.settings().block_bytes);
  uint64_t checked = 0;
  for (uint32_t block = 0; block < run.control().block_count; ++block) {
    const Fact fact = run.truth().of(block);
    const Result<SharedTensor> tensor = space.open(block_name(block));
    if (fact.phase != Phase::published && fact.phase != Phase::rewriting) {
      if (tensor.ok())
        run.found_wrong(Wrong::stale, block, "at the end: it was removed, and is there");
      else if (tensor.error().code != ErrorCode::not_found)
        run.found_wrong(Wrong::torn, block, "at the end: " + tensor.error().to_string());
      continue;
    }
    ++checked;
    const Result<uint64_t> version = tensor.ok() ? space.read(*tensor, bytes) : tensor.error();
    if (version.ok())
      judge_block(run, block, fact, see_block(bytes), "at the end");
    else
      run.found_wrong(Wrong::lost, block, "at the end: " + version.error().to_string());
  }
  return checked;
}

SpaceOptions space_for(const Settings& settings, uint64_t cxl_bytes) {
  const uint64_t slots = settings.rewrite_every != 0 ? 2 : 1;
  const uint64_t blocks = cxl_bytes / settings.workers / (settings.block_bytes * slots);
  SpaceOptions options;
  options.parts = settings.workers;
  options.records_per_part = static_cast<uint32_t>(std::max<uint64_t>(64, blocks * 3 / 2));
  options.pins_per_part = 64;
  options.coherence = SpaceCoherence::coherent;  // all workers are on this machine
  return options;
}

void fill_settings(Options& options) {
  Settings& settings = options.settings;
  settings.block_bytes = bytes_of(options.block);
  settings.ddr_bytes = bytes_of(options.ddr);
  if (settings.block_bytes < 64 || settings.block_bytes % 64 != 0) die("--block is a multiple of 64 bytes");
  if (settings.ddr_bytes < 4 * settings.block_bytes) die("--ddr is for four blocks at least");
  if (settings.workers == 0 || settings.workers > workers_max)
    die("--workers is between 1 and " + std::to_string(workers_max));
}

Result<int> run_bench(Options& options) {
  fill_settings(options);
  const Trace trace = trace_for(options);
  if (trace.blocks.empty()) die("the trace names no block");
  RunFigures figures;
  figures.trace = trace.name;
  figures.distinct_blocks = trace.distinct_blocks;
  figures.reuse_in_trace = reuse_in(trace);
  figures.copy_us_p50 = copy_us(options.settings.block_bytes);
  figures.cxl_bytes = round_up(bytes_of(options.cxl), 2 * mib);

  const InterruptsCaught caught;
  const ScratchDirectory scratch(options.directory);
  Manager manager({scratch.path(), scratch.path() + "/state", figures.cxl_bytes + 64 * mib});
  if (manager.socket().size() >= sizeof options.settings.socket) die("--dir is too long for a socket's name");
  std::snprintf(options.settings.socket, sizeof options.settings.socket, "%s", manager.socket().c_str());
  SessionOptions to_manager;
  to_manager.socket_path = manager.socket();
  TERRACE_ASSIGN_OR_RETURN(const auto session, Session::connect(to_manager));
  LeaseRequest request;
  request.bytes = figures.cxl_bytes;
  request.mode = LeaseMode::shared_coherent;
  request.label = lease_label;
  TERRACE_ASSIGN_OR_RETURN(const auto lease, session->grant(request));
  TERRACE_ASSIGN_OR_RETURN(const auto mapping, Mapping::map(lease));
  TERRACE_RETURN_IF_ERROR(
      TensorSpace::format(mapping->bytes(), space_for(options.settings, figures.cxl_bytes)));

  SharedRun run(options.settings, trace);
  {
    Workers workers(run, options.seed, options.stuck_after_s * ns_per_s);
    TERRACE_RETURN_IF_ERROR(workers.start_all());
    const uint64_t begin = monotonic_ns();
    run.control().begin_ns = begin;
    run.control().go = 1;
    TERRACE_ASSIGN_OR_RETURN(figures.kills, workers.run_all(options.kill_every));
    figures.seconds = static_cast<double>(monotonic_ns() - begin) / 1e9;
  }
  AttachOptions to_read;
  TERRACE_ASSIGN_OR_RETURN(to_read.ownership, ownership_by_manager(lease));
  to_read.own_a_part = false;
  TERRACE_ASSIGN_OR_RETURN(const auto space, TensorSpace::attach(mapping->bytes(), to_read));
  figures.checked_at_end = check_what_is_left(run, *space);

  const nlohmann::json out = figures_of(run, figures);
  print(out);
  if (!options.json_file.empty()) {
    std::ofstream file(options.json_file);
    file << out.dump(2) << "\n";
    if (!file.flush()) return Error{ErrorCode::io_error, 0, "figures", "cannot write " + options.json_file};
  }
  if (run.control().told == 0) return 0;
  std::fprintf(stderr, "bench_kv: %s\n", run.control().first_wrong);
  return 1;
}

}  // namespace
}  // namespace terrace::bench

int main(int argc, char** argv) {
  using namespace terrace::bench;
  Options options;
  Settings& settings = options.settings;
  int shared_fd = -1;
  uint32_t worker = 0;
  std::string plant;
  CLI::App app("A KV cache: blocks as shared tensors under a trace of requests, with workers killed");
  app.add_flag("--smoke", options.smoke, "A short run on a small generated trace");
  app.add_option("--json", options.json_file, "Also write the numbers there");
  app.add_option(
      "--trace", options.trace_file,
      "JSON lines with timestamp and hash_ids; without it the one in ../shared/data, or a generated one");
  app.add_option("--requests", options.requests, "Only the first ones; of a generated trace: how many");
  app.add_option("--workers", settings.workers, "Processes, each with a part of the space");
  app.add_option("--block", options.block, "Bytes of a block");
  app.add_option("--ddr", options.ddr, "Bytes of local replicas, for each worker");
  app.add_option("--cxl", options.cxl, "Bytes of the lease that all share");
  app.add_option("--kill-every", options.kill_every, "Requests, on average, between two kills; 0: none");
  app.add_option("--in-place-every", settings.in_place_every,
                 "One in so many reads from the pool is made in place, the others are copied; 0: none");
  app.add_option("--rewrite-every", settings.rewrite_every,
                 "One in so many uses by a block's owner publishes it anew; 0: none, and one slot a block");
  app.add_option("--speed", settings.speed, "Times the trace's clock; 0: as fast as possible");
  app.add_option("--stuck-after", options.stuck_after_s,
                 "Seconds without a request served, beyond the trace's own pauses, after which it is given up");
  app.add_flag("!--no-prefetch", settings.prefetch, "Do not copy a request's blocks ahead");
  app.add_option("--dir", options.directory, "Where the manager's directories are made");
  app.add_option("--seed", options.seed, "Of the kills and of a generated trace");
  app.add_option("--plant", plant,
                 "Make the workers do wrong: lost, torn or stale blocks, or get stuck half-way")
      ->check(CLI::IsMember({"lost", "torn", "stale", "stuck"}));
  app.add_option("--worker", worker)->group("");
  app.add_option("--shared-fd", shared_fd)->group("");
  CLI11_PARSE(app, argc, argv);
  if (shared_fd >= 0) return run_worker(shared_fd, worker);
  if (options.smoke) {
    const auto smaller = [&](const char* option, auto& value, auto small) {
      if (app.count(option) == 0) value = small;
    };
    smaller("--workers", settings.workers, 3u);
    smaller("--block", options.block, "4K");
    smaller("--ddr", options.ddr, "256K");
    smaller("--cxl", options.cxl, "4M");
    smaller("--kill-every", options.kill_every, uint64_t{40});
    smaller("--rewrite-every", settings.rewrite_every, 10u);
  }
  if (plant == "lost") settings.plant = Plant::lost;
  if (plant == "torn") settings.plant = Plant::torn;
  if (plant == "stale") settings.plant = Plant::stale;
  if (plant == "stuck") settings.plant = Plant::stuck;
  const terrace::Result<int> ended = run_bench(options);
  if (ended.ok()) return *ended;
  std::fprintf(stderr, "bench_kv: %s\n", ended.error().to_string().c_str());
  return 1;
}
