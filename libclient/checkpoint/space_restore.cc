// SPDX-License-Identifier: Apache-2.0
#include "libclient/checkpoint/space_restore.h"

#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "core/os/fault_guard.h"
#include "libclient/checkpoint/abandon.h"
#include "libclient/checkpoint/restore.h"
#include "libclient/checkpoint/subset.h"
#include "libclient/io/pool_transfer.h"
#include "libclient/io/transfer.h"

namespace terrace::checkpoint {
namespace {

constexpr const char* where = "checkpoint";

Error wrong(ErrorCode code, const std::string& path, const SafetensorsEntry& entry, const std::string& what) {
  return {.code = code, .where = where, .detail = path + ": tensor " + quoted_name(entry.name) + " " + what};
}

// Slots of tensors that are being filled. Until they are published nothing of it is seen, and what was created
// is removed again.
class Slots {
 public:
  Slots(TensorSpace& space, const SpaceImportOptions& options) : space_(space), options_(options) {}
  ~Slots() {
    for (Slot& slot : slots_) {
      // In memory that is gone nothing can be given up: that is a store there.
      if (lost_ && slot.write) abandon(std::make_unique<TensorWrite>(std::move(*slot.write)));
      slot.write.reset();
      if (slot.created && !published_ && !lost_) (void)space_.remove(slot.tensor, options_.wait_ns);
    }
  }
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  Status add(const std::string& path, const SafetensorsEntry& entry) {
    TERRACE_ASSIGN_OR_RETURN(Slot slot, find_or_create(path, entry));
    slots_.push_back(std::move(slot));
    TERRACE_ASSIGN_OR_RETURN(TensorWrite write, space_.write(slots_.back().tensor, options_.wait_ns));
    slots_.back().write.emplace(std::move(write));
    return {};
  }
  bool fill(size_t index, uint64_t offset, std::span<const std::byte> bytes) {
    std::byte* const to = slots_[index].write->bytes().data() + offset;
    lost_ = !os::guarded([&] { std::memcpy(to, bytes.data(), bytes.size()); });
    return !lost_;
  }
  Status publish() {
    for (Slot& slot : slots_) {
      if (slot.write->publish() == 0) {
        const Status health = space_.health();
        lost_ = !health.ok();
        if (lost_) return health;
        return Error{.code = ErrorCode::cancelled,
                     .where = where,
                     .detail = "a forked child publishes nothing: attach the space in the child"};
      }
      slot.write.reset();
      published_ = true;
    }
    return {};
  }
  std::vector<SharedTensor> tensors() const {
    std::vector<SharedTensor> tensors;
    for (const Slot& slot : slots_) tensors.push_back(slot.tensor);
    return tensors;
  }

 private:
  struct Slot {
    SharedTensor tensor;
    bool created = false;
    std::optional<TensorWrite> write = {};
  };

  Result<Slot> find_or_create(const std::string& path, const SafetensorsEntry& entry) {
    auto found = space_.open(entry.name);
    if (found.ok() && !options_.into_existing)
      return wrong(ErrorCode::already_exists, path, entry, "is in the space already");
    if (found.ok() && (found->dtype() != entry.dtype || found->shape() != entry.shape))
      return wrong(ErrorCode::invalid_argument, path, entry,
                   "is " + std::string(dtype_name(entry.dtype)) + " " + entry.shape.to_string() +
                       " in the file, " + std::string(dtype_name(found->dtype())) + " " +
                       found->shape().to_string() + " in the space");
    if (found.ok()) return Slot{.tensor = std::move(*found)};
    if (found.error().code != ErrorCode::not_found) return found.error();
    const CreateOptions how{.double_buffered = options_.double_buffered, .wait_ns = options_.wait_ns};
    TERRACE_ASSIGN_OR_RETURN(
        SharedTensor made,
        space_.create({.name = entry.name, .dtype = entry.dtype, .shape = entry.shape, .hint = options_.hint},
                      how));
    return Slot{.tensor = std::move(made), .created = true};
  }

  TensorSpace& space_;
  const SpaceImportOptions& options_;
  std::vector<Slot> slots_;
  bool lost_ = false, published_ = false;
};

}  // namespace

Result<SpaceImport> restore(const std::string& path, const Manifest& manifest, TensorSpace& space,
                            const SpaceImportOptions& options) try {
  TERRACE_ASSIGN_OR_RETURN(const SafetensorsFile file, open_data(path, manifest));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<SafetensorsEntry> entries,
                           choose_checked(file, path, manifest, options.tensors));
  Slots slots(space, options);
  for (const SafetensorsEntry& entry : entries) TERRACE_RETURN_IF_ERROR(slots.add(path, entry));
  TERRACE_ASSIGN_OR_RETURN(
      [[maybe_unused]] const BlockIoReport read,
      read_some(file, path, manifest, entries, options,
                [&](size_t index, uint64_t offset, std::span<const std::byte> bytes) -> Status {
                  if (slots.fill(index, offset, bytes)) return {};
                  return wrong(ErrorCode::lease_expired, path, entries[index],
                               "cannot be filled: the lease behind the space is lost");
                }));
  TERRACE_RETURN_IF_ERROR(slots.publish());
  return SpaceImport{.tensors = slots.tensors(), .metadata = file.index.metadata};
} catch (const std::bad_alloc&) {
  return Error{.code = ErrorCode::out_of_memory, .where = where, .detail = path + ": no local memory"};
}

}  // namespace terrace::checkpoint
