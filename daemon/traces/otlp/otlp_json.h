// SPDX-License-Identifier: Apache-2.0
// Spans in OTLP's JSON encoding: ids are hex, times and whole numbers are texts.
//
// Pure. Threads: any.
#pragma once

#include <string>

#include "daemon/traces/tracer.h"

namespace terrace::daemon {

std::string otlp_span(const Span& span);

// What stands before and behind the spans of one request, which have commas between them.
struct OtlpFrame {
  std::string head, tail;
};
// `instance`: of this process.
OtlpFrame otlp_frame(const std::string& version, const std::string& host, const std::string& instance);

}  // namespace terrace::daemon
