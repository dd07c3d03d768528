// SPDX-License-Identifier: Apache-2.0
#include "libclient/cache/cache_bytes.h"

namespace terrace {

std::string CacheBytes::in_use_text() const {
  return "of a budget of " + std::to_string(budget) + " bytes " + std::to_string(resident) +
         " are in use (pinned " + std::to_string(pinned) + ", modified " + std::to_string(modified) +
         ", being copied " + std::to_string(moving) + ")";
}

std::string CacheBytes::no_room_text(std::string_view tier, uint64_t needed_bytes, uint64_t short_bytes) const {
  return "needs " + std::to_string(needed_bytes) + " bytes in tier " + std::string(tier) + ", " +
         std::to_string(short_bytes) + " short: " + in_use_text() +
         "; let replicas go, write modified ones back, or raise the budget";
}

}  // namespace terrace
