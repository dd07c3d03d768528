// SPDX-License-Identifier: Apache-2.0
// Policies of KV spaces for C.
#include <utility>
#include <vector>

#include "libclient/c_api/call.h"
#include "libclient/c_api/kv.h"

using namespace terrace;
using namespace terrace::c_api;

namespace {

// What a thread was last told, with all that the arrays for C point to.
struct ToldPolicy {
  KvPolicy policy;
  std::vector<terrace_kv_budget> budgets;
  std::vector<terrace_kv_kept> kept;
};

ToldPolicy& last_told() {
  thread_local ToldPolicy last;
  return last;
}

}  // namespace

extern "C" {

terrace_code terrace_kv_set_policy(terrace_kv* kv, const terrace_kv_budget* budgets, size_t budget_count,
                                   const terrace_kv_kept* kept, size_t kept_count) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_set_policy";
    TERRACE_C_NEED(where, kv);
    if (budget_count != 0) TERRACE_C_NEED(where, budgets);
    if (kept_count != 0) TERRACE_C_NEED(where, kept);
    KvPolicy policy;
    for (size_t index = 0; index < budget_count; ++index) {
      TERRACE_ASSIGN_OR_RETURN(const KvNamespace of, kv_namespace_of(budgets[index].namespaces));
      policy.budgets.push_back({.namespaces = of.name(), .bytes = budgets[index].bytes});
    }
    for (size_t index = 0; index < kept_count; ++index) {
      TERRACE_ASSIGN_OR_RETURN(const KvNamespace of, kv_namespace_of(kept[index].namespaces));
      std::string_view key;
      if (kept[index].key_bytes != 0) {
        TERRACE_ASSIGN_OR_RETURN(key, kv_key_of(kept[index].key, kept[index].key_bytes, where));
      }
      policy.kept.push_back({.namespaces = of.name(), .key = std::string(key)});
    }
    return kv->space->set_policy(policy);
  });
}

terrace_code terrace_kv_get_policy(terrace_kv* kv, const terrace_kv_budget** budgets, size_t* budget_count,
                                   const terrace_kv_kept** kept, size_t* kept_count) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_get_policy";
    TERRACE_C_NEED(where, kv);
    TERRACE_C_NEED(where, budgets);
    TERRACE_C_NEED(where, budget_count);
    TERRACE_C_NEED(where, kept);
    TERRACE_C_NEED(where, kept_count);
    TERRACE_ASSIGN_OR_RETURN(KvPolicy policy, kv->space->policy());
    TERRACE_ASSIGN_OR_RETURN(const KvStat stat, kv->space->stat());
    ToldPolicy& told = last_told();
    told = {.policy = std::move(policy), .budgets = {}, .kept = {}};
    for (const KvBudget& budget : told.policy.budgets) {
      uint64_t used_bytes = 0;
      for (const KvBudgetUse& use : stat.budgets)
        if (use.budget.namespaces == budget.namespaces) used_bytes = use.used_bytes;
      told.budgets.push_back(
          {.namespaces = budget.namespaces.c_str(), .bytes = budget.bytes, .used_bytes = used_bytes});
    }
    for (const KvKept& one : told.policy.kept)
      told.kept.push_back(
          {.namespaces = one.namespaces.c_str(), .key = one.key.data(), .key_bytes = one.key.size()});
    *budgets = told.budgets.data();
    *budget_count = told.budgets.size();
    *kept = told.kept.data();
    *kept_count = told.kept.size();
    return {};
  });
}

}  // extern "C"
