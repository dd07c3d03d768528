// SPDX-License-Identifier: Apache-2.0
#include "libclient/placement/tensor.h"

#include <optional>
#include <utility>

#include "core/base/units.h"

namespace terrace::placement {
namespace {

// From the lowest to the highest element of a view, counted from its base's first; one behind the last.
struct Extent {
  int64_t low = 0, high = 0;
};

// nullopt: outside [0, elements), or no numbers for it.
std::optional<Extent> extent_of(const Shape& shape, const Strides& strides, uint64_t offset,
                                uint64_t elements) {
  for (uint32_t i = 0; i < shape.rank(); ++i)
    if (shape[i] == 0) return Extent{};
  if (offset >= elements || elements > INT64_MAX) return std::nullopt;
  auto low = static_cast<int64_t>(offset), high = low;
  for (uint32_t i = 0; i < shape.rank(); ++i) {
    int64_t reach = 0;
    if (shape[i] - 1 > INT64_MAX ||
        __builtin_mul_overflow(static_cast<int64_t>(shape[i] - 1), strides[i], &reach) ||
        __builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high))
      return std::nullopt;
  }
  if (low < 0 || static_cast<uint64_t>(high) >= elements) return std::nullopt;
  return Extent{low, high + 1};
}

class View final : public Tensor {
 public:
  View(std::shared_ptr<Storage> storage, Shape shape, const Strides& strides, uint64_t offset,
       std::span<std::byte> bytes, bool view)
      : storage_(std::move(storage)),
        shape_(shape),
        strides_(strides),
        offset_(offset),
        bytes_(bytes),
        view_(view) {}

  const std::string& name() const override { return storage_->name; }
  DType dtype() const override { return storage_->dtype; }
  const Shape& shape() const override { return shape_; }
  const Strides& strides() const override { return strides_; }
  TensorHint hint() const override {
    const MutexLock lock(core().mutex());
    return storage_->hint;
  }
  uint8_t flags() const override {
    const MutexLock lock(core().mutex());
    return storage_->flags;
  }
  bool is_view() const override { return view_; }
  std::byte* data() const override {
    if (bytes_.empty()) return nullptr;
    return view_ ? core().base() + storage_->place.offset + offset_ * dtype_element_bytes(dtype())
                 : bytes_.data();
  }
  std::span<std::byte> bytes() const override { return bytes_; }

  Result<std::shared_ptr<Tensor>> slice(uint32_t dimension, uint64_t start, uint64_t length,
                                        uint64_t step) override;
  Result<std::shared_ptr<Tensor>> as_strided(const Shape& shape, const Strides& strides,
                                             uint64_t offset) override;

  Result<ReadGuard> read(const GuardOptions& options) override {
    TERRACE_ASSIGN_OR_RETURN(auto guard, core().open(storage_, bytes_, false, options));
    return ReadGuard(std::move(guard));
  }
  Result<WriteGuard> write(const GuardOptions& options) override {
    TERRACE_ASSIGN_OR_RETURN(auto guard, core().open(storage_, bytes_, true, options));
    return WriteGuard(std::move(guard));
  }

  Result<DeviceGuard> device_read(const DeviceGuardOptions& options) override {
    return device_guard(false, options);
  }
  Result<DeviceGuard> device_write(const DeviceGuardOptions& options) override {
    return device_guard(true, options);
  }
  Status write_back() override { return core().write_back(*storage_); }
  Status discard_hbm() override { return core().discard_hbm(*storage_); }

  Result<std::shared_ptr<MoveHandle>> pin(Tier tier) override { return core().pin(*storage_, tier); }
  Status unpin() override { return core().unpin(*storage_); }
  Result<std::shared_ptr<MoveHandle>> prefetch(Tier tier) override {
    return core().move(*storage_, bytes_, tier);
  }
  Result<std::shared_ptr<MoveHandle>> move_to(Tier tier) override {
    return core().move_from_hbm(*storage_, bytes_, tier);
  }
  void advise(const TensorAdvice& advice) override { core().advise(*storage_, advice); }
  TensorResidency residency() const override { return core().residency(*storage_, bytes_); }
  TensorStatistics statistics() const override { return core().statistics(*storage_); }

