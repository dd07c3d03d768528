// SPDX-License-Identifier: Apache-2.0
// `terrace events`: what happened in the manager, as a list or as it happens.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/client/admin_client.h"
#include "cli/show/list.h"
#include "cli/terminal/local_time.h"
#include "cli/terminal/verb.h"
#include "core/base/clock.h"
#include "core/schema/words.h"

namespace terrace::cli {
namespace {

using Events = std::vector<EventRecord>;

constexpr uint64_t page_events_max = 500;

struct EventArguments {
  EventQuery query;
  std::string since, severity;
  bool follow = false;
};

// "lease 7, tenant a, pool p"
std::string event_subject(const rpc::Event::Reader& event) {
  std::vector<std::string> parts;
  const auto named = [&parts](const char* what, const std::string& value) {
    if (!value.empty()) parts.push_back(std::string(what) + " " + printable(value));
  };
  if (event.getLease() != 0) parts.push_back("lease " + std::to_string(event.getLease()));
  named("tenant", str(event.getTenant()));
  named("pool", str(event.getPool()));
  named("device", str(event.getDevice()));
  named("host", str(event.getHost()));
  return join(parts, ", ");
}

std::string event_message(const rpc::Event::Reader& event) {
  std::string text = printable(str(event.getMessage()));
  if (event.getTookNs() != 0) text += " (" + format_duration(event.getTookNs() / ns_per_us * ns_per_us) + ")";
  if (event.getCount() > 1) text += " (" + std::to_string(event.getCount()) + " times)";
  return text;
}

std::vector<std::string> event_row(const EventRecord& event) {
  return {std::to_string(event->getId()),
          format_moment(event->getTimeWallNs()),
          std::string(schema::enum_word(event->getSeverity())),
          std::string(schema::enum_word(event->getKind())),
          or_dash(event_subject(*event)),
          event_message(*event)};
}

std::string event_table(const Events& events) {
  std::vector<std::vector<std::string>> rows;
  for (const EventRecord& event : events) rows.push_back(event_row(event));
  return format_table({"ID", "TIME", "SEVERITY", "KIND", "OF", "MESSAGE"}, rows);
}

Status read_arguments(EventArguments& arguments) {
  if (!arguments.severity.empty()) {
    const auto severity = schema::enum_of_word<rpc::EventSeverity>(arguments.severity);
    if (!severity.has_value())
      return Error{.code = ErrorCode::invalid_argument,
                   .where = "events",
                   .detail = "--severity '" + arguments.severity + "' is none of " +
                             join(schema::enum_words<rpc::EventSeverity>(), ", ")};
    arguments.query.severity = *severity;
  }
  if (arguments.since.empty()) return {};
  if (only_digits(arguments.since)) {
    const std::string& text = arguments.since;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), arguments.query.since);
    if (parsed.ec == std::errc()) return {};
  }
  TERRACE_ASSIGN_OR_RETURN(arguments.query.since_wall_ns, parse_moment(arguments.since, wall_clock_ns()));
  return {};
}

Events events_of(const EventsReply& reply) {
  return kept<rpc::Event>(reply->getEvents());
}

// All that are kept; or, where nothing but their number matters, the newest.
Result<Events> read_events(AdminClient& client, EventQuery query, const Listing& listing) {
  const bool newest = listing.where.empty() && listing.limit != 0 && listing.limit <= page_events_max;
  if (newest) {
    query.newest = true;
    query.limit = static_cast<uint32_t>(listing.limit);
  }
  Events all;
  for (;;) {
    TERRACE_ASSIGN_OR_RETURN(const EventsReply reply, client.events(query));
    for (EventRecord& event : events_of(reply)) all.push_back(std::move(event));
    if (newest || !reply->getMore()) return all;
    query.since = reply->getNext();
    query.run = str(reply->getRun());
  }
}

// A list has the oldest first, and its end is what counts: --limit keeps the newest.
Status list_events(const Context& context, const EventArguments& arguments, const Listing& listing) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(Events all, read_events(*client, arguments.query, listing));
  Listing chosen = listing;
  if (listing.sort.empty() && listing.limit != 0) {
    nlohmann::json documents;
    const Listing wanted{.where = listing.where, .sort = {}, .columns = {}, .watch = {}};
    TERRACE_ASSIGN_OR_RETURN(all, chosen_rows(std::move(all), wanted, documents));
    if (all.size() > listing.limit)
      all.erase(all.begin(), all.end() - static_cast<std::ptrdiff_t>(listing.limit));
    chosen.limit = 0;
  }
  return show_list(context, chosen, std::move(all),
                   ListView<EventRecord>{"events", "id", event_table, "nothing happened that is kept\n"});
}

// --- as they happen

