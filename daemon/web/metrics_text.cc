#include "daemon/web/metrics_text.h"

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
  text_ += kind == Kind::counter ? " counter\n" : " gauge\n";
}

void MetricsText::begin_sample(const Labels& labels) {
  text_ += name_;
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

}  // namespace terrace::daemon
