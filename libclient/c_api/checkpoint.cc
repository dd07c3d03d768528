// SPDX-License-Identifier: Apache-2.0
// A checkpoint that is being written, and tensors that were restored, for C.
#include <cstdio>
#include <utility>

#include "libclient/c_api/call.h"
#include "libclient/c_api/handles.h"
#include "libclient/c_api/transfer.h"

using namespace terrace;
using namespace terrace::c_api;

namespace {

Result<CheckpointOptions> checkpoint_options(const terrace_checkpoint_options* options, const char* where) {
  TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(options, where));
  if (given.metadata_count > SIZE_MAX / 2) return invalid(where, "metadata_count is beyond all memory");
  TERRACE_ASSIGN_OR_RETURN(auto strings,
                           strings_of(given.metadata, 2 * given.metadata_count, "metadata", where));
  CheckpointOptions wanted;
  for (size_t i = 0; i < strings.size(); i += 2)
    wanted.metadata.emplace_back(std::move(strings[i]), std::move(strings[i + 1]));
  if (given.room_bytes_max != 0) wanted.room_bytes_max = given.room_bytes_max;
  TERRACE_RETURN_IF_ERROR(add_transfer(given.transfer, wanted, where));
  return wanted;
}

struct terrace_checkpoint_progress in_c(const CheckpointProgress& of) {
  struct terrace_checkpoint_progress told {};
  told.file_bytes = of.file_bytes;
  told.written_bytes = of.written_bytes;
  told.pause_ns = of.pause_ns;
  told.snapshot_bytes = of.snapshot_bytes;
  told.copied_bytes = of.copied_bytes;
  told.copied_at_once_bytes = of.copied_at_once_bytes;
  told.room_bytes = of.room_bytes;
  told.waits_for_room = of.waits_for_room;
  std::snprintf(told.reason, sizeof told.reason, "%s", of.reason.c_str());
  return told;
}

}  // namespace

extern "C" {

terrace_code terrace_checkpoint_begin(terrace_checkpoints* directory, const char* name, terrace_pool* pool,
                                      terrace_tensor* const* tensors, size_t tensor_count,
                                      const struct terrace_checkpoint_options* options,
                                      terrace_checkpoint** checkpoint) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_checkpoint_begin";
    TERRACE_C_NEED(where, directory);
    TERRACE_C_NEED(where, name);
    TERRACE_C_NEED(where, pool);
    TERRACE_C_NEED(where, checkpoint);
    if (tensor_count > 0) TERRACE_C_NEED(where, tensors);
    TERRACE_ASSIGN_OR_RETURN(const CheckpointOptions wanted, checkpoint_options(options, where));
    std::vector<std::shared_ptr<Tensor>> all;
    for (size_t i = 0; i < tensor_count; ++i) {
      if (tensors[i] == nullptr) return invalid(where, "tensor " + std::to_string(i) + " is NULL");
      all.push_back(tensors[i]->tensor);
    }
    TERRACE_ASSIGN_OR_RETURN(auto write, directory->directory->checkpoint(name, *pool->pool, all, wanted));
    *checkpoint = new terrace_checkpoint{std::move(write)};
    return {};
  });
}

int terrace_checkpoint_done(const terrace_checkpoint* checkpoint) {
  return checkpoint != nullptr && checkpoint->write->done() ? 1 : 0;
}

terrace_code terrace_checkpoint_wait(terrace_checkpoint* checkpoint, uint64_t timeout_ns) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_checkpoint_wait", checkpoint);
    return checkpoint->write->wait(timeout_ns);
  });
}

terrace_code terrace_checkpoint_get_progress(const terrace_checkpoint* checkpoint,
                                             struct terrace_checkpoint_progress* progress) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_checkpoint_get_progress";
    TERRACE_C_NEED(where, checkpoint);
    TERRACE_C_NEED(where, progress);
    return give(progress, in_c(checkpoint->write->progress()), where);
  });
}

void terrace_checkpoint_cancel(terrace_checkpoint* checkpoint) {
  if (checkpoint != nullptr) checkpoint->write->cancel();
}

void terrace_checkpoint_free(terrace_checkpoint* checkpoint) {
  delete checkpoint;
}

size_t terrace_tensors_count(const terrace_tensors* tensors) {
  return tensors == nullptr ? 0 : tensors->tensors.size();
}

terrace_code terrace_tensors_get(const terrace_tensors* tensors, size_t index, terrace_tensor** tensor) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_tensors_get";
    TERRACE_C_NEED(where, tensors);
    TERRACE_C_NEED(where, tensor);
    if (index >= tensors->tensors.size())
      return invalid(where, "index " + std::to_string(index) + " of " +
                                std::to_string(tensors->tensors.size()) + " tensors");
    *tensor = new terrace_tensor{tensors->tensors[index]};
    return {};
  });
}

const char* terrace_tensors_metadata(const terrace_tensors* tensors, const char* key) {
  if (tensors == nullptr || key == nullptr) return nullptr;
  for (const auto& entry : tensors->metadata)
    if (entry.first == key) return entry.second.c_str();
  return nullptr;
}

void terrace_tensors_free(terrace_tensors* tensors) {
  delete tensors;
}

}  // extern "C"
