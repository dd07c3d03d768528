// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/environment.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <utility>

namespace terrace::sim {
namespace {

constexpr size_t lines_kept = 120;

struct PlantInfo {
  std::string name;
  std::string_view text;
};

const std::vector<PlantInfo>& plants() {
  static const std::vector<PlantInfo> list = [] {
    std::vector<PlantInfo> made;
#define TERRACE_SIM_PLANT_INFO(name, text) made.push_back({#name, text});
    TERRACE_SIM_PLANTS(TERRACE_SIM_PLANT_INFO)
#undef TERRACE_SIM_PLANT_INFO
    for (PlantInfo& info : made) std::replace(info.name.begin(), info.name.end(), '_', '-');
    return made;
  }();
  return list;
}

std::string format_text(const char* format, va_list arguments) {
  char text[512];
  std::vsnprintf(text, sizeof text, format, arguments);
  return text;
}

}  // namespace

std::string_view plant_name(Plant plant) {
  return plants().at(static_cast<size_t>(plant)).name;
}

std::string_view plant_text(Plant plant) {
  return plants().at(static_cast<size_t>(plant)).text;
}

std::optional<Plant> plant_by_name(std::string_view name) {
  for (size_t i = 0; i < plants().size(); ++i) {
    if (plants()[i].name == name) return static_cast<Plant>(i);
  }
  return std::nullopt;
}

Faults Faults::draw(Prng& prng) {
  Faults faults;
  const auto maybe = [&](auto value) { return prng.chance(1, 2) ? value : decltype(value){0}; };
  if (!prng.chance(1, 10)) {  // one seed in ten sees no fault but delays
    faults.crash_interval_ns = maybe(prng.between(500 * ns_per_ms, 20 * ns_per_s));
    faults.reboot_interval_ns = prng.chance(1, 4) ? prng.between(5 * ns_per_s, 40 * ns_per_s) : 0;
    faults.jump_interval_ns = prng.chance(1, 4) ? prng.between(2 * ns_per_s, 30 * ns_per_s) : 0;
    faults.crash_point_per_10000 = maybe(static_cast<uint32_t>(prng.between(1, 200)));
    faults.carve_failure_percent = maybe(static_cast<uint32_t>(prng.between(1, 30)));
    faults.fence_failure_per_mille = prng.chance(1, 3) ? static_cast<uint32_t>(prng.between(1, 60)) : 0;
    faults.scrub_failure_per_mille = prng.chance(1, 3) ? static_cast<uint32_t>(prng.between(1, 60)) : 0;
    faults.commit_full_percent = prng.chance(1, 3) ? static_cast<uint32_t>(prng.between(1, 30)) : 0;
    faults.commit_error_per_mille = prng.chance(1, 3) ? static_cast<uint32_t>(prng.between(1, 30)) : 0;
    faults.message_loss_percent = maybe(static_cast<uint32_t>(prng.between(1, 25)));
    faults.device_loss_interval_ns = prng.chance(1, 3) ? prng.between(3 * ns_per_s, 30 * ns_per_s) : 0;
    faults.device_blank_percent = prng.chance(1, 2) ? 0 : 40;
    faults.full_interval_ns = prng.chance(1, 6) ? prng.between(5 * ns_per_s, 40 * ns_per_s) : 0;
    faults.change_failure_percent = prng.chance(1, 3) ? static_cast<uint32_t>(prng.between(1, 25)) : 0;
    faults.passing_failure_percent = prng.chance(1, 4) ? static_cast<uint32_t>(prng.between(1, 15)) : 0;
  }
  faults.commit_ns_max = prng.between(ns_per_us, 100 * ns_per_ms);
  faults.effect_ns_max = prng.between(ns_per_us, 2 * ns_per_s);
  return faults;
}

Faults Faults::calmed() const {
  Faults calm;
  calm.commit_ns_max = commit_ns_max;
  calm.effect_ns_max = effect_ns_max;
  return calm;
}

Environment::Environment(const Options& options)
    : options_(options), prng_(options.seed), faults_(Faults::draw(prng_)) {}

void Environment::after(uint64_t delay_ns, std::function<void()> action) {
  events_.push({now_ns_ + delay_ns, next_serial_++, std::move(action)});
}

bool Environment::run_one() {
  if (events_.empty()) return false;
  const std::function<void()> action = events_.top().action;
  now_ns_ = std::max(now_ns_, events_.top().at_ns);
  events_.pop();
  ++step_;
  action();
  return true;
}

void Environment::note(const char* format, ...) {
  if (!options_.trace) return;
  va_list arguments;
  va_start(arguments, format);
  keep(format_text(format, arguments));
  va_end(arguments);
}

void Environment::fail(const char* format, ...) {
  if (failed()) return;
  va_list arguments;
  va_start(arguments, format);
  failure_ = format_text(format, arguments);
  va_end(arguments);
  if (options_.trace) keep("FAILED: " + failure_);
}

void Environment::keep(std::string line) {
  char head[64];
  std::snprintf(head, sizeof head, "%6llu %12.6f s  ", static_cast<unsigned long long>(step_),
                static_cast<double>(now_ns_) / 1e9);
  lines_.push_back(head + std::move(line));
  if (options_.echo) std::printf("%s\n", lines_.back().c_str());
  if (lines_.size() > lines_kept) lines_.pop_front();
}

}  // namespace terrace::sim
