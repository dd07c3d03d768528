// SPDX-License-Identifier: Apache-2.0
// The text of a KV space's policy, as any holder of the lease may have stored it. What is taken for a policy is within its
// limits, says the same again as text, and answers for namespaces and keys without harm.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/check.h"
#include "libclient/kv/rules.h"

using namespace terrace;
using namespace terrace::kv;

namespace {

void ask(const KvPolicy& policy) {
  Rules rules(policy);
  uint32_t number = 0;
  const auto learn = [&](const std::string& name) {
    const NamespaceRules& of = rules.learn(++number, name);
    for (const uint16_t budget : of.budgets)
      TERRACE_CHECK(budget < policy.budgets.size() && name.starts_with(policy.budgets[budget].namespaces),
                    "a budget is the policy's, and of that namespace");
    TERRACE_CHECK(rules.find(number) != nullptr, "what was learned is known");
    return of.budgets;
  };
  for (size_t index = 0; index < policy.budgets.size(); ++index) {
    const auto budgets = learn(policy.budgets[index].namespaces);
    TERRACE_CHECK(std::find(budgets.begin(), budgets.end(), index) != budgets.end(),
                  "a namespace has its own budget");
    (void)learn(policy.budgets[index].namespaces + "/deeper");
  }
  for (const KvKept& kept : policy.kept) {
    (void)learn(kept.namespaces);
    if (!kept.key.empty()) (void)rules.keeps_key(key_of(namespace_hash(kept.namespaces), kept.key));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::optional<PolicyText> found = policy_of({reinterpret_cast<const char*>(data), size});
  if (!found) return 0;
  TERRACE_CHECK(check_policy(found->policy).ok(), "what is read could have been set");
  const std::string text = text_of(*found);
  const std::optional<PolicyText> again = policy_of(text);
  TERRACE_CHECK(again && again->generation == found->generation && again->policy == found->policy,
                "a policy's text is that policy");
  TERRACE_CHECK(text_of(*again) == text, "there is one text of a policy");
  ask(found->policy);
  return 0;
}
