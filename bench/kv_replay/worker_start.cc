// SPDX-License-Identifier: Apache-2.0
// A worker's way in, and what it does with what a killed predecessor left in its part.
#include <unistd.h>

#include <charconv>
#include <cstdio>

#include "bench/kv_replay/block.h"
#include "bench/kv_replay/worker.h"
#include "core/base/kernel_clock.h"
#include "core/base/units.h"

namespace terrace::bench {
namespace {

std::optional<uint32_t> number_of(std::string_view name) {
  constexpr std::string_view prefix = "kv/";
  uint32_t block = 0;
  if (name.substr(0, prefix.size()) != prefix) return std::nullopt;
  name.remove_prefix(prefix.size());
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), block);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return block;
}

}  // namespace

Result<std::unique_ptr<Worker>> Worker::start(SharedRun& run, uint32_t number) {
  const Settings& settings = run.settings();
  std::unique_ptr<Worker> worker(new Worker(run, number));
  SessionOptions session;
  session.socket_path = settings.socket;
  session.connect_timeout_ns = 60 * ns_per_s;
  TERRACE_ASSIGN_OR_RETURN(worker->session_, Session::connect(session));
  TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<Lease> lease,
                           worker->session_->attach(LeaseId{}, lease_label, LeaseAccess::read_write));
  TERRACE_ASSIGN_OR_RETURN(worker->mapping_, Mapping::map(lease));
  AttachOptions attach;
  TERRACE_ASSIGN_OR_RETURN(attach.ownership, ownership_by_manager(lease));
  attach.part = number;
  attach.host = static_cast<uint64_t>(::getpid());
  TERRACE_ASSIGN_OR_RETURN(worker->space_, TensorSpace::attach(worker->mapping_->bytes(), attach));
  TERRACE_ASSIGN_OR_RETURN(
      worker->replicas_,
      LocalReplicas::make(*worker->space_, {.budget_bytes = settings.ddr_bytes, .wait_ns = 10 * ns_per_s}));
  WorkerCounts& counts = worker->counts_;
  worker->own_ = std::make_unique<OwnBlocks>(run, *worker->space_, *worker->replicas_, counts);
  worker->before_.evicted = counts.ddr_evicted;
  worker->before_.prefetched = counts.prefetched;
  worker->before_.prefetch_dropped = counts.prefetch_dropped;
  worker->before_.copied_bytes = counts.copied_bytes;
  return worker;
}

void Worker::adopt() {
  std::vector<std::byte> scratch(run_.settings().block_bytes);
  for (const SharedTensor& tensor : space_->list()) {
    if (tensor.part() != space_->part()) continue;
    const std::optional<uint32_t> block = number_of(tensor.name());
    if (!block || *block >= run_.control().block_count) continue;
    add(counts_.adopted);
    adopt_one(*block, tensor, scratch);
  }
}

// While the block is in this part, nobody else changes the truth of it.
void Worker::adopt_one(uint32_t block, const SharedTensor& tensor, std::span<std::byte> scratch) {
  const Fact fact = run_.truth().of(block);
  const Result<uint64_t> version = space_->read(tensor, scratch);
  if (!version.ok()) {
    if (fact.phase == Phase::published || fact.phase == Phase::rewriting)
      run_.found_wrong(Wrong::lost, block,
                       "its part's next owner cannot read it: " + version.error().to_string());
    if (space_->remove(tensor, ns_per_s).ok() && fact.phase == Phase::creating)
      run_.truth().change(block, fact, {Phase::removed, fact.generation});
    return;
  }
  const SeenBlock seen = see_block(scratch);
  judge_block(run_, block, fact, seen, "by its part's next owner");
  if (seen.generation <= fact.generation) run_.truth().change(block, fact, {Phase::published, seen.generation});
  own_->add(block, tensor);
}

int run_worker(int shared_fd, uint32_t number) {
  const uint64_t begin = monotonic_ns();
  SharedRun run(shared_fd);
  Control& control = run.control();
  if (number >= control.settings.workers) return 2;
  Result<std::unique_ptr<Worker>> worker = Worker::start(run, number);
  if (!worker.ok()) {
    std::fprintf(stderr, "bench_kv: worker %u: %s\n", number, worker.error().to_string().c_str());
    return 1;
  }
  (*worker)->adopt();
  if (control.go == 0) {
    ++control.ready;
    while (control.go == 0) ::usleep(500);
  } else {
    std::atomic<uint64_t>& longest = control.workers[number].take_over_ns;
    longest = std::max<uint64_t>(longest, monotonic_ns() - begin);
  }
  (*worker)->work();
  return 0;
}

}  // namespace terrace::bench
