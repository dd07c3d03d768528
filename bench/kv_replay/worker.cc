// SPDX-License-Identifier: Apache-2.0
#include "bench/kv_replay/worker.h"

#include <unistd.h>

#include <algorithm>

#include "bench/kv_replay/block.h"
#include "core/base/kernel_clock.h"
#include "core/base/units.h"

namespace terrace::bench {
namespace {

constexpr uint64_t published_wait_ns = 10 * ns_per_s;  // what is published is readable at once, on any machine
constexpr uint64_t planted_every = 16;

}  // namespace

void Worker::work() {
  Control& control = run_.control();
  for (;;) {
    uint64_t number = counts_.serving;  // of a predecessor that was killed while it served it
    if (number == 0) {
      number = control.next_request.fetch_add(1) + 1;
      if (number > control.requests) return;
      counts_.serving = number;
    }
    while (number > control.gate) ::usleep(200);
    const TraceRequest& request = run_.request(number - 1);
    while (control.settings.plant == Plant::stuck && number > control.requests / 2) ::pause();
    wait_until_due(request);
    const uint64_t begin = monotonic_ns();
    serve(request);
    counts_.request.add(monotonic_ns() - begin);
    keep_counts();
    control.done_requests.fetch_add(1);
    counts_.serving = 0;
  }
}

void Worker::wait_until_due(const TraceRequest& request) const {
  const Control& control = run_.control();
  if (control.settings.speed <= 0) return;
  const double ms = static_cast<double>(request.timestamp_ms) / control.settings.speed;
  const uint64_t due_ns = control.begin_ns + static_cast<uint64_t>(ms * 1e6);
  for (uint64_t now = monotonic_ns(); now < due_ns; now = monotonic_ns())
    ::usleep(static_cast<useconds_t>(std::min<uint64_t>((due_ns - now) / 1000 + 1, 999'999)));
}

void Worker::serve(const TraceRequest& request) {
  const std::span<const uint32_t> blocks = run_.blocks_of(request);
  std::vector<std::optional<SharedTensor>> found;
  std::vector<SharedTensor> wanted;
  for (const uint32_t block : blocks) {
    const uint64_t begin = monotonic_ns();
    found.push_back(find(block));
    counts_.lookup.add(monotonic_ns() - begin);
    add(counts_.lookups);
    if (found.back()) wanted.push_back(*found.back());
  }
  if (run_.settings().prefetch) replicas_->prefetch(wanted);
  for (size_t index = 0; index < blocks.size(); ++index) use(blocks[index], std::move(found[index]));
}

std::optional<SharedTensor> Worker::find(uint32_t block) {
  const Fact before = run_.truth().of(block);
  Result<SharedTensor> tensor = space_->open(block_name(block));
  if (tensor.ok()) return *std::move(tensor);
  if (tensor.error().code == ErrorCode::corrupt)
    run_.found_wrong(Wrong::torn, block, tensor.error().to_string());
  else if (before.phase == Phase::published && run_.truth().of(block) == before)
    run_.found_wrong(Wrong::lost, block, "published, and " + tensor.error().to_string());
  return std::nullopt;
}

void Worker::use(uint32_t block, std::optional<SharedTensor> tensor) {
  add(counts_.uses);
  // A block may be removed between the look-up and the read, or made by another worker meanwhile.
  for (int attempt = 0; attempt < 8; ++attempt) {
    if (tensor) {
      if (read(block, *tensor) == Read::done) return;
    } else if (make(block) != Made::exists) {
      return;
    }
    tensor = find(block);
  }
  add(counts_.pending);
}

// --- reading -----------------------------------------------------------------------------------------

Worker::Read Worker::read(uint32_t block, const SharedTensor& tensor) {
  const uint32_t in_place_every = run_.settings().in_place_every;
  if (in_place_every != 0 && replicas_->state(tensor) == ReplicaState::invalid &&
      ++pool_reads_ % in_place_every == 0)
    return read_in_place(block, tensor);
  const LocalReplicaStats stats_before = replicas_->stats();
  const Fact before = run_.truth().of(block);
  const uint64_t begin = monotonic_ns();
  {
    const Result<LocalReplica> replica = replicas_->fetch(tensor);
    if (!replica.ok()) return failed(block, before, replica.error());
    judge(block, before, replica->bytes(), "copied");
  }
  const uint64_t took = monotonic_ns() - begin;
  const LocalReplicaStats stats = replicas_->stats();
  const bool hit = stats.hits != stats_before.hits;
  add(hit ? counts_.hits_ddr : counts_.hits_cxl);
  if (stats.hits_ahead != stats_before.hits_ahead) add(counts_.hits_ahead);
  (hit ? counts_.read_ddr : counts_.read_cxl).add(took);
  run_.used(block);
  const uint32_t rewrite_every = run_.settings().rewrite_every;
  const bool ours = tensor.part() == space_->part();
  if (rewrite_every != 0 && ours && ++own_uses_ % rewrite_every == 0) rewrite(block, tensor);
  return Read::done;
}

Worker::Read Worker::read_in_place(uint32_t block, const SharedTensor& tensor) {
  const Fact before = run_.truth().of(block);
  const uint64_t begin = monotonic_ns();
  const Result<TensorPin> pin = space_->pin(tensor, before.phase == Phase::published ? published_wait_ns : 0);
  if (!pin.ok()) return failed(block, before, pin.error());
  judge(block, before, pin->bytes(), "in place");
  counts_.read_cxl.add(monotonic_ns() - begin);
  add(counts_.hits_cxl);
  add(counts_.in_place);
  add(counts_.in_place_bytes, pin->bytes().size());
  run_.used(block);
  return Read::done;
}

Worker::Read Worker::failed(uint32_t block, Fact before, const Error& error) {
  if (error.code == ErrorCode::not_found) return Read::gone;
  if (error.code == ErrorCode::corrupt)
    run_.found_wrong(Wrong::torn, block, error.to_string());
  else if (before.phase == Phase::published && run_.truth().of(block) == before)
    run_.found_wrong(Wrong::lost, block, "published, and " + error.to_string());
  else
    add(counts_.pending);  // another worker is just making it
  return Read::done;
}

void Worker::judge(uint32_t block, Fact before, std::span<const std::byte> bytes, const char* how) {
  const SeenBlock seen = see_block(bytes);
  judge_block(run_, block, before, seen, how);
}

// --- making ------------------------------------------------------------------------------------------

Worker::Made Worker::make(uint32_t block) {
  const uint64_t begin = monotonic_ns();
  const Result<SharedTensor> tensor = create(block);
  if (!tensor.ok()) {
    if (tensor.error().code == ErrorCode::already_exists) return Made::exists;
    add(tensor.error().code == ErrorCode::busy ? counts_.pending : counts_.not_stored);
    return Made::not_stored;
  }
  const Fact creating = run_.truth().begin_creating(block);
  store(block, *tensor, creating.generation);
  run_.truth().change(block, creating, {Phase::published, creating.generation});
  counts_.store.add(monotonic_ns() - begin);
  run_.used(block);
  own_->add(block, *tensor);
  add(counts_.stored);
  if (run_.settings().plant == Plant::lost && ++made_ % planted_every == 0) own_->lose(block);
  return Made::stored;
}

// Room is made, when there is none, from what was not used for longest.
Result<SharedTensor> Worker::create(uint32_t block) {
  const std::string name = block_name(block);
  const TensorSpec spec{
      .name = name, .dtype = DType::u8, .shape = {run_.settings().block_bytes}, .hint = TensorHint::kv_cache};
  for (;;) {
    Result<SharedTensor> tensor = space_->create(spec, {.double_buffered = run_.settings().rewrite_every != 0});
    if (tensor.ok() || tensor.error().code != ErrorCode::capacity_exhausted || !own_->evict_one())
      return tensor;
  }
}

void Worker::store(uint32_t block, const SharedTensor& tensor, uint64_t generation) {
  const Result<LocalReplica> replica = replicas_->overwrite(tensor);
  if (!replica.ok()) return run_.found_wrong(Wrong::lost, block, replica.error().to_string());
  const std::span<std::byte> bytes = *replicas_->modified_bytes(*replica);
  fill_block(bytes, block, generation);
  if (run_.settings().plant == Plant::torn && ++made_ % planted_every == 0)
    fill_block(bytes.subspan(bytes.size() / 2), block, generation + 1);
  const Result<uint64_t> version = replicas_->write_back(*replica);
  if (!version.ok()) run_.found_wrong(Wrong::lost, block, "not published: " + version.error().to_string());
  add(counts_.stored_bytes, bytes.size());
}

// The owner publishes a next generation of a block, as one that was computed again.
void Worker::rewrite(uint32_t block, const SharedTensor& tensor) {
  const Fact fact = run_.truth().of(block);
  const Fact rewriting{Phase::rewriting, fact.generation + 1}, next{Phase::published, fact.generation + 1};
  if (fact.phase != Phase::published || !run_.truth().change(block, fact, rewriting)) return;
  bool published = run_.settings().plant == Plant::stale;  // says so, and does nothing
  if (!published) {
    const Result<LocalReplica> replica = replicas_->fetch(tensor);
    if (replica.ok()) {
      const Result<std::span<std::byte>> bytes = replicas_->mark_modified(*replica);
      if (bytes.ok()) fill_block(*bytes, block, next.generation);
      published = bytes.ok() && replicas_->write_back(*replica).ok();
    }
    if (!published) replicas_->discard(tensor);  // somebody reads the other slot in place
  }
  run_.truth().change(block, rewriting, published ? next : fact);
  if (!published) return;
  add(counts_.rewritten);
  add(counts_.stored_bytes, tensor.bytes());
}

void Worker::keep_counts() {
  const LocalReplicaStats stats = replicas_->stats();
  counts_.copied_bytes = before_.copied_bytes + stats.copied_bytes;
  counts_.ddr_evicted = before_.evicted + stats.evicted;
  counts_.prefetched = before_.prefetched + stats.prefetched;
  counts_.prefetch_dropped = before_.prefetch_dropped + stats.prefetch_dropped;
}

}  // namespace terrace::bench
