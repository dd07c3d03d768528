// SPDX-License-Identifier: Apache-2.0
#include "libclient/coherence/holder_claims.h"

namespace terrace::coherence {
namespace {

// "an owner by the manager (ownership_by_manager)"
std::string owner_by(uint64_t kind) {
  switch (static_cast<layout::OwnershipKind>(kind)) {
    case layout::OwnershipKind::manager: return "an owner by the manager (ownership_by_manager)";
    case layout::OwnershipKind::hosts: return "an owner by host (ownership_by_host_ranges)";
    case layout::OwnershipKind::locks: return "an owner by file locks (ownership_by_locks)";
    case layout::OwnershipKind::program: return "an owner by a source that a program made";
    default: return "an owner by a kind of source that this program does not know";
  }
}

}  // namespace

Error other_kind_of_owners(const char* what, uint64_t of_space, uint64_t of_source) {
  return Error{.code = ErrorCode::permission_denied,
               .where = what,
               .detail = std::string(what) + ": it had " + owner_by(of_space) +
                         ", or was formatted for one, and this holder asks for " + owner_by(of_source) +
                         ": all holders of a space use the same kind of source; format it anew to change that"};
}

}  // namespace terrace::coherence