bool reader_has_gone() {
  pollfd out{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  return ::poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

void say(const std::string& text) {
  std::fprintf(stderr, "terrace: %s\n", text.c_str());
}

class EventFollower {
 public:
  EventFollower(const Context& context, const EventArguments& arguments, const Listing& listing)
      : context_(context), listing_(listing), query_(arguments.query) {
    query_.wait_ms = static_cast<uint32_t>(std::min<uint64_t>(1000, context.call_timeout_ns / ns_per_ms / 2));
  }

  // Until the reader goes away. A manager that was there comes again: it is waited for.
  Status run() {
    TERRACE_ASSIGN_OR_RETURN(client_, AdminClient::connect(context_));
    TERRACE_RETURN_IF_ERROR(begin());
    while (!reader_has_gone()) {
      if (Status asked = ask(); !asked.ok()) {
        if (asked.error().code != ErrorCode::unavailable) return asked;
        TERRACE_RETURN_IF_ERROR(wait_for_manager());
      }
    }
    return {};
  }

 private:
  // What was before, as `tail -f` has it, unless --since says from where on.
  Status begin() {
    if (query_.since != 0 || query_.since_wall_ns != 0) return {};
    constexpr uint32_t before = 10;
    EventQuery query = query_;
    query.newest = true;
    query.limit = before;
    query.wait_ms = 0;
    TERRACE_ASSIGN_OR_RETURN(const EventsReply reply, client_->events(query));
    return take(reply, false);
  }

  Status ask() {
    TERRACE_ASSIGN_OR_RETURN(const EventsReply reply, client_->events(query_));
    return take(reply, true);
  }

  Status take(const EventsReply& reply, bool tell_lost) {
    const std::string run = str(reply->getRun());
    if (!query_.run.empty() && query_.run != run)
      say("the manager was started again: the ids of events begin anew");
    if (tell_lost && !query_.run.empty() && reply->getLost() != 0)
      say(std::to_string(reply->getLost()) + " events are lost: they came faster than they were read");
    TERRACE_RETURN_IF_ERROR(print(events_of(reply)));
    query_.run = run;
    query_.since = reply->getNext();
    return {};
  }

  Status print(Events events) const {
    nlohmann::json documents;
    const Listing wanted{.where = listing_.where, .sort = {}, .columns = {}, .watch = {}};
    TERRACE_ASSIGN_OR_RETURN(const Events chosen, chosen_rows(std::move(events), wanted, documents));
    std::string lines;
    if (context_.json) {
      for (const nlohmann::json& one : documents)
        lines += one.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    } else if (!listing_.columns.empty() && !chosen.empty()) {
      TERRACE_ASSIGN_OR_RETURN(lines, name_lines(documents, listing_.columns));
    } else {
      for (const EventRecord& event : chosen) {
        std::vector<std::string> row = event_row(event);
        lines += join({row[1], row[2], row[3], row[5]}, "  ");
        if (const std::string subject = event_subject(*event); !subject.empty()) lines += "  (" + subject + ")";
        lines += "\n";
      }
    }
    if (!lines.empty()) print_text(lines);
    return {};
  }

  Status wait_for_manager() {
    say("the manager does not answer; waiting for it");
    client_.reset();
    while (!reader_has_gone()) {
      auto connected = AdminClient::connect(context_);
      if (connected.ok()) {
        client_ = std::move(connected).value();
        say("the manager answers again");
        return {};
      }
      if (connected.error().code != ErrorCode::unavailable) return std::move(connected).error();
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    return {};
  }

  const Context& context_;
  const Listing& listing_;
  EventQuery query_;
  std::unique_ptr<AdminClient> client_;
};

Status show_events(const Context& context, EventArguments& arguments, const Listing& listing) {
  TERRACE_RETURN_IF_ERROR(read_arguments(arguments));
  if (!arguments.follow) return list_events(context, arguments, listing);
  if (!listing.sort.empty() || !listing.watch.empty())
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "events",
                 .detail = "--follow shows events as they come: it goes with neither --sort nor --watch"};
  return EventFollower(context, arguments, listing).run();
}

}  // namespace

void add_events_verb(Command app, Context& context) {
  const auto arguments = std::make_shared<EventArguments>();
  const auto listing = std::make_shared<Listing>();
  listing->limit = 100;  // the newest
  Command events = app.add_subcommand("events", "What happened in the manager since its start, newest last");
  events.add_flag("--follow", arguments->follow,
                  "Go on with what happens, until ended; with --json one object a line");
  events.add_option("--since", arguments->since, "From then on: an ID, 10m (ago), 11:30, '2026-11-21 11:30'")
      .type_name("DURATION|TIME|ID");
  EventQuery& query = arguments->query;
  events.add_option("--kind", query.kind, "Only kinds that begin so, as 'lease_' or 'device_lost'")
      .type_name("KIND");
  events.add_option("--severity", arguments->severity, "Only of this severity or worse: warning, critical")
      .type_name("SEVERITY");
  events.add_option("--lease", query.lease, "Only of this lease").type_name("ID");
  events.add_option("--tenant", query.tenant, "Only of this tenant").type_name("TENANT");
  events.add_option("--pool", query.pool, "Only of this pool").type_name("POOL");
  events.add_option("--device", query.device, "Only of this device").type_name("SERIAL");
  events.add_option("--host", query.host, "Only of this host").type_name("HOST");
  on_list(events, context, listing,
          [&context, arguments, listing] { return show_events(context, *arguments, *listing); });
}

}  // namespace terrace::cli
