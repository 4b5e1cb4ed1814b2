#include "aoizora/planner/replay.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "aoizora/errors.h"
#include "aoizora/planner/planner.h"

namespace aoizora::planner {
namespace {

/// A folder of this test's own, removed at the end.
struct Folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() /
                               ("aoizora-replay-test-" + std::to_string(reinterpret_cast<std::uintptr_t>(this)));
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
};

Job job(std::int64_t id, CompilerRung rung = CompilerRung::propagate) {
  Job result;
  result.id = id;
  result.rung = rung;
  result.layers = 3 + id;
  result.candidate.mesh = {{"data", 1}, {"context", 4}};
  return result;
}

Answer answer(const std::string& text) {
  Answer result;
  result.text = text;
  result.memory_report = "Total bytes: 12\n\nline two";
  result.seconds = 0.5;
  return result;
}

std::map<std::string, Answer> recorded(std::int64_t count) {
  std::map<std::string, Answer> result;
  for (std::int64_t id = 1; id <= count; ++id) result[replay_key(job(id))] = answer("text " + std::to_string(id));
  return result;
}

std::vector<std::int64_t> answered_ids(std::uint64_t seed) {
  const auto replay = make_replay(recorded(8), {}, seed);
  for (std::int64_t id = 1; id <= 8; ++id) replay->submit(job(id));
  std::vector<std::int64_t> ids;
  for (int i = 0; i < 8; ++i) {
    const Answer a = replay->next();
    BOOST_TEST(a.text == "text " + std::to_string(a.id));
    ids.push_back(a.id);
  }
  return ids;
}

BOOST_AUTO_TEST_CASE(Replay_EverySeedAnswersEveryJobOnceInAnOrderOfItsOwn) {
  const auto first = answered_ids(1);
  BOOST_TEST(first == answered_ids(1));
  BOOST_TEST(first != answered_ids(2));
  auto sorted = first;
  std::sort(sorted.begin(), sorted.end());
  BOOST_TEST(sorted == (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
}

BOOST_AUTO_TEST_CASE(Replay_AJobThatWasNotRecordedIsRefusedByName) {
  const auto replay = make_replay({}, {}, 0);
  replay->submit(job(7));
  const Answer a = replay->next();
  BOOST_TEST((a.outcome == Answer::Outcome::refused));
  BOOST_TEST(a.failure.find(replay_key(job(7))) != std::string::npos);
}

BOOST_AUTO_TEST_CASE(Replay_ACancelledJobIsNotAnswered) {
  const auto replay = make_replay(recorded(2), {}, 0);
  replay->submit(job(1));
  replay->submit(job(2));
  replay->cancel(1);
  BOOST_TEST(replay->next().id == 2);
  BOOST_CHECK_THROW(replay->next(), CompilerFailed);
}

BOOST_AUTO_TEST_CASE(Record_WhatIsWrittenReadsBackWhole) {
  const Folder folder;
  const auto replay = make_replay(recorded(3), {"jax=1"}, 5);
  const auto recorder = record(*replay, folder.path.string());
  BOOST_TEST(recorder->versions() == std::vector<std::string>{"jax=1"});
  for (std::int64_t id = 1; id <= 4; ++id) recorder->submit(job(id));
  for (int i = 0; i < 4; ++i) recorder->next();
  const auto back = read_recording(folder.path.string());
  BOOST_TEST_REQUIRE(back.size() == 4u);
  for (const auto& [key, a] : recorded(3)) {
    BOOST_TEST(back.at(key).text == a.text);
    BOOST_TEST(back.at(key).memory_report == a.memory_report);
    BOOST_TEST((back.at(key).outcome == Answer::Outcome::ok));
  }
  BOOST_TEST((back.at(replay_key(job(4))).outcome == Answer::Outcome::refused));
}

BOOST_AUTO_TEST_CASE(ReadRecording_DamagedFilesAreNamed) {
  const Folder folder;
  for (const std::string content : {"", "not json\n", "{}\n",
                                    R"({"key":"k","outcome":"ok","failure":"","seconds":0,"memory_report_bytes":99})"
                                    "\nshort",
                                    R"({"key":"k","outcome":"odd","failure":"","seconds":0,"memory_report_bytes":0})"
                                    "\n"}) {
    std::ofstream(folder.path / "a.txt", std::ios::binary) << content;
    BOOST_CHECK_THROW(read_recording(folder.path.string()), ParseError);
  }
  BOOST_CHECK_THROW(read_recording((folder.path / "absent").string()), InvalidRequest);
}

BOOST_AUTO_TEST_CASE(ReplayKey_DiffersInEverythingTheAnswerDependsOn) {
  std::vector<Job> jobs{job(1), job(2), job(1, CompilerRung::passes), job(1), job(1), job(1)};
  jobs[3].placement = placement::Placement{{0, 1, 2, 3}, ""};
  jobs[4].placement = placement::Placement{{0, 1, 3, 2}, ""};
  jobs[5].candidate.compiler_options["a"] = "b";
  std::set<std::string> keys;
  for (const Job& j : jobs) keys.insert(replay_key(j));
  BOOST_TEST(keys.size() == jobs.size());
}

BOOST_AUTO_TEST_CASE(Settings_ReadBackWhatIsWrittenAndRefuseTheRest) {
  Settings settings;
  settings.finalists = 5;
  settings.ulysses = false;
  BOOST_TEST(to_json(read_settings(to_json(settings))) == to_json(settings));
  BOOST_TEST(to_json(read_settings("{}")) == to_json(Settings{}));
  for (const char* bad :
       {R"({"finalist":1})", R"({"finalists":0})", R"({"finalists":"2"})", R"({"survivor_fraction":0})",
        R"({"survivor_fraction":1.5})", R"({"proxy_layers":2})", R"({"ulysses":1})"}) {
    BOOST_CHECK_THROW(read_settings(bad), InvalidRequest);
  }
  BOOST_CHECK_THROW(read_settings("{"), ParseError);
  BOOST_CHECK_THROW(read_settings("[]"), ParseError);
}

}  // namespace
}  // namespace aoizora::planner
