// SPDX-License-Identifier: Apache-2.0
// main() of every program of unit tests: doctest's, with cases that were skipped told from those that passed.
#define DOCTEST_CONFIG_IMPLEMENT
#include <algorithm>
#include <cstdio>

#include "tests/support/skip.h"

namespace terrace::test {
namespace {

unsigned cases_run = 0;

struct Counting final : doctest::IReporter {
  explicit Counting(const doctest::ContextOptions&) {}
  void test_run_end(const doctest::TestRunStats& stats) override {
    cases_run = stats.numTestCasesPassingFilters;
  }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
DOCTEST_REGISTER_LISTENER("counting", 1, Counting);

}  // namespace

}  // namespace terrace::test

int main(int argc, char** argv) {
  using namespace terrace::test;
  doctest::Context context(argc, argv);
  const int result = context.run();
  const auto& skipped = skipped_cases();
  for (const auto& [name, entry] : skipped) std::fputs(entry.lines.c_str(), stdout);
  const auto whole =
      std::count_if(skipped.begin(), skipped.end(), [](const auto& one) { return one.second.whole; });
  if (result != 0 || context.shouldExit()) return result;
  return whole > 0 && static_cast<unsigned>(whole) >= cases_run ? 77 : 0;
}
