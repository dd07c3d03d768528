// SPDX-License-Identifier: Apache-2.0
// The public faces of the table: handles, and the cache itself.
#include "terrace/local_replicas.h"

#include "libclient/replicas/table.h"

namespace terrace {
namespace {

class Replicas final : public LocalReplicas {
 public:
  explicit Replicas(std::shared_ptr<LocalReplica::Table> table) : table_(std::move(table)) {}
  ~Replicas() override { table_->close(); }

  Result<LocalReplica> fetch(const SharedTensor& tensor) override { return table_->fetch(tensor); }
  void prefetch(std::span<const SharedTensor> tensors) override { table_->prefetch(tensors); }
  Result<LocalReplica> overwrite(const SharedTensor& tensor) override { return table_->overwrite(tensor); }
  Result<std::span<std::byte>> mark_modified(const LocalReplica& replica) override {
    return table_->modify(replica, false);
  }
  Result<std::span<std::byte>> modified_bytes(const LocalReplica& replica) override {
    return table_->modify(replica, true);
  }
  Result<uint64_t> write_back(const LocalReplica& replica) override { return table_->write_back(replica); }
  void discard(const SharedTensor& tensor) override { table_->discard(tensor); }
  ReplicaState state(const SharedTensor& tensor) override { return table_->state(tensor); }
  void set_budget(uint64_t bytes) override { table_->set_budget(bytes); }
  LocalReplicaStats stats() const override { return table_->stats(); }

 private:
  const std::shared_ptr<LocalReplica::Table> table_;
};

}  // namespace

Result<std::unique_ptr<LocalReplicas>> LocalReplicas::make(TensorSpace& space,
                                                           const LocalReplicasOptions& options) {
  if (options.budget_bytes == 0)
    return Error{ErrorCode::invalid_argument, 0, "LocalReplicas::make",
                 "a budget of no bytes holds no replica"};
  auto table = std::make_shared<LocalReplica::Table>(space, options);
  TERRACE_RETURN_IF_ERROR(table->start());
  return std::unique_ptr<LocalReplicas>(std::make_unique<Replicas>(std::move(table)));
}

LocalReplica::LocalReplica(std::shared_ptr<Table> table, std::shared_ptr<Entry> entry)
    : table_(std::move(table)), entry_(std::move(entry)) {}

LocalReplica& LocalReplica::operator=(LocalReplica&& other) noexcept {
  if (this != &other) {
    release();
    table_ = std::move(other.table_);
    entry_ = std::move(other.entry_);
  }
  return *this;
}

void LocalReplica::release() {
  if (entry_ != nullptr) table_->unpin(*entry_);
  entry_ = nullptr;
  table_ = nullptr;
}

const SharedTensor& LocalReplica::tensor() const {
  return entry_->tensor;
}

std::span<const std::byte> LocalReplica::bytes() const {
  return entry_->span();
}

uint64_t LocalReplica::version() const {
  return entry_->version.load(std::memory_order_relaxed);
}

}  // namespace terrace
