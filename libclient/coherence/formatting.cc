// SPDX-License-Identifier: Apache-2.0
#include "libclient/coherence/formatting.h"

#include <algorithm>

#include "libclient/coherence/holder_claims.h"
#include "libclient/coherence/memory/coherent_memory.h"
#include "libclient/coherence/memory/noncoherent_memory.h"
#include "terrace/mapping.h"

namespace terrace {
// What SpaceOptions says, or the lease's pool where the memory is a lease's.
// Errors    as TensorSpace::format
Result<SpaceCoherence> coherence_for(std::span<const std::byte> memory, std::optional<SpaceCoherence> said) {
  const std::shared_ptr<Lease> lease = lease_of_memory(memory);
  // A device of which nobody says what it is may be another host's as well.
  if (lease == nullptr && !said && is_dax_memory(memory)) return SpaceCoherence::noncoherent;
  if (lease == nullptr) return said.value_or(SpaceCoherence::coherent);
  if (said == SpaceCoherence::noncoherent) return *said;  // right everywhere
  TERRACE_ASSIGN_OR_RETURN(const LeaseInfo info, lease->info());
  if (!said)
    return info.coherence == MemoryCoherence::coherent ? SpaceCoherence::coherent : SpaceCoherence::noncoherent;
  if (info.coherence != MemoryCoherence::noncoherent) return *said;
  return Error{.code = ErrorCode::invalid_argument,
               .where = "format",
               .detail = "space: `coherent` was asked for in lease " + std::to_string(info.id.value) +
                         ", but its pool '" + info.pool + "' is noncoherent, as its operator says. Leave " +
                         "coherence out, or have the pool changed: terrace pool set " + info.pool +
                         " --coherence coherent"};
}

namespace coherence {
namespace {

Error unsupported_memory() {
  return Error{.code = ErrorCode::unsupported,
               .where = "space",
               .detail = "space: this processor cannot write back single cache lines"};
}

template <typename Memory>
void write_zeros(Memory& memory, std::byte* to, uint64_t bytes) {
  alignas(64) static constexpr std::byte zeros[4096] = {};
  for (uint64_t at = 0; at < bytes; at += sizeof zeros)
    memory.write(to + at, zeros, std::min<uint64_t>(sizeof zeros, bytes - at));
}

// Zeroes everything that says where something is, then the header, its magic last.
template <typename Memory>
void write_empty(Memory memory, std::span<std::byte> bytes, const layout::SpaceHeader& header,
                 const Geometry& geometry, uint64_t ownership_kind) {
  auto* const magic = reinterpret_cast<uint64_t*>(bytes.data());
  memory.store(magic, 0);
  memory.write_back(magic, sizeof(uint64_t), Step::none);
  memory.store_barrier(Step::none);
  std::byte* const behind = bytes.data() + sizeof header;  // ownership line and seats
  write_zeros(memory, behind, geometry.parts_offset - sizeof header);
  memory.store(&geometry.ownership()->kind, ownership_kind);
  memory.write_back(behind, geometry.parts_offset - sizeof header, Step::none);
  for (uint32_t part = 0; part < geometry.parts; ++part) {
    write_zeros(memory, geometry.part_at(part), geometry.records_end());
    memory.write_back(geometry.part_at(part), geometry.records_end(), Step::none);
  }
  memory.write(bytes.data() + sizeof(uint64_t), reinterpret_cast<const std::byte*>(&header) + sizeof(uint64_t),
               sizeof header - sizeof(uint64_t));
  memory.write_back(bytes.data(), sizeof header, Step::none);
  memory.store_barrier(Step::none);
  memory.store(magic, header.magic);
  memory.write_back(magic, sizeof(uint64_t), Step::none);
  memory.store_barrier(Step::none);
}

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

// Who asked for a KV space is not told of a tensor space.
Error named(Error error, SpaceContent content) {
  constexpr std::string_view tensors = "tensor space: ";
  if (content == SpaceContent::blocks && error.detail.compare(0, tensors.size(), tensors) == 0)
    error.detail = "KV space: " + error.detail.substr(tensors.size());
  return error;
}

}  // namespace

Error other_kind_of_owners(const char* what, uint64_t of_space, uint64_t of_source) {
  return Error{.code = ErrorCode::permission_denied,
               .where = what,
               .detail = std::string(what) + ": it had " + owner_by(of_space) +
                         ", or was formatted for one, and this holder asks for " + owner_by(of_source) +
                         ": all holders of a space use the same kind of source; format it anew to change that"};
}

Status format_space(const char* where, std::span<std::byte> memory, const GeometryOptions& options,
                    std::optional<SpaceOwnership> ownership) {
  const bool coherent = options.mode == layout::SpaceMode::coherent;
  if (!coherent && !NonCoherentMemory::supported()) return unsupported_memory();
  Result<layout::SpaceHeader> planned = plan_header(memory, options);
  if (!planned.ok()) return named(planned.error(), options.content);
  const layout::SpaceHeader& header = *planned;
  TERRACE_ASSIGN_OR_RETURN(const Geometry geometry, check_header(header, memory, options.content));
  const uint64_t kind = ownership ? static_cast<uint64_t>(*ownership) : 0;
  return unless_lost(where, memory, [&]() -> Status {
    if (coherent)
      write_empty(CoherentMemory(), memory, header, geometry, kind);
    else
      write_empty(NonCoherentMemory(), memory, header, geometry, kind);
    return {};
  });
}

Result<Geometry> read_geometry(std::span<std::byte> memory, SpaceContent content) {
  layout::SpaceHeader header{};
  // How the memory behaves is not known before it is read: dropping a line is right for both kinds.
  const NonCoherentMemory careful;
  careful.invalidate(memory.data(), sizeof header, Step::none);
  careful.load_barrier(Step::none);
  careful.read(&header, memory.data(), sizeof header);
  careful.load_barrier(Step::none);
  const Result<Geometry> checked = check_header(header, memory, content);
  if (!checked.ok()) return named(checked.error(), content);
  const Geometry& geometry = *checked;
  if (geometry.mode != layout::SpaceMode::coherent && !NonCoherentMemory::supported())
    return unsupported_memory();
  return geometry;
}

}  // namespace coherence
}  // namespace terrace
