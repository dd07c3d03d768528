// SPDX-License-Identifier: Apache-2.0
// Decides where each part of a catalog lies. Pure.
#include <unordered_set>

#include "core/base/units.h"
#include "core/layout/tensor_catalog.h"
#include "terrace/catalog.h"

namespace terrace {
namespace {

Error refuse(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = "CatalogPlan::make", .detail = std::move(detail)};
}

Status check_name(std::string_view name) {
  if (name.empty()) return refuse(ErrorCode::invalid_argument, "a tensor without a name; give it one");
  if (name.size() > layout::tensor_name_bytes_max) {
    return refuse(ErrorCode::invalid_argument,
                  "tensor " + quoted_name(name) + ": its name is longer than 1024 bytes; shorten it");
  }
  if (name.find('\0') != std::string_view::npos) {
    return refuse(ErrorCode::invalid_argument, "tensor " + quoted_name(name) + ": its name contains a NUL");
  }
  if (!is_utf8(name)) {
    return refuse(ErrorCode::invalid_argument, "tensor " + quoted_name(name) + ": its name is not UTF-8");
  }
  return {};
}

}  // namespace

Result<CatalogPlan> CatalogPlan::make(std::vector<TensorSpec> tensors, TensorMetadata metadata) {
  if (tensors.size() > layout::catalog_records_max) {
    return refuse(ErrorCode::limit_exceeded, "a catalog holds at most 1048576 tensors");
  }
  if (metadata.size() > layout::catalog_metadata_entries_max) {
    return refuse(ErrorCode::limit_exceeded, "a catalog holds at most 65536 metadata entries");
  }
  CatalogPlan plan;
  std::unordered_set<std::string_view> names;
  for (const TensorSpec& tensor : tensors) {
    TERRACE_RETURN_IF_ERROR(check_name(tensor.name));
    if (!names.insert(tensor.name).second) {
      return refuse(ErrorCode::invalid_argument, "tensor " + quoted_name(tensor.name) + " comes twice");
    }
    if ((tensor.flags & ~TensorFlags::all) != 0) {
      return refuse(ErrorCode::invalid_argument, "tensor " + quoted_name(tensor.name) + ": unknown flags");
    }
    Result<uint64_t> bytes = terrace::tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes.ok()) {
      return refuse(bytes.error().code, "tensor " + quoted_name(tensor.name) + ": " + bytes.error().detail);
    }
    plan.places_.push_back({.offset = 0, .bytes = *bytes, .name_offset = plan.names_bytes_});
    plan.names_bytes_ += tensor.name.size();
  }
  for (const auto& [key, value] : metadata) {
    if (!is_utf8(key) || !is_utf8(value)) {
      return refuse(ErrorCode::invalid_argument, "metadata " + quoted_name(key) + " is not UTF-8");
    }
    plan.metadata_bytes_ += 8 + key.size() + value.size();
  }
  if (plan.names_bytes_ > layout::catalog_names_bytes_max ||
      plan.metadata_bytes_ > layout::catalog_metadata_bytes_max) {
    return refuse(ErrorCode::limit_exceeded, "more than 1 GiB of names or 100 MB of metadata");
  }

  plan.names_offset_ = sizeof(layout::CatalogHeader) + tensors.size() * sizeof(layout::TensorRecord);
  plan.metadata_offset_ = round_up(plan.names_offset_ + plan.names_bytes_, layout::tensor_alignment_bytes);
  plan.data_offset_ =
      round_up(plan.metadata_offset_ + plan.metadata_bytes_, layout::catalog_data_alignment_bytes);
  uint64_t end = plan.data_offset_;
  for (Place& place : plan.places_) {
    place.offset = round_up(end, layout::tensor_alignment_bytes);
    if (__builtin_add_overflow(place.offset, place.bytes, &end) || end > static_cast<uint64_t>(INT64_MAX)) {
      return refuse(ErrorCode::limit_exceeded, "the tensors together have more bytes than any memory");
    }
  }
  plan.total_bytes_ = round_up(end, layout::tensor_alignment_bytes);
  plan.tensors_ = std::move(tensors);
  plan.metadata_ = std::move(metadata);
  return plan;
}

}  // namespace terrace
