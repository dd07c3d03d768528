// SPDX-License-Identifier: Apache-2.0
#include "daemon/traces/otlp/otlp_json.h"

#include "daemon/lines/json_line.h"

namespace terrace::daemon {
namespace {

constexpr unsigned kind_internal = 1, kind_server = 2;
constexpr unsigned status_error = 2;

std::string attribute(std::string_view key, std::string_view value, bool is_number) {
  JsonLine inner, outer;
  inner.text(is_number ? "intValue" : "stringValue", value);
  outer.text("key", key);
  outer.raw("value", inner.object());
  return outer.object();
}

class List {
 public:
  void add(const std::string& item) { text_ += (text_.empty() ? "[" : ", ") + item; }
  void text(std::string_view key, std::string_view value) {
    if (!value.empty()) add(attribute(key, value, false));
  }
  std::string done() const { return text_.empty() ? "[]" : text_ + "]"; }

 private:
  std::string text_;
};

}  // namespace

std::string otlp_span(const Span& span) {
  List attributes;
  if (span.is_call) attributes.text("rpc.method", span.name);
  attributes.text("terrace.tenant", span.tenant);
  attributes.text("terrace.pool", span.pool);
  if (span.lease != 0) attributes.add(attribute("terrace.lease", std::to_string(span.lease), true));
  attributes.text("error.type", span.code);
  JsonLine status;
  if (!span.code.empty()) {
    status.number("code", status_error);
    status.text("message", span.code);
  }
  JsonLine line;
  line.text("traceId", trace_id_text(span.trace_high, span.trace_low));
  line.text("spanId", span_id_text(span.id));
  if (span.parent != 0) line.text("parentSpanId", span_id_text(span.parent));
  line.text("name", span.name);
  line.number("kind", span.is_call ? kind_server : kind_internal);
  line.text("startTimeUnixNano", std::to_string(span.begin_wall_ns));
  line.text("endTimeUnixNano", std::to_string(span.end_wall_ns));
  line.raw("attributes", attributes.done());
  line.raw("status", status.object());
  return line.object();
}

OtlpFrame otlp_frame(const std::string& version, const std::string& host, const std::string& instance) {
  List attributes;
  attributes.text("service.name", "terraced");
  attributes.text("service.version", version);
  attributes.text("service.instance.id", instance);
  attributes.text("host.name", host);
  JsonLine resource, scope;
  resource.raw("attributes", attributes.done());
  scope.text("name", "terrace");
  scope.text("version", version);
  return {"{\"resourceSpans\": [{\"resource\": " + resource.object() +
              ", \"scopeSpans\": [{\"scope\": " + scope.object() + ", \"spans\": [",
          "]}]}]}\n"};
}

}  // namespace terrace::daemon
