// SPDX-License-Identifier: Apache-2.0
// Metrics in Prometheus' text format, version 0.0.4.
//
// Pure. A family's samples are written together, behind its help and type.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/model/latency_histogram.h"

namespace terrace::daemon {

class MetricsText {
 public:
  using Labels = std::vector<std::pair<std::string_view, std::string_view>>;
  enum class Kind : uint8_t { gauge, counter, histogram };

  // Begins a family. A counter's name ends in _total; units are in the name (_bytes, _seconds).
  void family(std::string_view name, Kind kind, std::string_view help);
  // Of the family that was begun last.
  void sample(uint64_t value, const Labels& labels = {});
  void sample(double value, const Labels& labels = {});

  // Of a family of kind histogram, in seconds.
  void sample(const LatencyHistogram& times, const Labels& labels = {});

  // One without labels.
  template <typename Value>
  void gauge(std::string_view name, std::string_view help, Value value) {
    family(name, Kind::gauge, help);
    sample(value);
  }
  template <typename Value>
  void counter(std::string_view name, std::string_view help, Value value) {
    family(name, Kind::counter, help);
    sample(value);
  }

  const std::string& text() const { return text_; }

 private:
  void begin_sample(const Labels& labels, std::string_view suffix = {});

  std::string text_, name_;
};

}  // namespace terrace::daemon
