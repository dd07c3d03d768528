// SPDX-License-Identifier: Apache-2.0
// One worker: takes requests in order, looks their blocks up, reads what is there, makes what is not.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "bench/kv_replay/shared_run.h"
#include "core/base/result.h"
#include "terrace/local_replicas.h"
#include "terrace/mapping.h"
#include "terrace/session.h"
#include "terrace/tensor_space.h"

namespace terrace::bench {

// The blocks in this worker's part by last use, by whichever worker.
class OwnBlocks {
 public:
  OwnBlocks(SharedRun& run, TensorSpace& space, LocalReplicas& replicas, WorkerCounts& counts)
      : run_(run), space_(space), replicas_(replicas), counts_(counts) {}

  void add(uint32_t block, const SharedTensor& tensor);
  // Removes the block that was not used for longest and that nobody reads in place. false: there is none.
  bool evict_one();
  // Removes a block and tells nobody: a planted fault.
  void lose(uint32_t block);

 private:
  enum class Removed : uint8_t { yes, busy, not_ours };
  Removed remove(uint32_t block, const SharedTensor& tensor);

  SharedRun& run_;
  TensorSpace& space_;
  LocalReplicas& replicas_;
  WorkerCounts& counts_;
  std::set<std::pair<uint64_t, uint32_t>> by_use_;  // a stamp that may be old, block
  std::unordered_map<uint32_t, SharedTensor> tensors_;
};

class Worker {
 public:
  // Errors    those of connecting, attaching and mapping
  static Result<std::unique_ptr<Worker>> start(SharedRun& run, uint32_t number);

  // What a killed predecessor left in the part: kept, finished or removed.
  void adopt();
  void work();  // until there are no more requests

 private:
  enum class Read : uint8_t { done, gone };
  enum class Made : uint8_t { stored, exists, not_stored };

  Worker(SharedRun& run, uint32_t number) : run_(run), counts_(run.control().workers[number]) {}
  void wait_until_due(const TraceRequest& request) const;
  void serve(const TraceRequest& request);
  std::optional<SharedTensor> find(uint32_t block);
  void use(uint32_t block, std::optional<SharedTensor> tensor);
  Read read(uint32_t block, const SharedTensor& tensor);
  Read read_in_place(uint32_t block, const SharedTensor& tensor);
  Read failed(uint32_t block, Fact before, const Error& error);
  void judge(uint32_t block, Fact before, std::span<const std::byte> bytes, const char* how);
  Made make(uint32_t block);
  Result<SharedTensor> create(uint32_t block);
  void store(uint32_t block, const SharedTensor& tensor, uint64_t generation);
  void rewrite(uint32_t block, const SharedTensor& tensor);
  void adopt_one(uint32_t block, const SharedTensor& tensor, std::span<std::byte> scratch);
  void keep_counts();

  SharedRun& run_;
  WorkerCounts& counts_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Mapping> mapping_;
  std::unique_ptr<TensorSpace> space_;
  std::unique_ptr<LocalReplicas> replicas_;
  std::unique_ptr<OwnBlocks> own_;
  LocalReplicaStats before_;  // what predecessors had counted
  uint64_t pool_reads_ = 0, own_uses_ = 0, made_ = 0;
};

// The program as a worker. Returns its exit code.
int run_worker(int shared_fd, uint32_t number);

}  // namespace terrace::bench
