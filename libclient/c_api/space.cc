// SPDX-License-Identifier: Apache-2.0
// Tensor spaces for C: making them, taking part in them, finding tensors.
#include <utility>

#include "libclient/c_api/call.h"
#include "libclient/c_api/handles.h"
#include "libclient/c_api/spec.h"

using namespace terrace;
using namespace terrace::c_api;

namespace {

std::span<std::byte> memory_of(void* memory, uint64_t bytes) {
  return {static_cast<std::byte*>(memory), bytes};
}

Result<AttachOptions> attach_options(const terrace_attach_options* options, const char* where) {
  TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(options, where));
  AttachOptions wanted;
  if (given.ownership != nullptr) wanted.ownership = given.ownership->source;
  TERRACE_ASSIGN_OR_RETURN(const auto claim,
                           enum_of<int>(given.claim, 2, "time to claim a part (TERRACE_CLAIM_...)", where));
  if (given.reserved != 0)
    return Error{ErrorCode::version_mismatch, 0, where, "reserved is not 0: built for a newer libterrace"};
  wanted.claim = claim == TERRACE_CLAIM_AT_ONCE ? PartClaim::at_once : PartClaim::when_needed;
  wanted.own_a_part = given.without_part == 0;
  if (given.choose_part != 0) wanted.part = given.part;
  wanted.host = given.host;
  return wanted;
}

Status give_shared(const terrace_space& space, Result<SharedTensor> tensor, terrace_shared** into) {
  if (!tensor.ok()) return std::move(tensor).error();
  *into = new terrace_shared{space.space, *tensor, std::string(tensor->name())};
  return {};
}

}  // namespace

extern "C" {

terrace_code terrace_ownership_by_manager(terrace_lease* lease, terrace_ownership** ownership) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_ownership_by_manager";
    TERRACE_C_NEED(where, lease);
    TERRACE_C_NEED(where, ownership);
    TERRACE_ASSIGN_OR_RETURN(auto made, ownership_by_manager(lease->lease));
    *ownership = new terrace_ownership{std::move(made)};
    return {};
  });
}

terrace_code terrace_ownership_by_locks(int fd, uint64_t space_offset, terrace_ownership** ownership) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_ownership_by_locks";
    TERRACE_C_NEED(where, ownership);
    if (fd < 0) return invalid(where, std::to_string(fd) + " is no descriptor");
    TERRACE_ASSIGN_OR_RETURN(auto made, ownership_by_locks(fd, space_offset));
    *ownership = new terrace_ownership{std::move(made)};
    return {};
  });
}

void terrace_ownership_free(terrace_ownership* ownership) {
  delete ownership;
}

terrace_code terrace_space_format(void* memory, uint64_t bytes, const terrace_space_options* options) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_space_format";
    TERRACE_C_NEED(where, memory);
    TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(options, where));
    TERRACE_ASSIGN_OR_RETURN(
        const auto coherence,
        enum_of<SpaceCoherence>(given.coherence, 2, "coherence (TERRACE_SPACE_...)", where));
    if (given.checksums < 0 || given.checksums > TERRACE_CHECKSUMS_OFF)
      return invalid(where, std::to_string(given.checksums) + " is none of TERRACE_CHECKSUMS_...");
    SpaceOptions wanted;
    if (given.parts != 0) wanted.parts = given.parts;
    if (given.records_per_part != 0) wanted.records_per_part = given.records_per_part;
    if (given.pins_per_part != 0) wanted.pins_per_part = given.pins_per_part;
    if (given.set_coherence != 0 || coherence == SpaceCoherence::noncoherent) wanted.coherence = coherence;
    if (given.seats != 0) wanted.seats = given.seats;
    TERRACE_ASSIGN_OR_RETURN(const auto ownership,
                             enum_of<SpaceOwnership>(given.ownership, TERRACE_OWNERS_BY_PROGRAM + 1,
                                                     "kind of ownership (TERRACE_OWNERS_...)", where));
    if (given.ownership != TERRACE_OWNERS_AS_THE_FIRST) wanted.ownership = ownership;
    if (given.checksums != TERRACE_CHECKSUMS_BY_COHERENCE)
      wanted.checksums = given.checksums == TERRACE_CHECKSUMS_ON;
    wanted.lease_epoch = LeaseEpoch{given.lease_epoch};
    return TensorSpace::format(memory_of(memory, bytes), wanted);
  });
}

