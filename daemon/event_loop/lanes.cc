// SPDX-License-Identifier: Apache-2.0
// Which worker and which scrubber an object belongs to: those of this machine, or those of the host that has
// it.

#include "daemon/event_loop/engine.h"
#include "daemon/log/log.h"
#include "daemon/memory/remote/remote_memory.h"

namespace terrace::daemon {

Engine::Lane::Lane(Engine& engine)
    : urgent(engine.make_queue("urgent")),
      bulk(engine.make_queue("bulk")),
      scrubber(engine.backend_, bulk, engine.clock_, engine.timer_, engine.options_.scrub_bytes_per_s,
               engine.scrub_reports(), engine.tasks_, engine.options_.scrub_piece_bytes) {}

Engine::~Engine() noexcept = default;

std::unique_ptr<JobQueue> Engine::make_queue(const char* worker) const {
  if (options_.job_queues != nullptr) return options_.job_queues->make(worker);
  return Worker::make_thread(worker != std::string_view("bulk"));
}

Engine::Lane* Engine::lane_of(const std::string& object) {
  const std::string_view host = object_host(object);
  if (host.empty()) return nullptr;
  std::unique_ptr<Lane>& lane = lanes_[std::string(host)];
  if (lane == nullptr) lane = std::make_unique<Lane>(*this);
  return lane.get();
}

Worker& Engine::worker_of(const std::string& object, bool urgent) {
  if (Lane* lane = lane_of(object); lane != nullptr) return urgent ? lane->urgent : lane->bulk;
  return urgent ? urgent_worker_ : bulk_worker_;
}

ShareKey Engine::share_of(LeaseId lease) const {
  const LeaseRow* row = state_->find_lease(lease);
  return row == nullptr ? JobQueue::of_nobody : std::hash<std::string>()(row->tenant);
}

Scrubber& Engine::scrubber_of(const std::string& object) {
  Lane* lane = lane_of(object);
  return lane == nullptr ? scrubber_ : lane->scrubber;
}

Scrubber::Reports Engine::scrub_reports() {
  return {[this](PoolId pool) { return state_->has_waiting(pool); },
          [this](LeaseId lease, uint64_t granules) {
            if (!refusing_) apply(ScrubAdvanced{lease, granules, clock_.now_ns()}, nullptr);
          },
          [this](const ScrubObject& job, Status status, uint64_t took_ns) {
            if (refusing_) return;  // recovery looks at every lease again
            if (!status.ok())
              log::error("lease {} could not be scrubbed: {}", job.lease.value, status.error().to_string());
            if (status.ok()) times_.scrubs.add(took_ns);
            note_kept_memory(job.lease, status);
            trace_lease(job.lease, "scrub", clock_.now_ns() - took_ns);
            const bool erased = status.ok();
            apply(ScrubFinished{job.lease, std::move(status), clock_.now_ns()}, nullptr);
            if (erased && ender_ != nullptr && state_->find_lease(job.lease) == nullptr)
              ender_->forget(job.object);
            if (erased) ended_by_.erase(job.lease.value);
          }};
}

bool Engine::scrubbers_idle() const {
  for (const auto& [host, lane] : lanes_)
    if (!lane->scrubber.idle()) return false;
  return scrubber_.idle();
}

void Engine::clear_scrubbers() {
  scrubber_.clear();
  for (const auto& [host, lane] : lanes_) lane->scrubber.clear();
}

ScrubCounters Engine::scrub_counters() const {
  ScrubCounters all = scrubber_.counters();
  for (const auto& [host, lane] : lanes_) {
    all.scrubbed_bytes += lane->scrubber.counters().scrubbed_bytes;
    all.queued_bytes += lane->scrubber.counters().queued_bytes;
  }
  return all;
}

}  // namespace terrace::daemon
