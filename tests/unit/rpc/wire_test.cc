// SPDX-License-Identifier: Apache-2.0
// Enums are cast between the schema and the daemon: a value that one of them got alone must not pass unseen.
#include <doctest/doctest.h>

#include "core/schema/terrace.capnp.h"
#include "core/schema/words.h"
#include "daemon/model/rows.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

template <typename Wire, typename Row>
bool ends_with(Row last) {
  return schema::enum_words<Wire>().size() == static_cast<size_t>(last) + 1;
}

}  // namespace

TEST_CASE("wire: every enum of the daemon ends with the schema's last word") {
  CHECK(ends_with<rpc::LeaseMode>(LeaseMode::shared_coherent));
  CHECK(ends_with<rpc::LeasePhase>(LeasePhase::waiting));
  CHECK(ends_with<rpc::LeaseCause>(LeaseCause::moved));
  CHECK(ends_with<rpc::DeviceState>(DeviceState::failed));
  CHECK(ends_with<rpc::Placement>(Placement::spread));
  CHECK(ends_with<rpc::Coherence>(PoolCoherence::noncoherent));
}
