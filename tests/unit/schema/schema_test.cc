// SPDX-License-Identifier: Apache-2.0
// What the schema calls its values, and what its messages are in JSON.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "core/schema/enumerants.h"
#include "core/schema/json.h"
#include "core/schema/litmus.capnp.h"
#include "core/schema/message.h"
#include "core/schema/terrace.capnp.h"
#include "core/schema/words.h"

using namespace terrace;
using schema::Message;
using schema::to_json;

namespace {

const Message<rpc::LeaseInfo> no_lease;

}  // namespace

TEST_CASE("words: an enum's are its schema's, in snake_case, both ways") {
  CHECK(schema::enum_word(rpc::LeaseMode::SHARED_READ_ONLY) == "shared_read_only");
  CHECK(schema::enum_word(rpc::DeviceState::IN_SERVICE) == "in_service");
  CHECK(schema::enum_word(rpc::LitmusVerdict::NOT_COHERENT) == "not_coherent");
  CHECK(schema::enum_words<rpc::Placement>() == std::vector<std::string>{"linear", "striped", "spread"});
  for (const std::string& word : schema::enum_words<rpc::LeasePhase>()) {
    const auto phase = schema::enum_of_word<rpc::LeasePhase>(word);
    REQUIRE(phase.has_value());
    CHECK(schema::enum_word(*phase) == word);
  }
  CHECK(!schema::enum_of_word<rpc::LeaseMode>("shared-ro").has_value());
  CHECK(schema::enum_word(static_cast<rpc::LeaseMode>(900)) == "unknown");
}

TEST_CASE("json: keys are in snake_case, numbers of 64 bits are numbers, enums are words") {
  const auto lease = no_lease.changed([](rpc::LeaseInfo::Builder out) {
    out.setBytes(UINT64_MAX);
    out.setHugePages(true);
    out.setPhase(rpc::LeasePhase::QUARANTINED);
    auto extents = out.initExtents(1);
    extents[0].setDevice("emu:a");
    extents[0].setOffset(4096);
  });
  const auto document = to_json(*lease);
  CHECK(document["bytes"] == UINT64_MAX);
  CHECK(document["bytes"].dump() == "18446744073709551615");
  CHECK(document["huge_pages"] == true);
  CHECK(document["phase"] == "quarantined");
  CHECK(document["extents"].dump() == R"([{"device":"emu:a","length_bytes":0,"offset_bytes":4096}])");
}

TEST_CASE("json: null is what is not known, has no meaning beside another field, or was not sent") {
  auto document = to_json(*no_lease);
  for (const char* key : {"cause", "agent", "usage", "expires_in_ns", "object_bytes"}) {
    CAPTURE(key);
    CHECK(document.at(key).is_null());
  }
  CHECK(document["host"] == "");
  CHECK(document["ttl_ns"] == 0);
  CHECK(document["figures"].dump() ==
        R"({"bandwidth_bytes_per_s":null,"isolation":null,"latency_ns":null,"numa_distance":null,)"
        R"("numa_node":null,"persistent":false,"source":null})");
  CHECK(!document.contains("measured"));

  document = to_json(*no_lease.changed([](rpc::LeaseInfo::Builder out) {
    out.setMeasured(true);
    out.setTtlNs(5);
    out.setAgent("box-b");
    out.setCause(rpc::LeaseCause::DEVICE_LOST);
    out.initAttributes().setNumaNode(0);
    out.initUsage().setAgeNs(7);
    out.initOwners(2)[1].setOwned(true);
  }));
  CHECK(document["object_bytes"] == 0);
  CHECK(document["expires_in_ns"] == 0);
  CHECK(document["agent"] == "box-b");
  CHECK(document["cause"] == "device_lost");
  CHECK(document["figures"]["numa_node"] == 0);
  CHECK(document["usage"].dump() == R"({"age_ns":7,"cxl_bytes":0,"ddr_bytes":0,"holder":"","live_bytes":0})");
  CHECK(document["owners"][0]["pid"].is_null());
  CHECK(document["owners"][1]["pid"] == 0);
}

