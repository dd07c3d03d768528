// SPDX-License-Identifier: Apache-2.0
// What a client makes of the answers it gets.
#include <map>
#include <utility>

#include "core/base/limits.h"
#include "tests/sim/actors/sim_client.h"

namespace terrace::sim {
namespace {

unsigned long long number(LeaseId id) {
  return id.value;
}

// Whatever comes of it, the request may have been carried out.
bool unclear(const Error& error) {
  return error.code == ErrorCode::io_error || error.code == ErrorCode::unavailable;
}

}  // namespace

const char* SimClient::name_of(Asking asking) {
  static const char* const names[] = {"nothing",    "a grant",        "renewal",      "release",   "a resize",
                                      "a transfer", "a move's begin", "a move's end", "attachment"};
  return names[static_cast<size_t>(asking)];
}

void SimClient::received(const Result<daemon::Reply>& result) {
  if (!result.ok()) {
    refused(result.error());
    return;
  }
  if (const auto* renewals = std::get_if<daemon::RenewalsReply>(&*result)) return renewed(*renewals);
  const Asking asked = std::exchange(asking_, Asking::nothing);
  const auto* answer = std::get_if<daemon::LeaseReply>(&*result);
  if (asked == Asking::release) {
    ledger_.release_acknowledged(asked_lease_);
    environment_.note("client %llu: lease %llu is released", static_cast<unsigned long long>(index_),
                      number(asked_lease_));
    drop(find(asked_lease_));
    return;
  }
  if (const auto* ready = std::get_if<daemon::MoveReady>(&*result); asked == Asking::begin_move) {
    Held* held = find(asked_lease_);
    if (ready != nullptr && held != nullptr && held->mapped && !held->doubtful) copy_to_target(*held, *ready);
    return;
  }
  if (asked == Asking::finish_move && !std::get<daemon::FinishMove>(asked_).commit) {
    if (Held* held = find(asked_lease_)) held->target = LeaseId{};  // still doubtful: attached again
    return;
  }
  if (answer == nullptr) {
    environment_.fail("a request was answered without the lease");
    return;
  }
  answered(asked, answer->lease);
}

// What is renewed lasts for its TTL from when the renewal was asked for, at least: the answer has no rows.
void SimClient::renewed(const daemon::RenewalsReply& renewals) {
  const auto asked = std::get<daemon::RenewMany>(asked_);
  const std::map<LeaseId, Error> failed(renewals.failed.begin(), renewals.failed.end());
  for (const LeaseId id : asked.leases) {
    Held* held = find(id);
    if (held == nullptr || failed.contains(id)) continue;
    daemon::LeaseRow row = held->lease;
    row.ttl_ns = asked.ttl_ns;
    row.expiry_ns = sent_ns_ + asked.ttl_ns;
    answered(Asking::renew, row);
  }
  if (const auto at = failed.find(asked_lease_); at != failed.end()) return refused(at->second);
  asking_ = Asking::nothing;
}

void SimClient::answered(Asking asked, const daemon::LeaseRow& lease) {
  Held* held = find(lease.id);
  if (asked == Asking::grant) {
    granted(lease);
    return;
  }
  if (asked == Asking::renew) {
    ledger_.renewal_acknowledged(lease);
  } else {
    ledger_.row_acknowledged(lease);
  }
  environment_.note("client %llu: has %s of lease %llu, now %llu granules",
                    static_cast<unsigned long long>(index_), name_of(asked), number(lease.id),
                    static_cast<unsigned long long>(lease.bytes / limits::granule_bytes));
  if (asked == Asking::attach) {
    attached(lease);
  } else if (asked == Asking::transfer) {
    drop(held);
    hand_over_(lease.id, lease.host);
  } else if (held == nullptr) {
    return;
  } else if (asked == Asking::finish_move) {
    held->target = LeaseId{};
    map_again(*held, lease);
  } else if (asked == Asking::resize) {
    resized(*held, lease);
  } else {
    held->lease.ttl_ns = lease.ttl_ns;
    held->lease.expiry_ns = lease.expiry_ns;
  }
}

void SimClient::resized(Held& held, const daemon::LeaseRow& lease) {
  const uint64_t bytes = std::get<daemon::Resize>(asked_).bytes;
  if (lease.bytes != bytes && lease.phase == daemon::LeasePhase::active)
    environment_.fail("lease %llu was resized to other than it was asked to be", number(lease.id));
  contents_.stamps[lease.id].resize(lease.bytes / limits::granule_bytes, 0);
  map_again(held, lease);
}

void SimClient::granted(const daemon::LeaseRow& lease) {
  environment_.note("client %llu: has lease %llu, epoch %llu, %llu granules",
                    static_cast<unsigned long long>(index_), number(lease.id),
                    static_cast<unsigned long long>(lease.epoch.value),
                    static_cast<unsigned long long>(lease.bytes / limits::granule_bytes));
  const auto& asked = std::get<daemon::Grant>(asked_);
  if (lease.tenant != tenant_ || lease.request_high != asked.request_high) {
    environment_.fail("lease %llu is not what was asked for", number(lease.id));
  }
  last_grant_ = asked;
  if (find(lease.id) != nullptr) return;  // asked for once more, and held already
  const bool fresh = !contents_.stamps.contains(lease.id);
  if (fresh && lease.bytes < asked.bytes) environment_.fail("lease %llu is too small", number(lease.id));
  ledger_.grant_acknowledged(lease);
  if (fresh) contents_.stamps[lease.id].assign(lease.bytes / limits::granule_bytes, 0);
  attached(lease);
}

void SimClient::attached(const daemon::LeaseRow& lease) {
  std::vector<uint64_t>& stamps = contents_.stamps[lease.id];
  stamps.resize(lease.bytes / limits::granule_bytes, Contents::unknown);
  if (Held* held = find(lease.id)) {
    map_again(*held, lease);
    return;
  }
  const auto mapping = backend_.open(lease.object);
  if (!mapping.has_value()) {
    if (ledger_.promised(lease.id))
      environment_.fail("lease %llu was granted without memory", number(lease.id));
    return;
  }
  Held held;
  held.lease = lease;
  held.mapping = *mapping;
  if (verify(held)) held_.push_back(held);
}

void SimClient::refused(const Error& error) {
  if (unclear(error) && environment_.prng().chance(1, 2)) return;  // unknown: asks again later
  if (error.code == ErrorCode::busy && asking_ != Asking::begin_move) return;
  const Asking asked = std::exchange(asking_, Asking::nothing);
  if (asked == Asking::grant && tries_ > 0)  // the calls that it did not wait for end with this one
    daemon_.cancel(std::get<daemon::Grant>(asked_));
  environment_.note("client %llu: is refused %s of lease %llu: %s", static_cast<unsigned long long>(index_),
                    name_of(asked), number(asked_lease_), error.detail.c_str());
  const bool ended = error.code == ErrorCode::not_found || error.code == ErrorCode::lease_expired ||
                     error.code == ErrorCode::lease_revoked;
  Held* held = find(asked_lease_);
  if ((asked == Asking::renew || asked == Asking::attach) && ended && held != nullptr &&
      ledger_.promised(asked_lease_)) {
    environment_.fail("the %s of lease %llu was refused although it is granted: %s",
                      asked == Asking::renew ? "renewal" : "attachment", number(asked_lease_),
                      error.detail.c_str());
  }
  const bool not_begun =
      tries_ == 0 && (error.code == ErrorCode::limit_exceeded || error.code == ErrorCode::already_exists ||
                      error.code == ErrorCode::capacity_exhausted);
  if (asked == Asking::transfer && not_begun) {
    ledger_.transfer_refused(asked_lease_);
  } else if (asked == Asking::transfer) {
    ledger_.dropped(asked_lease_);
    drop(held);
  } else if (held != nullptr && asked == Asking::finish_move) {
    held->target = LeaseId{};
  } else if (ended) {  // it is gone
    drop(held);
  }
}

}  // namespace terrace::sim
