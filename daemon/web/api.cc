// SPDX-License-Identifier: Apache-2.0
#include "daemon/web/api.h"

#include <capnp/dynamic.h>

#include <algorithm>
#include <set>

#include "core/schema/json.h"
#include "core/schema/json_rules.h"
#include "core/schema/json_schema.h"
#include "core/schema/words.h"
#include "core/version/version.h"
#include "daemon/web/acts.h"
#include "daemon/web/api_query.h"
#include "daemon/web/planner.h"

namespace terrace::daemon {
namespace {

constexpr const char* web_where = "http";

struct ApiPath {
  const char* path;
  const char* method;  // of Admin
  const char* about;
};

// Methods that change nothing. Those that walk over all there is (check, fsck) are not among them.
constexpr ApiPath api_paths[] = {
    {"status", "status", "The manager, its pools and how full they are"},
    {"health", "health", "What is wrong, since when, and what to do"},
    {"history", "history", "The last hour: how full the pools were, and what the manager did"},
    {"events", "events", "What happened: ids greater than `since`, at most `limit`"},
    {"runs", "runs", "Programs that report what their memory does"},
    {"pools", "pools", "All pools"},
    {"devices", "devices", "All devices, adopted or only seen"},
    {"inventory", "inventory", "CXL and DAX hardware"},
    {"doctor", "doctor", "What the manager's machine can and cannot do, and how to fix it"},
    {"leases", "leases", "Leases by ascending id: greater than `after`, at most `limit`"},
    {"lease", "lease", "One lease, by id or label, with where its bytes are"},
    {"quarantined", "quarantined", "What could not be fenced or erased"},
    {"queue", "queue", "Grants that wait, in the order in which they are served"},
    {"quotas", "quotas", "Quotas, and what is used of them"},
    {"reservations", "reservations", "Reservations"},
    {"hosts", "hosts", "Further hosts"},
    {"progress", "progress", "How a drain of the device `serial` stands"},
    {"audit", "audit", "Who did what and when"},
    {"whoami", "whoAmI", "Who asks, and what it may do"},
};

bool serves(ApiNames names, const ApiPath& path) {
  return names.empty() || std::find(names.begin(), names.end(), std::string_view(path.path)) != names.end();
}

capnp::InterfaceSchema admin_schema() {
  return capnp::Schema::from<rpc::Admin>();
}

// Of results with a list of rows, of which only some fields are asked for.
nlohmann::json with_rows(capnp::DynamicStruct::Reader results, capnp::StructSchema::Field rows,
                         const std::set<std::string>& keys) {
  std::set<std::string> others;
  for (const std::string& key : schema::json_keys(results.getSchema())) others.insert(key);
  const std::string key = schema::json_rules_of(rows).key;
  others.erase(key);
  nlohmann::json document = schema::to_json(results, others);
  nlohmann::json& list = document[key] = nlohmann::json::array();
  for (const auto row : results.get(rows).as<capnp::DynamicList>())
    list.push_back(schema::to_json(row.as<capnp::DynamicStruct>(), keys));
  return document;
}

nlohmann::json open_api_parameters(capnp::InterfaceSchema::Method method) {
  auto parameters = nlohmann::json::array();
  schema::JsonShapes none;
  const nlohmann::json shape = schema::json_shape_of(asked_fields(method), none);
  for (const auto field : asked_fields(method).getFields()) {
    const std::string name = schema::snake_case(field.getProto().getName().cStr());
    const bool text = field.getType().which() == capnp::schema::Type::TEXT ||
                      field.getType().which() == capnp::schema::Type::ENUM;
    const bool boolean = field.getType().which() == capnp::schema::Type::BOOL;
    parameters.push_back({{"name", name},
                          {"in", "query"},
                          {"required", false},
                          {"schema",
                           {{"type", text      ? "string"
                                     : boolean ? "boolean"
                                               : "integer"}}}});
  }
  if (rows_of(method)) {
    parameters.push_back({{"name", "fields"},
                          {"in", "query"},
                          {"required", false},
                          {"description", "Fields of each row, with commas between them"},
                          {"schema", {{"type", "string"}}}});
  }
  return parameters;
}

}  // namespace

WebAnswer answer_of_results(capnp::DynamicStruct::Reader results, capnp::InterfaceSchema::Method method,
                            const std::set<std::string>& keys) {
  const auto error = results.get("error").as<capnp::DynamicStruct>().as<rpc::Error>();
  if (error.getCode() != 0)
    return web_error(Error{.code = static_cast<ErrorCode>(error.getCode()),
                           .where = web_where,
                           .detail = std::string(error.getDetail().begin(), error.getDetail().size())});
  nlohmann::json document =
      keys.empty() ? schema::to_json(results) : with_rows(results, *rows_of(method), keys);
  document.erase("error");
  return web_json(document);
}

kj::Promise<WebAnswer> ask_api(const std::string& path, ApiNames names, const OpenApi& open) {
  const size_t question = std::min(path.find('?'), path.size());
  const std::string name = path.substr(0, question);
  const ApiPath* found = nullptr;
  std::string known;
  for (const ApiPath& one : api_paths) {
    if (!serves(names, one)) continue;
    known += (known.empty() ? "" : ", ") + std::string(one.path);
    if (name == one.path) found = &one;
  }
  if (found == nullptr)
    return web_error(Error{.code = ErrorCode::not_found,
                           .where = web_where,
                           .detail = "there is no /api/v1/" + name.substr(0, 64) + "; there are " + known});
  auto opened = open(found->method);
  if (auto* denied = std::get_if<WebAnswer>(&opened)) return std::move(*denied);
  capnp::DynamicCapability::Client admin = kj::mv(std::get<rpc::Admin::Client>(opened));
  const auto method = admin_schema().getMethodByName(found->method);
  auto request = admin.newRequest(method);
  const std::string_view query = question < path.size() ? std::string_view(path).substr(question + 1) : "";
  std::set<std::string> keys;
  if (const Status set = set_params(request, method, query, keys); !set.ok()) return web_error(set.error());
  if (waits(request.asReader(), method))
    return web_error(web_usage("nothing waits over HTTP: ask without wait_ms, again and again"));
  bound_rows(request, method);
  return request.send()
      .then([method, keys = std::move(keys)](capnp::Response<capnp::DynamicStruct>&& results) {
        return answer_of_results(results, method, keys);
      })
      .attach(kj::mv(admin));
}

nlohmann::json open_api(ApiNames names) {
  nlohmann::json paths = nlohmann::json::object();
  schema::JsonShapes shapes;
  for (const ApiPath& one : api_paths) {
    if (!serves(names, one)) continue;
    const auto method = admin_schema().getMethodByName(one.method);
    nlohmann::json results = schema::json_shape_of(method.getResultType(), shapes);
    results["properties"].erase("error");
    const nlohmann::json content = {{"application/json", {{"schema", results}}}};
    paths[std::string("/api/v1/") + one.path] = {
        {"get",
         {{"operationId", one.path},
          {"summary", one.about},
          {"parameters", open_api_parameters(method)},
          {"responses",
           {{"200", {{"description", one.about}, {"content", content}}},
            {"default", {{"description", "{\"error\": {\"code\", \"message\"}}"}}}}}}}};
  }
  if (names.empty()) {  // a manager's
    add_acts(paths, shapes);
    paths.update(planner_open_api());
  }
  shapes.erase("Error");
  return {{"openapi", "3.1.0"},
          {"info", {{"title", "Terrace"}, {"version", version_number()}}},
          {"paths", paths},
          {"components", {{"schemas", shapes}}}};
}

}  // namespace terrace::daemon
