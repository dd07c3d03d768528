#include "daemon/web/api.h"

#include <capnp/dynamic.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>

#include "core/schema/json.h"
#include "core/schema/json_schema.h"
#include "core/schema/words.h"
#include "core/version/version.h"
#include "daemon/rpc/connection.h"

namespace terrace::daemon {
namespace {

constexpr const char* web_where = "http";
constexpr uint32_t web_rows_max = 1000;  // of leases, of the audit log, of events

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
    {"pools", "pools", "All pools"},
    {"devices", "devices", "All devices, adopted or only seen"},
    {"inventory", "inventory", "CXL and DAX hardware"},
    {"leases", "leases", "Leases by ascending id: greater than `after`, at most `limit`"},
    {"lease", "lease", "One lease, by id or label, with where its bytes are"},
    {"quarantined", "quarantined", "What could not be fenced or erased"},
    {"queue", "queue", "Grants that wait, in the order in which they are served"},
    {"quotas", "quotas", "Quotas, and what is used of them"},
    {"reservations", "reservations", "Reservations"},
    {"hosts", "hosts", "Further hosts"},
    {"progress", "progress", "How a drain of the device `serial` stands"},
    {"audit", "audit", "Who did what and when"},
};

capnp::InterfaceSchema admin_schema() {
  return capnp::Schema::from<rpc::Admin>();
}

// --- the query of an URL

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string url_decoded(std::string_view text) {
  std::string plain;
  for (size_t at = 0; at < text.size(); ++at) {
    const bool escape = text[at] == '%' && at + 2 < text.size() + 0 && hex_digit(text[at + 1]) >= 0 &&
                        hex_digit(text[at + 2]) >= 0;
    if (escape) {
      plain += static_cast<char>(hex_digit(text[at + 1]) * 16 + hex_digit(text[at + 2]));
      at += 2;
    } else {
      plain += text[at] == '+' ? ' ' : text[at];
    }
  }
  return plain;
}

std::vector<std::pair<std::string, std::string>> query_of(std::string_view query) {
  std::vector<std::pair<std::string, std::string>> parts;
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), part.size() + 1));
    const size_t equals = part.find('=');
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
    if (!part.empty()) parts.emplace_back(url_decoded(part.substr(0, equals)), url_decoded(value));
  }
  return parts;
}

Error web_usage(std::string detail) {
  return Error{.code = ErrorCode::invalid_argument, .where = web_where, .detail = std::move(detail)};
}

// The fields that a query may set: those of the parameters, or of the one struct that they are.
capnp::StructSchema asked_fields(capnp::InterfaceSchema::Method method) {
  const capnp::StructSchema params = method.getParamType();
  const auto fields = params.getFields();
  const bool one_struct = fields.size() == 1 && fields[0].getType().isStruct();
  return one_struct ? fields[0].getType().asStruct() : params;
}

Status set_field(capnp::DynamicStruct::Builder params, capnp::StructSchema::Field field, const std::string& key,
                 const std::string& value) {
  const auto which = field.getType().which();
  if (which == capnp::schema::Type::TEXT) {
    params.set(field, capnp::Text::Reader(value.c_str(), value.size()));
    return {};
  }
  if (which == capnp::schema::Type::BOOL && (value == "true" || value == "false")) {
    params.set(field, value == "true");
    return {};
  }
  if (which == capnp::schema::Type::ENUM) {
    const auto type = field.getType().asEnum();
    const std::vector<std::string>& words = schema::words_of(type);
    const auto word = std::find(words.begin(), words.end(), value);
    if (word != words.end()) {
      params.set(field, capnp::DynamicEnum(type, static_cast<uint16_t>(word - words.begin())));
      return {};
    }
  }
  uint64_t number = 0;
  const auto parsed = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == value.data() + value.size() && !value.empty();
  if (which == capnp::schema::Type::UINT64 && whole) {
    params.set(field, number);
    return {};
  }
  if (which == capnp::schema::Type::UINT32 && whole && number <= UINT32_MAX) {
    params.set(field, number);
    return {};
  }
  return web_usage("'" + value + "' is no value of the parameter '" + key + "'");
}

Status set_params(capnp::DynamicStruct::Builder params, capnp::InterfaceSchema::Method method,
                  std::string_view query) {
  const capnp::StructSchema fields = asked_fields(method);
  auto target = params;
  if (fields != params.getSchema())
    target = params.init(params.getSchema().getFields()[0]).as<capnp::DynamicStruct>();
  for (const auto& [key, value] : query_of(query)) {
    std::string known;
    bool found = false;
    for (const auto field : fields.getFields()) {
      const std::string name = schema::snake_case(field.getProto().getName().cStr());
      known += (known.empty() ? "" : ", ") + name;
      if (name != key) continue;
      found = true;
      TERRACE_RETURN_IF_ERROR(set_field(target, field, key, value));
    }
    if (!found)
      return web_usage("there is no parameter '" + key + "'; there " +
                       (known.empty() ? std::string("is none") : "are " + known));
  }
  return {};
}

