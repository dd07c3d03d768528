// SPDX-License-Identifier: Apache-2.0
// The schema's words for the library's enums, whose numbers are the same (wire.cc).
#include "terrace/words.h"

#include "core/schema/terrace.capnp.h"
#include "core/schema/words.h"

namespace terrace {

std::string_view lease_cause_name(LeaseCause cause) {
  if (cause == LeaseCause::none) return "";
  return schema::enum_word(static_cast<rpc::LeaseCause>(cause));
}

std::string_view memory_coherence_name(MemoryCoherence coherence) {
  return schema::enum_word(static_cast<rpc::Coherence>(coherence));
}

std::string_view lease_mode_name(LeaseMode mode) {
  return schema::enum_word(static_cast<rpc::LeaseMode>(mode));
}

std::optional<LeaseMode> lease_mode_of_name(std::string_view name) {
  const auto mode = schema::enum_of_word<rpc::LeaseMode>(name);
  if (!mode) return std::nullopt;
  return static_cast<LeaseMode>(*mode);
}

const std::vector<std::string>& lease_mode_names() {
  return schema::enum_words<rpc::LeaseMode>();
}

std::string_view on_fence_name(OnFence on_fence) {
  return schema::enum_word(static_cast<rpc::OnFence>(on_fence));
}

std::optional<OnFence> on_fence_of_name(std::string_view name) {
  const auto on_fence = schema::enum_of_word<rpc::OnFence>(name);
  if (!on_fence) return std::nullopt;
  return static_cast<OnFence>(*on_fence);
}

std::string_view pool_placement_name(PoolPlacement placement) {
  return schema::enum_word(static_cast<rpc::Placement>(placement));
}

}  // namespace terrace