 private:
  Result<DeviceGuard> device_guard(bool write, DeviceGuardOptions options) {
    if (view_) options.overwrite = false;  // the rest of its base would be lost
    TERRACE_ASSIGN_OR_RETURN(auto guard, core().open_device(storage_, write, options));
    if (guard->opened.buffer != nullptr && !bytes_.empty())
      guard->address = guard->opened.buffer->address() +
                       static_cast<uint64_t>(data() - (core().base() + storage_->place.offset));
    guard->bytes = bytes_.size();
    guard->shape = shape_;
    guard->strides = strides_;
    return DeviceGuard(std::move(guard));
  }
  Core& core() const { return *storage_->core; }
  Error invalid(std::string detail) const {
    return {ErrorCode::invalid_argument, 0, "Tensor",
            "tensor " + quoted_name(name()) + ": " + std::move(detail)};
  }

  std::shared_ptr<Storage> storage_;
  Shape shape_;
  Strides strides_;
  uint64_t offset_;  // elements from the storage's first
  std::span<std::byte> bytes_;
  bool view_;
};

Result<std::shared_ptr<Tensor>> View::slice(uint32_t dimension, uint64_t start, uint64_t length,
                                            uint64_t step) {
  if (dimension >= shape_.rank())
    return invalid("no dimension " + std::to_string(dimension) + " in " + shape_.to_string());
  const uint64_t size = shape_[dimension];
  if (step == 0) return invalid("a slice of step 0");
  if (start > size || (length > 0 && (start == size || (length - 1) > (size - 1 - start) / step)))
    return invalid(std::to_string(length) + " elements from " + std::to_string(start) + " on in steps of " +
                   std::to_string(step) + " reach outside dimension " + std::to_string(dimension) + " of " +
                   shape_.to_string());
  std::array<uint64_t, Shape::rank_max> sizes{};
  for (uint32_t i = 0; i < shape_.rank(); ++i) sizes[i] = shape_[i];
  sizes[dimension] = length;
  TERRACE_ASSIGN_OR_RETURN(const Shape shape, Shape::from({sizes.data(), shape_.rank()}));
  Strides strides = strides_;
  // Of fewer than two elements a stride says nothing, and need not have a number.
  const bool empty = bytes_.empty() || length == 0;
  if (length > 1 && !empty) strides[dimension] *= static_cast<int64_t>(step);
  const int64_t offset =
      static_cast<int64_t>(offset_) + (empty ? 0 : static_cast<int64_t>(start) * strides_[dimension]);
  return as_strided(shape, strides, static_cast<uint64_t>(offset));
}

Result<std::shared_ptr<Tensor>> View::as_strided(const Shape& shape, const Strides& strides, uint64_t offset) {
  const uint64_t element = dtype_element_bytes(dtype());
  if (element == 0)
    return invalid(std::string(dtype_name(dtype())) + " elements share bytes: there are no views of them");
  const auto extent = extent_of(shape, strides, offset, storage_->bytes / element);
  if (!extent)
    return invalid("a view of " + shape.to_string() + " from element " + std::to_string(offset) +
                   " on reaches outside its base of " + storage_->shape.to_string());
  std::span<std::byte> bytes;
  if (extent->high > extent->low)
    bytes = {core().base() + storage_->place.offset + static_cast<uint64_t>(extent->low) * element,
             static_cast<uint64_t>(extent->high - extent->low) * element};
  return std::shared_ptr<Tensor>(std::make_shared<View>(storage_, shape, strides, offset, bytes, true));
}

}  // namespace

std::shared_ptr<Tensor> whole_tensor(std::shared_ptr<Storage> storage) {
  const Shape shape = storage->shape;
  const std::span<std::byte> bytes{storage->core->base() + storage->place.offset, storage->bytes};
  return std::make_shared<View>(std::move(storage), shape, row_major_strides(shape), 0, bytes, false);
}

}  // namespace terrace::placement