TEST_CASE("json: a condition can ask for a text, or for any other one") {
  const Message<rpc::Inventory::Decoder> decoder;
  CHECK(to_json(*decoder)["free_bytes"].is_null());
  CHECK(to_json(*decoder.changed([](auto out) { out.setKind("root"); }))["free_bytes"] == 0);
  const Message<rpc::Quota> quota;
  CHECK(to_json(*quota.changed([](auto out) { out.setTenant("a"); }))["bytes"] == 0);
  CHECK(to_json(*quota.changed([](auto out) { out.setTenant("*"); }))["bytes"].is_null());
}

// Every struct that is shown: a field that is renamed renames a key that scripts read.
TEST_CASE("json: the keys of every struct that is shown") {
  const auto keys = [](const nlohmann::json& document) {
    std::string all;
    for (const auto& [key, value] : document.items()) all += (all.empty() ? "" : " ") + key;
    return all;
  };
  CHECK(keys(to_json(*Message<rpc::PoolInfo>())) ==
        "absent_bytes absent_devices capacity_bytes coherence devices figures free_bytes free_runs "
        "grantable_bytes "
        "granule_bytes isolation largest_free_bytes leased_bytes leases name placement quarantined_bytes "
        "reserved_bytes scrubbing_bytes stripe_bytes trust waiting waiting_bytes");
  CHECK(keys(to_json(*Message<rpc::DeviceInfo>())) ==
        "adopted backend capacity_bytes contents detail figures free_bytes granule_bytes "
        "isolation largest_free_bytes leases pool present serial state used_bytes");
  CHECK(keys(to_json(*Message<rpc::ServerInfo>())) ==
        "agent boot_id certificates commands_applied connections connections_max descriptors descriptors_max "
        "failpoints "
        "huge_pages object_directory pid recovered "
        "runtime_directory scrub_bytes_per_s scrub_queued_bytes scrubbed_bytes sockets state_file "
        "store_commits store_id uptime_ns version waiting");
  CHECK(keys(to_json(*Message<rpc::HealthFinding>())) ==
        "advice code kind lasted_ns name page severity since_wall_ns text");
  CHECK(keys(to_json(*Message<rpc::DoctorCheck>())) == "essential fix found group meaning name state");
  CHECK(keys(to_json(*Message<rpc::HealthSummary>())) == "critical severity warnings");
  CHECK(keys(to_json(*Message<rpc::RunInfo>())) ==
        "age_ns agent copy_bytes_per_s demotions_per_s figures host pid promotions_per_s stalled_ns_per_s "
        "tenant uid");
  CHECK(keys(to_json(*Message<rpc::RunFigures>())) ==
        "counters cxl_bytes ddr_bytes ddr_bytes_max ddr_hit_permille heat leased_bytes live_bytes plain_bytes "
        "processes "
        "program sampled_bytes");
  CHECK(keys(to_json(*Message<rpc::RunHeat>())) == "band_bytes cxl_percent ddr_percent heat");
  CHECK(keys(to_json(*Message<rpc::RunCounters>())) ==
        "demoted_bytes demotions fallbacks promoted_bytes promotions refused stalled_ns");
  CHECK(keys(to_json(*Message<rpc::ServedSocket>())) == "path role tenant");
  CHECK(keys(to_json(*Message<rpc::WaitingGrant>())) ==
        "bytes calls ends_in_ns host label lease place pool tenant turn waited_ns");
  CHECK(keys(to_json(*Message<rpc::StoreBackup>())) == "bytes devices leases pools sequence store_id");
  CHECK(keys(to_json(*Message<rpc::Compaction>())) ==
        "active device left_bytes length_bytes moves offset_bytes");
  CHECK(keys(to_json(*Message<rpc::Reservation>())) == "bytes expires_in_ns id pool tenant ttl_ns used_bytes");
  CHECK(keys(to_json(*Message<rpc::HostInfo>())) ==
        "address certificate_days_left certificate_ends_soon detail devices ends_in_ns fence_ns "
        "last_contact_ns leased_bytes leases margin_max_ns margin_ns name state version");
  CHECK(keys(to_json(*Message<rpc::CertificateEnd>())) == "days_left name soon what");
  CHECK(keys(to_json(*Message<rpc::AuditEntry>())) == "actor detail sequence subject tenant verb wall_ns");
  CHECK(keys(to_json(*Message<rpc::Finding>())) == "repair severity subject what");
  CHECK(keys(to_json(*Message<rpc::Preview>())) ==
        "blocked_bytes blocked_leases bytes code holders leases notes of_leases refusal run summary tenants to "
        "waiting_before would_wait");
  CHECK(keys(to_json(*Message<rpc::PreviewedLease>())) ==
        "blocked bytes from_extents host label lease state tenant to to_extents");
  CHECK(to_json(*Message<rpc::Preview>())["run"].is_null());
  CHECK(keys(to_json(*Message<rpc::PreviewedTenant>())) == "bytes bytes_max leases leases_max over tenant");
  CHECK(keys(to_json(*Message<rpc::PreviewedPlace>())) == "bytes device");
  CHECK(keys(to_json(*Message<rpc::WhoAmI>())) == "methods name read_only role tenant");
  CHECK(keys(to_json(*Message<rpc::Move>())) == "blocked bytes label lease state tenant");
  CHECK(keys(to_json(*Message<rpc::DeviceProgress>())) == "device left_bytes moves");
  CHECK(keys(to_json(*Message<rpc::Inventory::Memdev>())) ==
        "enabled firmware health model name numa_node path pmem_bytes pmem_qos_class ram_bytes "
        "ram_qos_class serial");
  CHECK(keys(to_json(*Message<rpc::Inventory::Region>())) ==
        "bytes committed decoder figures interleave_granularity interleave_ways kind memdevs name "
        "serial start");
  CHECK(keys(to_json(*Message<rpc::Inventory::DaxRegion>())) ==
        "align_bytes bytes free_bytes name numa_node serial");
  CHECK(keys(to_json(*Message<rpc::Inventory::DaxDevice>())) ==
        "align_bytes bytes holder mode name numa_node online region");
  CHECK(keys(to_json(*Message<rpc::Inventory::Namespace>())) == "bytes device label mode name region uuid");
  CHECK(keys(to_json(*Message<rpc::Inventory::Node>())) == "bytes cpus figures free_bytes node");
}

TEST_CASE("message: it outlives what it was read from, and a changed copy leaves it as it was") {
  Message<rpc::Move> kept;
  {
    capnp::MallocMessageBuilder reply;
    auto move = reply.initRoot<rpc::Move>();
    move.setTenant("team-a");
    move.setBytes(9);
    kept = Message<rpc::Move>(move.asReader());
  }
  const auto changed = kept.changed([](rpc::Move::Builder out) { out.setTenant("team-b"); });
  CHECK(kept->getTenant() == "team-a");
  CHECK(changed->getTenant() == "team-b");
  CHECK(changed->getBytes() == 9);
}

TEST_CASE("enumerants: a number without a name is found, with the way to it") {
  const Message<rpc::DeviceProgress> progress;
  CHECK(schema::unknown_enumerant_in<rpc::DeviceProgress>(*progress).empty());
  const auto newer =
      progress.changed([](auto out) { out.initDevice().setState(static_cast<rpc::DeviceState>(7)); });
  CHECK(schema::unknown_enumerant_in<rpc::DeviceProgress>(*newer) == "device.state is 7");
  CHECK(to_json(*newer)["device"]["adopted"] == false);
}
