// SPDX-License-Identifier: Apache-2.0
#include "daemon/web/acts.h"

#include <capnp/dynamic.h>
#include <kj/debug.h>

#include <iterator>
#include <set>
#include <sstream>

#include "core/schema/read_json.h"
#include "daemon/rpc/connection.h"
#include "daemon/web/api_query.h"
#include "daemon/web/denied.h"
#include "daemon/web/request_guard.h"

namespace terrace::daemon {
namespace {

constexpr std::string_view api_prefix = "/api/v1/";
constexpr kj::Duration act_body_max = 10 * kj::SECONDS;

struct Act {
  const char* path;
  const char* method;  // of Admin
  const char* keys;    // of the body, where the schema has more than the call reads; empty: all
  const char* about;
};

// What a day's work needs. What pools are made of is for the command line, which asks before it destroys; but for a device
// that is given up, since leases on it are lost already, as a rule.
constexpr Act acts[] = {
    {"preview", "preview", "", "What an act would do, and be refused with; changes nothing"},
    {"grant", "grant",
     "pool tenant bytes mode ttl_ns persistent label movable on_fence request_high request_low",
     "Grants memory to a tenant. Repeated with the same request_high and request_low it grants once"},
    {"renew", "renew", "", "Puts a lease's expiry off"},
    {"release", "release", "", "Gives a lease back in its holder's name; one in quarantine is erased again"},
    {"revoke", "revoke", "", "Takes a lease back, after a grace"},
    {"cancel_waiting", "cancelWaiting", "", "Refuses a grant that waits in the queue"},
    {"drain", "drain", "", "Places nothing more on a device and moves what is there"},
    {"undrain", "undrain", "", "Ends a drain, or puts a failed device back into service"},
    {"compact", "compact", "", "Makes a longer free run in a pool by moving leases that were granted movable"},
    {"end_compaction", "endCompaction", "", "Gives the compaction of a pool up; what has moved stays"},
    {"fail_device", "failDevice", "", "Gives a device up: its leases end at once"},
    {"set_quota", "setQuota", "tenant bytes_max leases_max",
     "Bounds a tenant; without bounds: removes its quota"},
    {"reserve", "reserve", "", "Keeps memory of a pool for a tenant"},
    {"unreserve", "unreserve", "", "Ends a reservation"},
};

const Act* find_act(const std::string& path) {
  for (const Act& one : acts)
    if (path == one.path) return &one;
  return nullptr;
}

capnp::InterfaceSchema::Method method_of(const Act& act) {
  return capnp::InterfaceSchema(capnp::Schema::from<rpc::Admin>()).getMethodByName(act.method);
}

std::set<std::string> keys_of(const Act& act) {
  std::istringstream words(act.keys);
  return {std::istream_iterator<std::string>(words), {}};
}

// No call has as many structs within each other. JSON of thousands would be written, into an error, by as many calls of a
// function by itself.
constexpr int depth_max = 8;

Status read_body(const Act& act, const std::string& body, capnp::DynamicStruct::Builder params) {
  bool deep = false;
  const auto shallow = [&deep](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
    deep = deep || depth > depth_max;
    return depth <= depth_max;
  };
  const auto document = nlohmann::json::parse(body, shallow, false);
  if (deep)
    return web_usage("what was sent has objects or lists within each other more than " +
                     std::to_string(depth_max) + " deep");
  if (document.is_discarded())
    return web_usage("what was sent is no JSON; send an object, as {\"serial\": \"emu:a\"}");
  auto target = params;
  if (asked_fields(method_of(act)) != params.getSchema())
    target = params.init(params.getSchema().getFields()[0]).as<capnp::DynamicStruct>();
  const std::string problem = schema::read_json(document, target, keys_of(act));
  return problem.empty() ? Status() : Status(web_usage(problem));
}

}  // namespace

bool is_act(const std::string& place) {
  return place.starts_with(api_prefix) && find_act(place.substr(api_prefix.size())) != nullptr;
}

namespace {

WebAnswer too_long() {
  return web_refusal(413, ErrorCode::invalid_argument,
                     "a request has at most " + std::to_string(act_body_bytes_max) + " bytes");
}

// Does it in the peer's name.
kj::Promise<WebAnswer> act_api(Service& service, const PeerCredentials& peer, const std::string& path,
                               const std::string& body) {
  const Act& act = *find_act(path);
  if (service.authority_of(peer) == Authority::none) return deny_web(service, peer, act.method);
  auto connection = kj::refcounted<Connection>(service, peer);
  connection->client_name = "http";
  connection->greeted = true;
  capnp::DynamicCapability::Client admin = make_admin(kj::addRef(*connection));
  const auto method = method_of(act);
  auto request = admin.newRequest(method);
  if (const Status read = read_body(act, body, request); !read.ok()) return web_error(read.error());
  return request.send()
      .then([method](capnp::Response<capnp::DynamicStruct>&& results) {
        return answer_of_results(results, method, {});
      })
      .attach(kj::mv(admin), kj::mv(connection));
}

}  // namespace

kj::Promise<WebAnswer> take_act(Service& service, kj::Timer& timer, const PeerCredentials& peer, WebPost post) {
  if (peer.socket != nullptr && !peer.socket->read_only.empty())
    return web_refusal(403, ErrorCode::permission_denied, peer.socket->read_only);
  if (const std::string why = why_foreign(post.headers); !why.empty())
    return web_refusal(403, ErrorCode::permission_denied, why + "; nothing was done");
  if (!says_json(post.headers.content_type))
    return web_refusal(415, ErrorCode::invalid_argument, "send Content-Type: application/json");
  if (post.path.find('?') != std::string::npos)
    return web_refusal(400, ErrorCode::invalid_argument, "parameters belong into the body, as JSON");
  KJ_IF_MAYBE (bytes, post.body.tryGetLength())
    if (*bytes > act_body_bytes_max) return too_long();
  auto text = post.body.readAllText(act_body_bytes_max)
                  .then([](kj::String all) { return kj::Maybe<kj::String>(kj::mv(all)); },
                        [](kj::Exception&& problem) -> kj::Maybe<kj::String> {
                          if (problem.getType() == kj::Exception::Type::DISCONNECTED)
                            kj::throwFatalException(kj::mv(problem));
                          return nullptr;
                        });
  auto late = timer.afterDelay(act_body_max).then([]() -> kj::Maybe<kj::String> {
    kj::throwFatalException(KJ_EXCEPTION(DISCONNECTED, "it begins a request and does not end it"));
  });
  return text.exclusiveJoin(kj::mv(late))
      .then([&service, &peer, path = post.path.substr(api_prefix.size()),
             turn = std::move(post.turn)](kj::Maybe<kj::String> all) mutable -> kj::Promise<WebAnswer> {
        KJ_IF_MAYBE (said, all) {
          // The body took its time: whose turn it is now is another question.
          return turn().then(
              [&service, &peer, path = std::move(path), body = std::string(said->begin(), said->size())] {
                return act_api(service, peer, path, body);
              });
        }
        return too_long();
      });
}

void add_acts(nlohmann::json& paths, schema::JsonShapes& shapes) {
  for (const Act& act : acts) {
    const auto method = method_of(act);
    nlohmann::json asked = schema::json_shape_of(asked_fields(method), shapes);
    if (const std::set<std::string> keys = keys_of(act); !keys.empty()) {
      for (auto at = asked["properties"].begin(); at != asked["properties"].end();)
        at = keys.contains(at.key()) ? std::next(at) : asked["properties"].erase(at);
    }
    asked["additionalProperties"] = false;
    nlohmann::json results = schema::json_shape_of(method.getResultType(), shapes);
    results["properties"].erase("error");
    const auto json_of = [](const nlohmann::json& shape) {
      return nlohmann::json{{"application/json", {{"schema", shape}}}};
    };
    paths[std::string("/api/v1/") + act.path]["post"] = {
        {"operationId", act.path},
        {"summary", act.about},
        {"parameters",
         {{{"name", action_header},
           {"in", "header"},
           {"required", true},
           {"schema", {{"type", "string"}, {"enum", {"1"}}}}}}},
        {"requestBody", {{"required", true}, {"content", json_of(asked)}}},
        {"responses",
         {{"200", {{"description", act.about}, {"content", json_of(results)}}},
          {"default", {{"description", "{\"error\": {\"code\", \"message\"}}"}}}}}};
  }
}

}  // namespace terrace::daemon
