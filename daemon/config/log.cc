// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/log.h"

#include <fcntl.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "core/base/unique_fd.h"
#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

void append(spdlog::memory_buf_t& out, std::string_view text) {
  out.append(text.data(), text.data() + text.size());
}

// `"message":"...","event":"...","lease":7`
class JsonMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    append(out, "\"message\":\"" + json_escape({message.payload.data(), message.payload.size()}) + '"');
    const std::vector<log::Field>* fields = log::fields_of_line();
    if (fields == nullptr) return;
    for (const log::Field& field : *fields)
      append(out, ",\"" + std::string(field.key) +
                      "\":" + (field.number ? field.value : '"' + json_escape(field.value) + '"'));
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<JsonMessage>(); }
};

// `... event=device_lost device=emu:a cause="uid 0 (terrace[12])"`
class TextMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    append(out, {message.payload.data(), message.payload.size()});
    const std::vector<log::Field>* fields = log::fields_of_line();
    if (fields == nullptr) return;
    for (const log::Field& field : *fields) {
      const bool plain = field.value.find_first_of(" =\"\\") == std::string::npos;
      append(out,
             ' ' + std::string(field.key) + '=' + (plain ? field.value : '"' + json_escape(field.value) + '"'));
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<TextMessage>(); }
};

// As sd-daemon(3) has them: the journal takes them off a line, and keeps them as its priority.
std::string_view priority_prefix(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::critical: return "<2>";
    case spdlog::level::err: return "<3>";
    case spdlog::level::warn: return "<4>";
    case spdlog::level::info: return "<6>";
    default: return "<7>";
  }
}

// Standard error, or a file that can be another one from some line on. Unbuffered: a line is in the kernel's hands
// before whatever follows it.
class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // Not valid: standard error.
  void write_to(UniqueFd file) {
    const std::lock_guard lock(mutex_);
    file_ = std::move(file);
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    if (!file_.valid() && to_journal_) append(line, priority_prefix(message.level));
    formatter_->format(message, line);
    const int to = file_.valid() ? file_.get() : STDERR_FILENO;
    for (size_t done = 0; done < line.size();) {
      const ssize_t bytes = ::write(to, line.data() + done, line.size() - done);
      if (bytes < 0 && errno == EINTR) continue;
      if (bytes < 0) spdlog::throw_spdlog_ex("a line of the log cannot be written", errno);
      done += static_cast<size_t>(bytes);
    }
  }
  void flush_() override {}

  const bool to_journal_ = stderr_is_journal();
  UniqueFd file_;
};

std::unique_ptr<spdlog::formatter> formatter_of(const DaemonConfig& config) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  if (config.log_format == LogFormat::json) {
    formatter->add_flag<JsonMessage>('*').set_pattern(
        R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","pid":%P,%*})");
  } else {
    formatter->add_flag<TextMessage>('*').set_pattern("%Y-%m-%d %H:%M:%S.%e %l %*");
  }
  return formatter;
}

}  // namespace

bool stderr_is_journal() {
  const char* named = std::getenv("JOURNAL_STREAM");
  struct stat ours {};
  if (named == nullptr || ::fstat(STDERR_FILENO, &ours) != 0) return false;
  return named == std::to_string(ours.st_dev) + ":" + std::to_string(ours.st_ino);
}

std::string json_escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out;
}

Status reopen_log(const DaemonConfig& config) {
  UniqueFd file;
  if (!config.log_file.empty()) {
    file.reset(::open(config.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!file.valid())
      return os_error(errno, "reopen_log", "the log file " + config.log_file + " cannot be opened");
  }
  spdlog::logger& logger = *spdlog::default_logger_raw();
  for (const spdlog::sink_ptr& sink : logger.sinks())
    if (auto* ours = dynamic_cast<LogSink*>(sink.get()); ours != nullptr) ours->write_to(std::move(file));
  logger.set_formatter(formatter_of(config));
  logger.set_level(spdlog::level::from_str(config.log_level));
  return {};
}

void set_up_log(const DaemonConfig& config) {
  auto logger = std::make_shared<spdlog::logger>("terraced", std::make_shared<LogSink>());
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  if (Status status = reopen_log(config); !status.ok()) throw spdlog::spdlog_ex(status.error().to_string());
}

}  // namespace terrace::daemon
