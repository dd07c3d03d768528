// SPDX-License-Identifier: Apache-2.0
// JSON that becomes a message: what is taken, and what is said of what is not.
#include <doctest/doctest.h>

#include <capnp/message.h>

#include <nlohmann/json.hpp>

#include "core/schema/json.h"
#include "core/schema/read_json.h"
#include "core/schema/terrace.capnp.h"

using namespace terrace;
using nlohmann::json;

namespace {

template <typename Struct>
struct Read {
  explicit Read(const char* text, const std::set<std::string>& only = {})
      : root(message.initRoot<Struct>()), problem(schema::read_json(json::parse(text), root, only)) {}
  capnp::MallocMessageBuilder message;
  typename Struct::Builder root;
  std::string problem;
};

bool says(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("read_json: what to_json writes is read the same") {
  Read<rpc::AdminGrant> read(R"({"tenant": "alice", "bytes": 18446744073709551615, "mode": "shared_coherent",
                                 "persistent": true, "label": "\u00e9<b>"})");
  CHECK(read.problem.empty());
  const json again = schema::to_json(read.root.asReader());
  CHECK(again["bytes"] == UINT64_MAX);
  CHECK(again["mode"] == "shared_coherent");
  CHECK(again["label"] == "\u00e9<b>");
  Read<rpc::AdminGrant> twice(again.dump().c_str());
  CHECK(twice.problem.empty());
  CHECK(schema::to_json(twice.root.asReader()) == again);
}

TEST_CASE("read_json: what is wrong is named with its key, whatever it is") {
  const auto of_grant = [](const char* text) { return Read<rpc::AdminGrant>(text).problem; };
  CHECK(says(of_grant(R"({"byte": 1})"), "what was sent has no key \"byte\"; there are pool, tenant, bytes"));
  CHECK(of_grant(R"({"bytes": "64M"})") == "bytes: \"64M\" is no whole number from 0 to 18446744073709551615");
  for (const char* bytes : {"-1", "1.5", "1e3", "18446744073709551616", "null", "true", "[1]", "{}"})
    CHECK_MESSAGE(says(of_grant((std::string("{\"bytes\": ") + bytes + "}").c_str()), "bytes: "), bytes);
  CHECK(says(of_grant(R"({"tenant": 7})"), "tenant: 7 is no text"));
  CHECK(says(of_grant(R"({"tenant": "a\u0000b"})"), "zero"));
  CHECK(says(of_grant(R"({"persistent": "yes"})"), "persistent: \"yes\" is no true or false"));
  CHECK(says(of_grant(R"({"mode": "mine"})"), "mode: \"mine\" is no one of exclusive, shared_read_only"));
  for (const char* text : {"[]", "7", "null", "\"drain\""}) CHECK(says(of_grant(text), "is no object"));
  CHECK(of_grant(("{\"pool\": 1, \"x" + std::string(9000, 'y') + "\": 1}").c_str()).size() < 400);
}

TEST_CASE("read_json: of a union one key, and what is within it by the way to it") {
  const auto of_act = [](const char* text) { return Read<rpc::PreviewedAct>(text).problem; };
  Read<rpc::PreviewedAct> drain(R"({"drain": {"serial": "emu:a"}})");
  CHECK(drain.problem.empty());
  CHECK(drain.root.isDrain());
  Read<rpc::PreviewedAct> compact(R"({"compact": {"pool": "p", "run_bytes": 4096}})");
  CHECK(compact.problem.empty());
  CHECK(compact.root.getCompact().getRunBytes() == 4096);
  CHECK(of_act(R"({"drain": {"serial": 7}})") == "drain.serial: 7 is no text");
  CHECK(says(of_act(R"({"drain": {"serials": "a"}})"), "drain has no key \"serials\"; there are serial"));
  CHECK(says(of_act(R"({"drain": {}, "release": {"lease": 1}})"), "drain and release exclude each other"));
  CHECK(says(of_act(R"({"none": null})"), "has no key \"none\""));
}

TEST_CASE("read_json: null is not set where null may be written, and nothing elsewhere") {
  CHECK(Read<rpc::Quota>(R"({"tenant": "a", "bytes_max": null})").problem.empty());
  CHECK(says(Read<rpc::Quota>(R"({"tenant": null})").problem, "tenant: null is no text"));
  // What only an answer has is refused where it is not among the keys that count.
  CHECK(says(Read<rpc::Quota>(R"({"tenant": "a", "bytes": 5})", {"tenant", "bytes_max"}).problem,
             "no key \"bytes\"; there are tenant, bytes_max"));
}
