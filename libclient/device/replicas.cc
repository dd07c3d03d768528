// SPDX-License-Identifier: Apache-2.0
// The public faces of the replica table: handles, and the cache itself.
#include "terrace/device_replicas.h"

#include "libclient/device/replica_table.h"

namespace terrace {
namespace {

class Replicas final : public DeviceReplicas {
 public:
  explicit Replicas(std::shared_ptr<Replica::Table> table) : table_(std::move(table)) {}
  ~Replicas() override { table_->close(); }

  Result<Replica> fetch(const ReplicaSource& source, uint64_t version) override {
    return table_->fetch(source, version);
  }
  Status mark_modified(const Replica& replica) override { return table_->mark_modified(replica); }
  Result<DeviceEvent> write_back(const Replica& replica, std::span<std::byte> to,
                                 uint64_t new_version) override {
    return table_->write_back(replica, to, new_version);
  }
  Status invalidate(uint64_t id, uint64_t version_now) override { return table_->invalidate(id, version_now); }
  void discard(uint64_t id) override { table_->discard(id); }
  ReplicaState state(uint64_t id, uint64_t version) const override { return table_->state(id, version); }
  void set_budget(uint64_t bytes) override { table_->set_budget(bytes); }
  ReplicaStats stats() const override { return table_->stats(); }

 private:
  const std::shared_ptr<Replica::Table> table_;
};

}  // namespace

Result<std::unique_ptr<DeviceReplicas>> DeviceReplicas::make(std::shared_ptr<DeviceMemory> device,
                                                             const DeviceReplicasOptions& options) {
  const uint64_t capacity_bytes = device->info().capacity_bytes;
  const uint64_t budget_bytes = options.budget_bytes != 0 ? options.budget_bytes : capacity_bytes / 10 * 9;
  auto table = std::make_shared<Replica::Table>(std::move(device), budget_bytes);
  TERRACE_RETURN_IF_ERROR(table->start());
  return std::unique_ptr<DeviceReplicas>(std::make_unique<Replicas>(std::move(table)));
}

Replica::Replica(std::shared_ptr<Table> table, std::shared_ptr<Entry> entry)
    : table_(std::move(table)), entry_(std::move(entry)) {}

Replica& Replica::operator=(Replica&& other) noexcept {
  if (this != &other) {
    release();
    table_ = std::move(other.table_);
    entry_ = std::move(other.entry_);
  }
  return *this;
}

void Replica::release() {
  if (entry_ != nullptr) table_->unpin(*entry_);
  entry_ = nullptr;
  table_ = nullptr;
}

uint64_t Replica::id() const {
  return entry_->id;
}

uint64_t Replica::version() const {
  return entry_->version.load(std::memory_order_relaxed);
}

uint64_t Replica::address() const {
  return entry_->buffer->address();
}

uint64_t Replica::bytes() const {
  return entry_->bytes;
}

const std::shared_ptr<DeviceBuffer>& Replica::buffer() const {
  return entry_->buffer;
}

const DeviceEvent& Replica::ready() const {
  return entry_->ready;
}

Result<dlpack::Memory> Replica::dlpack_memory(DType dtype, const Shape& shape) const {
  constexpr const char* where = "Replica::dlpack_memory";
  const std::string text = "tensor " + std::to_string(entry_->id) + " " + quoted_name(entry_->name);
  if (!ready().done()) {
    return Error{ErrorCode::busy, 0, where, text + " is still being copied to tier hbm: wait for ready()"};
  }
  TERRACE_RETURN_IF_ERROR(ready().wait());
  TERRACE_ASSIGN_OR_RETURN(const uint64_t needed_bytes, tensor_bytes(dtype, shape));
  if (needed_bytes > entry_->bytes) {
    return Error{ErrorCode::invalid_argument, 0, where,
                 text + " has " + std::to_string(entry_->bytes) +
                     " bytes in tier hbm: " + std::string(dtype_name(dtype)) + " " + shape.to_string() +
                     " needs " + std::to_string(needed_bytes - entry_->bytes) + " more"};
  }
  return dlpack::Memory{.data = reinterpret_cast<const void*>(address()),
                        .device = dlpack::device_of(table_->device_info()),
                        .dtype = dtype,
                        .shape = shape,
                        .strides = row_major_strides(shape),
                        .keep = std::make_shared<Replica>(table_->pin_again(entry_)),
                        .read_only = false};
}

}  // namespace terrace
