// SPDX-License-Identifier: Apache-2.0
#include "daemon/web/metrics/metrics_text.h"

#include <charconv>

namespace terrace::daemon {
namespace {

// A backslash, a quote and a line's end would end the value.
void add_label_value(std::string& text, std::string_view value) {
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    if (c == '\n')
      text += "\\n";
    else
      text += c;
  }
}

template <typename Value>
void add_number(std::string& text, Value value) {
  char digits[64];
  const auto written = std::to_chars(digits, digits + sizeof digits, value);
  text.append(digits, written.ptr);
  text += '\n';
}

}  // namespace

void MetricsText::family(std::string_view name, Kind kind, std::string_view help) {
  name_ = name;
  text_.append("# HELP ").append(name).append(" ").append(help).append("\n# TYPE ").append(name);
  switch (kind) {
    case Kind::gauge: text_ += " gauge\n"; break;
    case Kind::counter: text_ += " counter\n"; break;
    case Kind::histogram: text_ += " histogram\n"; break;
  }
}

void MetricsText::begin_sample(const Labels& labels, std::string_view suffix) {
  text_.append(name_).append(suffix);
  char before = '{';
  for (const auto& [label, value] : labels) {
    text_ += before;
    text_.append(label).append("=\"");
    add_label_value(text_, value);
    text_ += '"';
    before = ',';
  }
  text_ += labels.empty() ? " " : "} ";
}

void MetricsText::sample(uint64_t value, const Labels& labels) {
  begin_sample(labels);
  add_number(text_, value);
}

void MetricsText::sample(double value, const Labels& labels) {
  begin_sample(labels);
  add_number(text_, value);
}

// Each bucket counts all up to its bound.
void MetricsText::sample(const LatencyHistogram& times, const Labels& labels) {
  constexpr double ns = 1e9;
  uint64_t all = 0;
  for (size_t i = 0; i < times.counts().size(); ++i) {
    all += times.counts()[i];
    std::string bound = "+Inf";
    if (i < LatencyHistogram::bounds_ns.size()) {
      char digits[32];
      bound.assign(digits, std::to_chars(digits, digits + sizeof digits,
                                         static_cast<double>(LatencyHistogram::bounds_ns[i]) / ns)
                               .ptr);
    }
    Labels with_bound = labels;
    with_bound.emplace_back("le", bound);
    begin_sample(with_bound, "_bucket");
    add_number(text_, all);
  }
  begin_sample(labels, "_sum");
  add_number(text_, static_cast<double>(times.sum_ns()) / ns);
  begin_sample(labels, "_count");
  add_number(text_, all);
}

}  // namespace terrace::daemon
