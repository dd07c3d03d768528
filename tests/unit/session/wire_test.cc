// SPDX-License-Identifier: Apache-2.0
// From messages to the library's structs: what cannot be known is refused, and words are the schema's.
#include "libclient/session/wire.h"

#include <doctest/doctest.h>

#include "core/schema/message.h"
#include "core/schema/words.h"
#include "terrace/words.h"

using namespace terrace;
using namespace terrace::client;
using schema::Message;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const Message<rpc::LeaseInfo> lease = Message<rpc::LeaseInfo>().changed([](rpc::LeaseInfo::Builder out) {
  out.setId(7);
  out.setMode(rpc::LeaseMode::SHARED_READ_ONLY);
  out.setPhase(rpc::LeasePhase::QUARANTINED);
  out.setCause(rpc::LeaseCause::DEVICE_LOST);
  out.setCoherence(rpc::Coherence::NONCOHERENT);
  out.initUsage().setAgeNs(5);
});

}  // namespace

TEST_CASE("wire: enums keep their meaning, and are called as in the schema") {
  const auto info = lease_info_from_wire(*lease, "test");
  REQUIRE(info.ok());
  CHECK(info->mode == LeaseMode::shared_read_only);
  CHECK(info->phase == "quarantined");
  CHECK(info->cause == LeaseCause::device_lost);
  CHECK(lease_cause_name(info->cause) == "device_lost");
  CHECK(lease_cause_name(LeaseCause::none).empty());
  CHECK(memory_coherence_name(info->coherence) == "noncoherent");
  CHECK(info->usage_age_ns == 5);
  CHECK(lease_mode_name(info->mode) == "shared_read_only");
  CHECK(lease_mode_of_name("shared_coherent") == LeaseMode::shared_coherent);
  CHECK(!lease_mode_of_name("shared-ro").has_value());
  CHECK(pool_placement_name(PoolPlacement::spread) == "spread");
}

TEST_CASE("wire: every enum of the library ends with the schema's last word") {
  CHECK(schema::enum_words<rpc::LeaseMode>().size() == static_cast<size_t>(LeaseMode::shared_coherent) + 1);
  CHECK(schema::enum_words<rpc::LeaseCause>().size() == static_cast<size_t>(LeaseCause::moved) + 1);
  CHECK(schema::enum_words<rpc::Access>().size() == 2);
  CHECK(schema::enum_words<rpc::Placement>().size() == static_cast<size_t>(PoolPlacement::spread) + 1);
  CHECK(schema::enum_words<rpc::Coherence>().size() == static_cast<size_t>(MemoryCoherence::noncoherent) + 1);
}

TEST_CASE("wire: a number of a newer manager's enum is refused, with the field and the number") {
  const auto newer =
      lease.changed([](rpc::LeaseInfo::Builder out) { out.setMode(static_cast<rpc::LeaseMode>(9)); });
  const auto refused = lease_info_from_wire(*newer, "test");
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::version_mismatch);
  CHECK(contains(refused.error().detail, "mode is 9"));

  const auto pool = Message<rpc::PoolInfo>().changed(
      [](rpc::PoolInfo::Builder out) { out.setPlacement(static_cast<rpc::Placement>(8)); });
  CHECK(pool_info_from_wire(*pool, "test").error().code == ErrorCode::version_mismatch);
}

TEST_CASE("wire: a whole reply is its error, or refused for what it holds below") {
  using Results = rpc::Admin::DrainResults;
  const auto reply = Message<Results>().changed(
      [](Results::Builder out) { out.initProgress().initDevice().setState(static_cast<rpc::DeviceState>(7)); });
  const Status refused = status_from_wire<Results>(*reply, "test");
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::version_mismatch);
  CHECK(contains(refused.error().detail, "progress.device.state is 7"));
  const auto failed = reply.changed(
      [](Results::Builder out) { out.initError().setCode(static_cast<uint16_t>(ErrorCode::not_found)); });
  CHECK(status_from_wire<Results>(*failed, "test").error().code == ErrorCode::not_found);
  CHECK(status_from_wire<Results>(*Message<Results>(), "test").ok());
}

TEST_CASE("wire: the cause of a notice, which cannot be refused, is a revocation where it is not known") {
  CHECK(cause_from_wire(rpc::LeaseCause::EXPIRED) == LeaseCause::expired);
  CHECK(cause_from_wire(static_cast<rpc::LeaseCause>(77)) == LeaseCause::revoked);
}
