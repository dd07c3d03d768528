// Sessions, leases and their mappings for C.
#include <utility>

#include "libclient/c_api/call.h"
#include "libclient/c_api/handles.h"

using namespace terrace;
using namespace terrace::c_api;

namespace {

Status give_lease(const terrace_session& session, Result<std::shared_ptr<Lease>> lease, terrace_lease** into) {
  if (!lease.ok()) return std::move(lease).error();
  *into = new terrace_lease{kept_by(session.session, std::move(lease).value())};
  return {};
}

}  // namespace

extern "C" {

terrace_code terrace_session_connect(const terrace_session_options* options, terrace_session** session) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_session_connect";
    TERRACE_C_NEED(where, session);
    TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(options, where));
    SessionOptions wanted;
    wanted.socket_path = text_of(given.socket_path);
    wanted.tenant = text_of(given.tenant);
    wanted.host = text_of(given.host);
    wanted.client_name = text_of(given.client_name);
    if (given.connect_timeout_ns != 0) wanted.connect_timeout_ns = given.connect_timeout_ns;
    if (given.call_timeout_ns != 0) wanted.call_timeout_ns = given.call_timeout_ns;
    TERRACE_ASSIGN_OR_RETURN(auto made, Session::connect(std::move(wanted)));
    *session = new terrace_session{std::move(made)};
    return {};
  });
}

int terrace_session_connected(const terrace_session* session) {
  return session != nullptr && session->session->connected() ? 1 : 0;
}

void terrace_session_free(terrace_session* session) {
  delete session;
}

terrace_code terrace_lease_grant(terrace_session* session, const terrace_lease_request* request,
                                 terrace_lease** lease) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_lease_grant";
    TERRACE_C_NEED(where, session);
    TERRACE_C_NEED(where, request);
    TERRACE_C_NEED(where, lease);
    TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(request, where));
    TERRACE_ASSIGN_OR_RETURN(const auto mode,
                             enum_of<LeaseMode>(given.mode, 3, "lease mode (TERRACE_LEASE_...)", where));
    LeaseRequest wanted;
    wanted.pool = text_of(given.pool);
    wanted.bytes = given.bytes;
    wanted.mode = mode;
    wanted.ttl_ns = given.ttl_ns;
    wanted.persistent = given.persistent != 0;
    wanted.label = text_of(given.label);
    wanted.movable = given.movable != 0;
    wanted.wait_ns = given.wait_ns;
    return give_lease(*session, session->session->grant(wanted), lease);
  });
}

terrace_code terrace_lease_attach(terrace_session* session, uint64_t id, const char* label, int read_only,
                                  terrace_lease** lease) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_lease_attach";
    TERRACE_C_NEED(where, session);
    TERRACE_C_NEED(where, lease);
    if (id == 0 && text_of(label).empty()) return invalid(where, "neither an id nor a label");
    const LeaseAccess access = read_only != 0 ? LeaseAccess::read_only : LeaseAccess::read_write;
    return give_lease(*session, session->session->attach(LeaseId{id}, text_of(label), access), lease);
  });
}

uint64_t terrace_lease_id(const terrace_lease* lease) {
  return lease == nullptr ? 0 : lease->lease->id().value;
}

uint64_t terrace_lease_epoch(const terrace_lease* lease) {
  return lease == nullptr ? 0 : lease->lease->epoch().value;
}

uint64_t terrace_lease_bytes(const terrace_lease* lease) {
  return lease == nullptr ? 0 : lease->lease->bytes();
}

int terrace_lease_state(const terrace_lease* lease) {
  return lease == nullptr ? TERRACE_LEASE_LOST : static_cast<int>(lease->lease->state());
}

int terrace_lease_fd(const terrace_lease* lease) {
  return lease == nullptr ? -1 : lease->lease->fd();
}

terrace_code terrace_lease_renew(terrace_lease* lease, uint64_t ttl_ns) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_lease_renew", lease);
    return lease->lease->renew(ttl_ns);
  });
}

terrace_code terrace_lease_resize(terrace_lease* lease, uint64_t bytes) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_lease_resize", lease);
    TERRACE_RETURN_IF_ERROR(lease->lease->resize(bytes));
    return {};
  });
}

terrace_code terrace_lease_release(terrace_lease* lease) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_lease_release", lease);
    return lease->lease->release();
  });
}

void terrace_lease_free(terrace_lease* lease) {
  delete lease;
}

terrace_code terrace_mapping_map(terrace_lease* lease, terrace_mapping** mapping) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_mapping_map";
    TERRACE_C_NEED(where, lease);
    TERRACE_C_NEED(where, mapping);
    TERRACE_ASSIGN_OR_RETURN(auto made, Mapping::map(lease->lease));
    *mapping = new terrace_mapping{std::move(made)};
    return {};
  });
}

void* terrace_mapping_data(terrace_mapping* mapping) {
  return mapping == nullptr ? nullptr : mapping->mapping->bytes().data();
}

const void* terrace_mapping_const_data(const terrace_mapping* mapping) {
  return mapping == nullptr ? nullptr : mapping->mapping->const_bytes().data();
}

uint64_t terrace_mapping_bytes(const terrace_mapping* mapping) {
  return mapping == nullptr ? 0 : mapping->mapping->const_bytes().size();
}

void terrace_mapping_free(terrace_mapping* mapping) {
  delete mapping;
}

}  // extern "C"