terrace_code terrace_space_attach(void* memory, uint64_t bytes, const terrace_attach_options* options,
                                  terrace_space** space) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_space_attach";
    TERRACE_C_NEED(where, memory);
    TERRACE_C_NEED(where, space);
    TERRACE_ASSIGN_OR_RETURN(AttachOptions wanted, attach_options(options, where));
    TERRACE_ASSIGN_OR_RETURN(auto made, TensorSpace::attach(memory_of(memory, bytes), std::move(wanted)));
    *space = new terrace_space{std::move(made)};
    return {};
  });
}

terrace_code terrace_space_attach_mapping(terrace_mapping* mapping, const terrace_attach_options* options,
                                          terrace_space** space) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_space_attach_mapping";
    TERRACE_C_NEED(where, mapping);
    TERRACE_C_NEED(where, space);
    TERRACE_ASSIGN_OR_RETURN(AttachOptions wanted, attach_options(options, where));
    const std::span<std::byte> bytes = mapping->mapping->bytes();
    if (bytes.empty())
      return Error{ErrorCode::permission_denied, 0, where,
                   "the lease may only be read; a holder stores into it"};
    TERRACE_ASSIGN_OR_RETURN(std::shared_ptr<TensorSpace> made, TensorSpace::attach(bytes, std::move(wanted)));
    *space = new terrace_space{kept_by(mapping->mapping, std::move(made))};
    return {};
  });
}

int terrace_space_part(const terrace_space* space) {
  return space == nullptr || !space->space->part() ? -1 : static_cast<int>(*space->space->part());
}

int terrace_space_seat(const terrace_space* space) {
  return space == nullptr || !space->space->seat() ? -1 : static_cast<int>(*space->space->seat());
}

uint64_t terrace_space_free_bytes(const terrace_space* space) {
  return space == nullptr ? 0 : space->space->free_bytes();
}

uint64_t terrace_space_largest_free_bytes(const terrace_space* space) {
  return space == nullptr ? 0 : space->space->largest_free_bytes();
}

uint32_t terrace_space_parts(const terrace_space* space) {
  return space == nullptr ? 0 : space->space->parts();
}

int terrace_space_coherence(const terrace_space* space) {
  return space == nullptr ? -1 : static_cast<int>(space->space->coherence());
}

terrace_code terrace_space_health(const terrace_space* space) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_space_health", space);
    return space->space->health();
  });
}

uint64_t terrace_space_tend(terrace_space* space) {
  return space == nullptr ? 0 : space->space->tend();
}

void terrace_space_free(terrace_space* space) {
  delete space;
}

terrace_code terrace_space_create(terrace_space* space, const terrace_tensor_spec* spec,
                                  const terrace_create_options* options, terrace_shared** shared) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_space_create";
    TERRACE_C_NEED(where, space);
    TERRACE_C_NEED(where, shared);
    TERRACE_ASSIGN_OR_RETURN(const TensorSpec wanted, spec_of(spec, where));
    TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(options, where));
    CreateOptions how;
    how.double_buffered = given.single_buffered == 0;
    if (given.wait_ns != 0) how.wait_ns = given.wait_ns;
    how.peers_may_remove = given.peers_may_remove != 0;
    return give_shared(*space, space->space->create(wanted, how), shared);
  });
}

terrace_code terrace_space_open(terrace_space* space, const char* name, terrace_shared** shared) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_space_open";
    TERRACE_C_NEED(where, space);
    TERRACE_C_NEED(where, name);
    TERRACE_C_NEED(where, shared);
    return give_shared(*space, space->space->open(name), shared);
  });
}

terrace_code terrace_space_list(terrace_space* space, int (*each)(void* context, terrace_shared* shared),
                                void* context) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_space_list";
    TERRACE_C_NEED(where, space);
    TERRACE_C_NEED(where, each);
    const std::vector<SharedTensor> tensors = space->space->list();
    TERRACE_RETURN_IF_ERROR(space->space->health());
    for (const SharedTensor& tensor : tensors) {
      terrace_shared shared{space->space, tensor, std::string(tensor.name())};
      if (each(context, &shared) != 0) break;
    }
    return {};
  });
}

}  // extern "C"
