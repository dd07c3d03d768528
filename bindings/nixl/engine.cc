// SPDX-License-Identifier: Apache-2.0
#include "bindings/nixl/engine.h"

#include <utility>

namespace terrace::nixl {
namespace {

constexpr uint64_t line_bytes = 64;

std::string key_of(const nixlBlobDesc& object) {
  return object.metaInfo.empty() ? std::to_string(object.devId) : object.metaInfo;
}

}  // namespace

Engine::Engine(const nixlBackendInitParams* parameters) : nixlBackendEngine(parameters) {
  const Status opened = open(*parameters->customParams);
  if (opened.ok()) return;
  initErr = true;
  complain(opened.error().to_string());
}

Status Engine::open(const Parameters& parameters) {
  if (const std::string wrong = read_settings(parameters, settings_); !wrong.empty())
    return Error{ErrorCode::invalid_argument, 0, "nixl", wrong};
  TERRACE_RETURN_IF_ERROR(leases_.open(settings_, localAgent));
  if (!settings_.space.empty()) TERRACE_RETURN_IF_ERROR(objects_.open(settings_, leases_));
  TERRACE_RETURN_IF_ERROR(inbox_.open(settings_.listen));
  workers_ = std::make_unique<Workers>(settings_.threads);
  return {};
}

nixl_mem_list_t Engine::getSupportedMems() const {
  return objects_.is_open() ? nixl_mem_list_t{DRAM_SEG, OBJ_SEG} : nixl_mem_list_t{DRAM_SEG};
}

// --- what is registered

nixl_status_t Engine::registerMem(const nixlBlobDesc& memory, const nixl_mem_t& type, nixlBackendMD*& out) {
  if (type != DRAM_SEG && type != OBJ_SEG)
    return fail(NIXL_ERR_NOT_SUPPORTED, "memory of type DRAM and OBJ can be registered");
  const auto kind = type == OBJ_SEG ? Registration::Kind::object : Registration::Kind::memory;
  auto made = std::make_unique<Registration>(kind, memory.addr, memory.len);
  const nixl_status_t done = type == OBJ_SEG ? register_object(memory, *made) : register_memory(memory, *made);
  if (done == NIXL_SUCCESS) out = made.release();
  return done;
}

nixl_status_t Engine::register_object(const nixlBlobDesc& object, Registration& made) {
  if (!objects_.is_open())
    return fail(NIXL_ERR_NOT_SUPPORTED,
                "objects need a KV space: give the backend space=LEASE (docs/operations/nixl.md)");
  made.key = key_of(object);
  if (made.key.size() > kv_key_bytes_max)
    return fail(NIXL_ERR_INVALID_PARAM, "the key of an object has at most 512 bytes: " + shown(made.key));
  return NIXL_SUCCESS;
}

nixl_status_t Engine::register_memory(const nixlBlobDesc& memory, Registration& made) {
  auto found = leases_.find({reinterpret_cast<const std::byte*>(memory.addr), memory.len});
  if (!found.ok()) return fail(found.error());
  made.leased = std::move(found).value();
  if (made.leased && !made.leased->coherent && (memory.addr % line_bytes != 0 || memory.len % line_bytes != 0))
    return fail(NIXL_ERR_INVALID_PARAM, "memory of lease " + std::to_string(made.leased->lease->id().value) +
                                            ", whose pool is not said to be coherent, "
                                            "is registered by whole lines of 64 bytes; where one machine or "
                                            "coherent hardware has it: terrace pool set "
                                            "POOL --coherence coherent");
  noncoherent_.add(made);
  return NIXL_SUCCESS;
}

nixl_status_t Engine::deregisterMem(nixlBackendMD* registration) {
  const std::unique_ptr<Registration> ended(static_cast<Registration*>(registration));
  if (ended != nullptr) noncoherent_.remove(*ended);
  return NIXL_SUCCESS;
}

nixl_status_t Engine::loadLocalMD(nixlBackendMD* input, nixlBackendMD*& output) {
  output = input;
  return NIXL_SUCCESS;
}

nixl_status_t Engine::getPublicData(const nixlBackendMD* registration, std::string& words) const {
  const auto& one = *static_cast<const Registration*>(registration);
  if (one.kind == Registration::Kind::memory && !one.leased) {
    words = "private";
    return NIXL_SUCCESS;
  }
  const LeasedRange whole{objects_.lease(), 0, true};
  auto described = one.kind == Registration::Kind::memory ? leases_.describe(*one.leased, one.bytes)
                                                          : leases_.describe(whole, 1);
  if (!described.ok()) return fail(described.error());
  words = std::move(described).value();
  if (one.kind == Registration::Kind::object)
    words += " namespace=" + to_hex(objects_.name_space()) + " key=" + to_hex(one.key);
  return NIXL_SUCCESS;
}

nixl_status_t Engine::loadRemoteMD(const nixlBlobDesc& input, const nixl_mem_t& type, const std::string& agent,
                                   nixlBackendMD*& output) {
  const auto kind = type == OBJ_SEG ? Registration::Kind::remote_object : Registration::Kind::remote_memory;
  auto loaded = std::make_unique<Registration>(kind, input.addr, input.len);
  if (input.metaInfo == "private") {
    loaded->refusal = "memory of agent " + agent +
                      " lies in no lease: only that of leases can be reached from other processes";
  } else if (type == OBJ_SEG) {
    loaded->refusal = load_object(*loaded, input.metaInfo);
  } else if (auto range = leases_.resolve(input.metaInfo); range.ok()) {
    loaded->remote = std::move(range).value();
    if (loaded->remote.bytes < loaded->bytes)
      loaded->refusal = "agent " + agent + " says two lengths of one memory";
  } else {
    loaded->refusal = "memory of agent " + agent + " cannot be reached: " + range.error().to_string();
  }
  output = loaded.release();
  return NIXL_SUCCESS;
}

std::string Engine::load_object(Registration& loaded, const std::string& words) {
  const size_t names = words.find(" namespace="), key = words.find(" key=");
  if (names == std::string::npos || key == std::string::npos || key < names)
    return "these are no words about an object";
  const std::string ours = " namespace=" + to_hex(objects_.name_space());
  const auto described = objects_.is_open() ? leases_.describe({objects_.lease(), 0, true}, 1)
                                            : Result<std::string>(std::string());
  if (!described.ok()) return described.error().to_string();
  if (words.substr(0, key) != *described + ours)
    return "the agent's objects are in another KV space or namespace than this one's; register the key here";
  loaded.key = from_hex(words.substr(key + 5)).value_or("");
  return loaded.key.empty() ? "these are no words about an object" : "";
}

nixl_status_t Engine::unloadMD(nixlBackendMD* registration) {
  const auto* one = static_cast<Registration*>(registration);
  const bool remote = one != nullptr && (one->kind == Registration::Kind::remote_memory ||
                                         one->kind == Registration::Kind::remote_object);
  if (remote) delete one;  // that of this agent's own is the registration itself
  return NIXL_SUCCESS;
}

// --- other agents

nixl_status_t Engine::getConnInfo(std::string& words) const {
  words = inbox_.connection_info();
  return NIXL_SUCCESS;
}

nixl_status_t Engine::loadRemoteConnInfo(const std::string& agent, const std::string& words) {
  auto made = Channel::make(localAgent, words);
  if (!made.ok()) return fail(made.error());
  const MutexLock lock(mutex_);
  std::string& known = connection_infos_[agent];
  if (known != words || channels_[agent] == nullptr) channels_[agent] = std::move(made).value();
  known = words;
  return NIXL_SUCCESS;
}

nixl_status_t Engine::connect(const std::string& agent) {
  return agent == localAgent ? NIXL_SUCCESS : peer_lives(agent);
}

nixl_status_t Engine::disconnect(const std::string& agent) {
  const MutexLock lock(mutex_);
  channels_.erase(agent);
  connection_infos_.erase(agent);
  return NIXL_SUCCESS;
}

std::shared_ptr<Channel> Engine::channel(const std::string& agent) const {
  const MutexLock lock(mutex_);
  const auto found = channels_.find(agent);
  return found == channels_.end() ? nullptr : found->second;
}

nixl_status_t Engine::peer_lives(const std::string& agent) const {
  if (agent == localAgent) return NIXL_SUCCESS;
  const auto to = channel(agent);
  if (to == nullptr) return fail(NIXL_ERR_NOT_FOUND, "the metadata of agent " + agent + " was not loaded");
  const Status lives = to->check();
  return lives.ok() ? NIXL_SUCCESS
                    : fail(NIXL_ERR_REMOTE_DISCONNECT, "agent " + agent + ": " + lives.error().to_string());
}

nixl_status_t Engine::notify(const std::string& agent, const std::string& message) const {
  if (agent == localAgent) {
    inbox_.add({agent, message, {}});
    return NIXL_SUCCESS;
  }
  const auto to = channel(agent);
  if (to == nullptr) return fail(NIXL_ERR_NOT_FOUND, "the metadata of agent " + agent + " was not loaded");
  if (settings_.publishes) noncoherent_.publish_all();
  const Status sent = to->send(message);
  if (sent.ok()) return NIXL_SUCCESS;
  const bool gone = sent.error().code == ErrorCode::unavailable;
  return fail(gone ? NIXL_ERR_REMOTE_DISCONNECT : status_of(sent.error()),
              "agent " + agent + ": " + sent.error().to_string());
}

void Engine::tell_written(const std::string& agent, const std::vector<WrittenRange>& ranges) const {
  const auto to = ranges.empty() ? nullptr : channel(agent);
  if (to != nullptr) to->enclose(to_enclosure(ranges), to_enclosure({WrittenRange{}}));
}

nixl_status_t Engine::genNotif(const std::string& agent, const std::string& message) const {
  return notify(agent, message);
}

nixl_status_t Engine::getNotifs(notif_list_t& all) {
  for (Notification& one : inbox_.take()) {
    noncoherent_.acquire(one.enclosure);
    all.emplace_back(std::move(one.agent), std::move(one.message));
  }
  return NIXL_SUCCESS;
}

nixl_status_t Engine::queryMem(const nixl_reg_dlist_t& descriptors,
                               std::vector<nixl_query_resp_t>& found) const {
  if (descriptors.getType() != OBJ_SEG || !objects_.is_open())
    return fail(NIXL_ERR_NOT_SUPPORTED,
                "objects can be asked for, where the backend has a KV space (space=LEASE)");
  std::vector<std::string> keys;
  for (const nixlBlobDesc& object : descriptors) keys.push_back(key_of(object));
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  const auto lengths = objects_.lengths(views);
  if (!lengths.ok()) return fail(lengths.error());
  found.clear();
  for (const auto& length : *lengths)
    found.push_back(length ? nixl_query_resp_t(nixl_b_params_t{{"size", std::to_string(*length)}})
                           : std::nullopt);
  return NIXL_SUCCESS;
}

}  // namespace terrace::nixl
