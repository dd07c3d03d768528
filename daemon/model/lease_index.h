// SPDX-License-Identifier: Apache-2.0
// What finds leases: by when they are due, by label, by request key. A row goes in and out as a whole: take it out,
// change it, take it in.
//
// Place     daemon/state keeps one; pure.
// Threads   One.
// Invariant Each entry belongs to a row that is in, and a row that is in has all of its entries (I6, I7): one that
//           is there before it is inserted, or not there when it is removed, ends the process.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "daemon/model/rows.h"

namespace terrace::daemon {

class LeaseIndex {
 public:
  struct Due {
    uint64_t at_ns;
    LeaseId lease;
    auto operator<=>(const Due&) const = default;
  };

  void insert(const LeaseRow& lease);
  void remove(const LeaseRow& lease);
  // Changes the expiry of a row that is in; it has one, and no deadline. No other entry depends on it.
  void set_expiry(LeaseRow& lease, uint64_t expiry_ns);

  // Invalid where there is none.
  LeaseId by_label(const std::string& tenant, const std::string& label) const;
  LeaseId by_request(const std::string& tenant, uint64_t high, uint64_t low) const;
  // Expiries and deadlines; one entry where both are the same.
  const std::set<Due>& due() const { return due_; }
  size_t labels() const { return by_label_.size(); }
  size_t requests() const { return by_request_.size(); }

 private:
  void insert_due(uint64_t at_ns, LeaseId lease);
  void remove_due(uint64_t at_ns, LeaseId lease);

  std::set<Due> due_;
  std::map<std::pair<std::string, std::string>, LeaseId> by_label_;            // tenant, label
  std::map<std::tuple<std::string, uint64_t, uint64_t>, LeaseId> by_request_;  // tenant, key
};

}  // namespace terrace::daemon
