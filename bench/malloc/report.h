// SPDX-License-Identifier: Apache-2.0
// The figures of a run: the goals, the results, and the reason of a missing figure.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace terrace::bench {

struct Aim {
  bool at_most = true;
  double value = 0;
};
inline Aim at_most(double value) {
  return {true, value};
}
inline Aim at_least(double value) {
  return {false, value};
}

class Report {
 public:
  void figure(const std::string& key, double value, Aim aim);
  // Null in the JSON, with `why` under KEY_missing.
  void missing(const std::string& key, const std::string& why, Aim aim);
  // What has no aim of its own: in the JSON only.
  void detail(const std::string& key, nlohmann::json value) { document_[key] = std::move(value); }

  void print() const;
  const nlohmann::json& document() const { return document_; }

 private:
  struct Line {
    std::string key, why;
    double value;
    Aim aim;
  };
  std::vector<Line> lines_;
  nlohmann::json document_ = nlohmann::json::object();
};

}  // namespace terrace::bench
