// SPDX-License-Identifier: Apache-2.0
// What a daemon reports, as verbs pass it on: messages of the schema, which outlive the connection.
//
// Place     Made by the files of cli/client from replies; shown by cli/show.
// Units     Bytes, nanoseconds; `wallNs` is CLOCK_REALTIME. core/schema/terrace.capnp says what each field means.
#pragma once

#include <string>
#include <vector>

#include "core/schema/message.h"
#include "core/schema/terrace.capnp.h"

namespace terrace::cli {

using AuditRecord = schema::Message<rpc::AuditEntry>;
using BackupStatus = schema::Message<rpc::StoreBackup>;
using CompactionStatus = schema::Message<rpc::Compaction>;
using DeviceStatus = schema::Message<rpc::DeviceInfo>;
using DrainProgress = schema::Message<rpc::DeviceProgress>;
using DoctorReply = schema::Message<rpc::Admin::DoctorResults>;
using EventRecord = schema::Message<rpc::Event>;
using EventsReply = schema::Message<rpc::Admin::EventsResults>;
using FindingStatus = schema::Message<rpc::Finding>;
using Hardware = schema::Message<rpc::Inventory>;
using HealthRecord = schema::Message<rpc::HealthFinding>;
using HealthReply = schema::Message<rpc::Admin::HealthResults>;
using HostRecord = schema::Message<rpc::HostInfo>;
using LeaseStatus = schema::Message<rpc::LeaseInfo>;
using PoolStatus = schema::Message<rpc::PoolInfo>;
using PreviewStatus = schema::Message<rpc::Preview>;
using QuotaStatus = schema::Message<rpc::Quota>;
using ReservationStatus = schema::Message<rpc::Reservation>;
using RunsReply = schema::Message<rpc::Admin::RunsResults>;
using StatusReply = schema::Message<rpc::Admin::StatusResults>;
using WaitingStatus = schema::Message<rpc::WaitingGrant>;

using Figures = rpc::TierAttributes::Reader;
using Moves = capnp::List<rpc::Move>::Reader;

// Of a list of the schema: a message each.
template <typename Struct>
std::vector<schema::Message<Struct>> kept(typename capnp::List<Struct>::Reader list) {
  std::vector<schema::Message<Struct>> all;
  all.reserve(list.size());
  for (const auto one : list) all.emplace_back(one);
  return all;
}

inline std::string str(capnp::Text::Reader text) {
  return std::string(text.begin(), text.size());
}

inline std::vector<std::string> strings(capnp::List<capnp::Text>::Reader list) {
  std::vector<std::string> all;
  for (const auto text : list) all.push_back(str(text));
  return all;
}

}  // namespace terrace::cli
