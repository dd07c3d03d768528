// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/admin/event_wire.h"

#include "core/schema/words.h"
#include "daemon/events/sinks/event_text.h"
#include "daemon/rpc/wire.h"

namespace terrace::daemon {

void write_event(rpc::Event::Builder out, const Event& event, std::string_view run) {
  out.setId(event.id);
  out.setRun(std::string(run));
  out.setTimeWallNs(event.wall_ns);
  out.setTime(event_time(event.wall_ns));
  out.setKind(static_cast<rpc::EventKind>(event.kind));
  out.setSeverity(static_cast<rpc::EventSeverity>(event.severity));
  out.setMessage(event.message);
  out.setLease(event.lease);
  out.setTenant(event.tenant);
  out.setPool(event.pool);
  out.setDevice(event.device);
  out.setHost(event.host);
  out.setCode(event.code);
  out.setCause(event.cause);
  out.setBytes(event.bytes);
  out.setTookNs(event.took_ns);
  out.setTraceId(event.trace_id);
  out.setCount(event.count);
}

Result<EventFilter> read_event_query(rpc::EventQuery::Reader query) {
  EventFilter filter;
  filter.since = query.getSince();
  filter.since_wall_ns = query.getSinceWallNs();
  filter.severity_min = static_cast<EventSeverity>(query.getSeverity());
  filter.lease = query.getLease();
  filter.tenant = read_text(query.getTenant());
  filter.pool = read_text(query.getPool());
  filter.device = read_text(query.getDevice());
  filter.host = read_text(query.getHost());
  const std::string kind = read_text(query.getKind());
  if (kind.empty()) return filter;
  std::string known;
  for (size_t number = 0; number < event_kinds; ++number) {
    const std::string_view word = event_word(static_cast<EventKind>(number));
    known += (known.empty() ? "" : ", ") + std::string(word);
    if (word.starts_with(kind)) filter.kinds |= 1ull << number;
  }
  if (filter.kinds != 0) return filter;
  return Error{.code = ErrorCode::invalid_argument,
               .where = "events",
               .detail = "no kind of event begins with '" + kind.substr(0, 64) + "'; there are " + known};
}

}  // namespace terrace::daemon
