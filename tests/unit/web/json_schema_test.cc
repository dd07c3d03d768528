// SPDX-License-Identifier: Apache-2.0
// The shape of a message's JSON is that of its JSON.
#include "core/schema/json_schema.h"

#include <capnp/message.h>
#include <doctest/doctest.h>

#include "core/schema/json.h"
#include "core/schema/terrace.capnp.h"
#include "daemon/web/api.h"

using namespace terrace;

TEST_CASE("JSON shapes: as many keys as the message has, hidden ones left out, nullable ones said to be") {
  schema::JsonShapes shapes;
  const auto type = capnp::Schema::from<rpc::LeaseInfo>();
  const nlohmann::json shape = schema::json_shape_of(type, shapes);
  capnp::MallocMessageBuilder message;
  const nlohmann::json document = schema::to_json(message.initRoot<rpc::LeaseInfo>().asReader());
  for (const auto& [key, value] : document.items()) {
    CAPTURE(key);
    REQUIRE(shape["properties"].contains(key));
    if (value.is_null()) CHECK(shape["properties"][key].contains("anyOf"));
  }
  CHECK(shape["properties"].size() == document.size());
  CHECK(shape["properties"]["phase"]["enum"].size() == 8);
  CHECK(shapes.contains("Extent"));
}

TEST_CASE("OpenAPI: every reference leads to a shape") {
  const nlohmann::json document = daemon::open_api();
  const std::string text = document.dump();
  size_t at = 0, references = 0;
  const std::string mark = "#/components/schemas/";
  while ((at = text.find(mark, at)) != std::string::npos) {
    at += mark.size();
    const std::string name = text.substr(at, text.find('"', at) - at);
    CAPTURE(name);
    CHECK(document["components"]["schemas"].contains(name));
    ++references;
  }
  CHECK(references > 10);
}
