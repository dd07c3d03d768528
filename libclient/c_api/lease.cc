// SPDX-License-Identifier: Apache-2.0
// Sessions, leases and their mappings for C.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>
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

template <size_t size>
void copy_text(char (&into)[size], std::string_view text) {
  const size_t length = std::min(text.size(), size - 1);
  std::memcpy(into, text.data(), length);
  into[length] = '\0';
}

terrace_notice notice_of(const LeaseNotice& notice) {
  terrace_notice out{};
  out.size = sizeof(out);
  out.lease = notice.lease.value;
  out.state = static_cast<int>(notice.state);
  out.move_requested = notice.move_requested ? 1 : 0;
  out.grace_ns = notice.grace_ns;
  copy_text(out.cause, lease_cause_name(notice.cause));
  copy_text(out.reason, notice.reason);
  return out;
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
    std::string tenant = made->tenant();
    *session = new terrace_session{std::move(made), std::move(tenant)};
    return {};
  });
}

const char* terrace_session_tenant(const terrace_session* session) {
  return session == nullptr ? "" : session->tenant.c_str();
}

int terrace_session_connected(const terrace_session* session) {
  return session != nullptr && session->session->connected() ? 1 : 0;
}

void terrace_session_free(terrace_session* session) {
  delete session;
}

terrace_code terrace_session_on_notice(terrace_session* session, terrace_notice_handler handler,
                                       void* context) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_session_on_notice", session);
    LeaseNoticeHandler wanted;
    if (handler != nullptr) {
      wanted = [handler, context](const LeaseNotice& notice) {
        const terrace_notice told = notice_of(notice);
        handler(&told, context);
      };
    }
    session->session->on_notice(std::move(wanted));
    return {};
  });
}

terrace_code terrace_session_next_notice(terrace_session* session, terrace_notice* notice) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_session_next_notice";
    TERRACE_C_NEED(where, session);
    TERRACE_C_NEED(where, notice);
    const size_t size = notice->size;
    if (size < offsetof(terrace_notice, reason) + sizeof(notice->reason) || size > size_max)
      return invalid(where, "the notice's size is " + std::to_string(size) + ": set it to sizeof the struct");
    const auto waiting = session->session->next_notice();
    if (!waiting.has_value()) return Error{ErrorCode::not_found, 0, where, "no notice waits"};
    const terrace_notice told = notice_of(*waiting);
    std::memcpy(notice, &told, std::min(size, sizeof(told)));
    notice->size = size;
    return {};
  });
}

int terrace_session_notice_fd(const terrace_session* session) {
  return session == nullptr ? -1 : session->session->notice_fd();
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
    wanted.detached = given.detached != 0;
    TERRACE_ASSIGN_OR_RETURN(wanted.on_fence,
                             enum_of<OnFence>(given.on_fence, 2, "on_fence (TERRACE_ON_FENCE_...)", where));
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

terrace_code terrace_lease_attach_on_fence(terrace_session* session, uint64_t id, const char* label,
                                           int read_only, int on_fence, terrace_lease** lease) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_lease_attach_on_fence";
    TERRACE_C_NEED(where, session);
    TERRACE_C_NEED(where, lease);
    TERRACE_ASSIGN_OR_RETURN(const auto wanted,
                             enum_of<OnFence>(on_fence, 2, "on_fence (TERRACE_ON_FENCE_...)", where));
    if (id == 0 && text_of(label).empty()) return invalid(where, "neither an id nor a label");
    const LeaseAccess access = read_only != 0 ? LeaseAccess::read_only : LeaseAccess::read_write;
    return give_lease(*session, session->session->attach(LeaseId{id}, text_of(label), access, wanted), lease);
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

int terrace_lease_access(const terrace_lease* lease) {
  return lease == nullptr ? -1 : static_cast<int>(lease->lease->access());
}

int terrace_lease_on_fence(const terrace_lease* lease) {
  return lease == nullptr ? -1 : static_cast<int>(lease->lease->on_fence());
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
