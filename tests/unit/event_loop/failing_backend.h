// SPDX-License-Identifier: Apache-2.0
// A backend before a backend: counts the calls that change something, in their order, and has them fail as a test says.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/memory/backend.h"

namespace terrace::test {

class FailingBackend final : public daemon::Backend {
 public:
  explicit FailingBackend(daemon::Backend& behind) : behind_(behind) {}

  std::map<std::string, int> calls;       // how many of each, by name: "fence"
  std::vector<std::string> order;         // "fence lease-1"
  std::map<std::string, Error> failures;  // what each call of that name meets, from then on
  std::function<Status(std::string_view call)>
      meets;  // or what one meets; where there is one, it alone is asked

  std::string_view kind() const override { return behind_.kind(); }
  std::vector<daemon::SeenDevice> discover() override { return behind_.discover(); }
  Status refresh() override { return behind_.refresh(); }
  bool saw_all(std::string_view backend) const override { return behind_.saw_all(backend); }
  bool outlasts_absence(std::string_view backend) const override { return behind_.outlasts_absence(backend); }
  daemon::TierAttributes attributes(const std::string& serial) const override {
    return behind_.attributes(serial);
  }
  Status may_take_over(const std::string& serial) override { return behind_.may_take_over(serial); }
  Status take_over(const std::string& serial) override {
    TERRACE_RETURN_IF_ERROR(met("take_over", serial));
    return behind_.take_over(serial);
  }
  Status carve(const std::string& name, uint64_t bytes, const std::vector<daemon::Extent>& extents) override {
    TERRACE_RETURN_IF_ERROR(met("carve", name));
    return behind_.carve(name, bytes, extents);
  }
  Result<UniqueFd> open(const std::string& name, daemon::ObjectAccess access) override {
    return behind_.open(name, access);
  }
  Status hand_out(const std::string& name) override { return behind_.hand_out(name); }
  Status fence(const std::string& name) override {
    TERRACE_RETURN_IF_ERROR(met("fence", name));
    return behind_.fence(name);
  }
  Result<uint64_t> scrub(const std::string& name) override {
    TERRACE_RETURN_IF_ERROR(met("scrub", name));
    return behind_.scrub(name);
  }
  Status resize(const std::string& name, uint64_t from_bytes, uint64_t to_bytes,
                const std::vector<daemon::Extent>& extents) override {
    TERRACE_RETURN_IF_ERROR(met("resize", name));
    return behind_.resize(name, from_bytes, to_bytes, extents);
  }
  Status rebind(const std::string& from, const std::string& to, uint64_t bytes,
                const std::vector<daemon::Extent>& extents) override {
    TERRACE_RETURN_IF_ERROR(met("rebind", from));
    return behind_.rebind(from, to, bytes, extents);
  }
  Status copy(const std::string& from, const std::string& to, uint64_t bytes) override {
    TERRACE_RETURN_IF_ERROR(met("copy", from));
    return behind_.copy(from, to, bytes);
  }
  bool quick(std::string_view name, uint64_t bytes) const override { return behind_.quick(name, bytes); }
  Result<std::vector<daemon::ObservedObject>> list() override { return behind_.list(); }
  Result<daemon::ObservedObject> usage(const std::string& name) override { return behind_.usage(name); }
  std::string describe_memory() const override { return behind_.describe_memory(); }
  bool huge_pages(std::string_view name) const override { return behind_.huge_pages(name); }

 private:
  Status met(const char* call, const std::string& object) {
    ++calls[call];
    order.push_back(std::string(call) + " " + object);
    if (meets) return meets(call);
    const auto failure = failures.find(call);
    if (failure == failures.end()) return {};
    return failure->second;
  }

  daemon::Backend& behind_;
};

}  // namespace terrace::test