// A page becomes JSON between the manager's other work: whoever wants more asks again, behind the last row.
void bound_rows(capnp::DynamicStruct::Builder params, capnp::InterfaceSchema::Method method) {
  const capnp::StructSchema fields = asked_fields(method);
  auto target = params;
  if (fields != params.getSchema())
    target = params.get(params.getSchema().getFields()[0]).as<capnp::DynamicStruct>();
  for (const auto field : fields.getFields()) {
    if (std::string_view(field.getProto().getName().cStr()) != "limit") continue;
    const uint32_t asked = target.get(field).as<uint32_t>();
    target.set(field, asked == 0 || asked > web_rows_max ? web_rows_max : asked);
  }
}

unsigned status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return 400;
    case ErrorCode::permission_denied: return 403;
    case ErrorCode::not_found:
    case ErrorCode::lease_expired:
    case ErrorCode::lease_revoked: return 404;
    case ErrorCode::limit_exceeded: return 429;
    case ErrorCode::unavailable:
    case ErrorCode::busy: return 503;
    case ErrorCode::unsupported: return 501;
    default: return 500;
  }
}

// A call that waits is for the unix socket of the RPC: over HTTP nobody notices that who asked has gone.
bool waits(capnp::DynamicStruct::Reader params, capnp::InterfaceSchema::Method method) {
  const auto fields = asked_fields(method).getFields();
  for (const auto field : fields) {
    if (std::string_view(field.getProto().getName().cStr()) != "waitMs") continue;
    const auto asked = params.get(params.getSchema().getFields()[0]).as<capnp::DynamicStruct>();
    return asked.get(field).as<uint32_t>() != 0;
  }
  return false;
}

// A method's results, without its `error` where there was none.
WebAnswer answer_of_results(capnp::DynamicStruct::Reader results) {
  const auto error = results.get("error").as<capnp::DynamicStruct>().as<rpc::Error>();
  if (error.getCode() != 0)
    return web_error(Error{.code = static_cast<ErrorCode>(error.getCode()),
                           .where = web_where,
                           .detail = std::string(error.getDetail().begin(), error.getDetail().size())});
  nlohmann::json document = schema::to_json(results);
  document.erase("error");
  return web_json(document);
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
  return parameters;
}

}  // namespace

WebAnswer web_json(const nlohmann::json& document) {
  return {.body = document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"};
}

WebAnswer web_error(const Error& error) {
  WebAnswer answer = web_json({{"error", {{"code", error_code_name(error.code)}, {"message", error.detail}}}});
  answer.status = status_of(error.code);
  return answer;
}

WebAnswer deny_api(Service& service, const PeerCredentials& peer, const char* what) {
  const Error error = service.refused_authority(peer, Authority::oversight, what);
  const std::string uid = "uid-" + std::to_string(peer.uid);
  service.engine().note_denied(
      "admin", service.tenant_of(peer).value_or(uid), error,
      Actor{.text = "uid " + std::to_string(peer.uid) + " (http)", .administrator = false});
  return web_error(error);
}

kj::Promise<WebAnswer> ask_api(Service& service, const PeerCredentials& peer, const std::string& path) {
  const size_t question = std::min(path.find('?'), path.size());
  const std::string name = path.substr(0, question);
  const ApiPath* found = nullptr;
  std::string known;
  for (const ApiPath& one : api_paths) {
    known += (known.empty() ? "" : ", ") + std::string(one.path);
    if (name == one.path) found = &one;
  }
  if (found == nullptr)
    return web_error(Error{.code = ErrorCode::not_found,
                           .where = web_where,
                           .detail = "there is no /api/v1/" + name.substr(0, 64) + "; there are " + known});
  if (service.authority_of(peer) == Authority::none) return deny_api(service, peer, found->method);
  auto connection = kj::refcounted<Connection>(service, peer);
  connection->client_name = "http";
  connection->greeted = true;
  capnp::DynamicCapability::Client admin = make_admin(kj::addRef(*connection));
  const auto method = admin_schema().getMethodByName(found->method);
  auto request = admin.newRequest(method);
  const std::string_view query = question < path.size() ? std::string_view(path).substr(question + 1) : "";
  if (const Status set = set_params(request, method, query); !set.ok()) return web_error(set.error());
  if (waits(request.asReader(), method))
    return web_error(web_usage("nothing waits over HTTP: ask without wait_ms, again and again"));
  bound_rows(request, method);
  return request.send()
      .then([](capnp::Response<capnp::DynamicStruct>&& results) { return answer_of_results(results); })
      .attach(kj::mv(admin), kj::mv(connection));
}

nlohmann::json open_api() {
  nlohmann::json paths = nlohmann::json::object();
  schema::JsonShapes shapes;
  for (const ApiPath& one : api_paths) {
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
  shapes.erase("Error");
  return {{"openapi", "3.1.0"},
          {"info", {{"title", "Terrace"}, {"version", version_number()}}},
          {"paths", paths},
          {"components", {{"schemas", shapes}}}};
}

}  // namespace terrace::daemon
