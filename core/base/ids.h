// SPDX-License-Identifier: Apache-2.0
// Identities that the compiler keeps apart. Numbers are never reused within one store.
//
// Place     core/base; also part of the installed headers.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace terrace {

template <typename Tag>
struct StrongId {
  uint64_t value = 0;

  constexpr bool valid() const { return value != 0; }
  constexpr auto operator<=>(const StrongId&) const = default;
};

using DeviceId = StrongId<struct DeviceIdTag>;            // an adopted device, within one store
using PoolId = StrongId<struct PoolIdTag>;                // extents under one policy
using LeaseId = StrongId<struct LeaseIdTag>;              // a tenant's right to extents
using ReservationId = StrongId<struct ReservationIdTag>;  // room kept free for a tenant
using PartId = StrongId<struct PartIdTag>;                // a part of a lease: lease * 64 + part

// The fencing token: grows by at least one with every grant, over the whole life of a store. A holder
// with a smaller LeaseEpoch for the same bytes has been fenced.
using LeaseEpoch = StrongId<struct LeaseEpochTag>;

}  // namespace terrace

template <typename Tag>
struct std::hash<terrace::StrongId<Tag>> {
  size_t operator()(terrace::StrongId<Tag> id) const noexcept { return std::hash<uint64_t>{}(id.value); }
};
