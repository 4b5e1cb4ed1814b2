#include "aoizora/planner/replay.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "aoizora/errors.h"

namespace aoizora::planner {
namespace {

/// FNV-1a, 64 bits: names a recorded answer's file; the whole key is inside it.
std::uint64_t fingerprint(std::string_view text) {
  std::uint64_t hash = 14695981039346656037ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

/// A small generator (SplitMix64) for the order of answers; tests need the same order on every standard library.
std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

class Replay final : public Compiler {
 public:
  Replay(std::map<std::string, Answer> recorded, std::vector<std::string> versions, std::uint64_t seed)
      : recorded_(std::move(recorded)), versions_(std::move(versions)), state_(seed) {}

  void submit(const Job& job) override { waiting_.emplace_back(job.id, replay_key(job)); }

  Answer next() override {
    if (waiting_.empty()) throw CompilerFailed("the replay has no job left to answer: nothing was submitted");
    const auto at = static_cast<std::ptrdiff_t>(next_random(state_) % waiting_.size());
    const auto [id, key] = waiting_[static_cast<std::size_t>(at)];
    waiting_.erase(waiting_.begin() + at);
    const auto found = recorded_.find(key);
    Answer answer;
    if (found != recorded_.end()) {
      answer = found->second;
    } else {
      answer.outcome = Answer::Outcome::refused;
      answer.failure = "not in the recording: " + key;
    }
    answer.id = id;
    return answer;
  }

  void cancel(std::int64_t id) override {
    std::erase_if(waiting_, [id](const auto& job) { return job.first == id; });
  }

  std::vector<std::string> versions() const override { return versions_; }

 private:
  std::map<std::string, Answer> recorded_;
  std::vector<std::string> versions_;
  std::uint64_t state_;
  std::vector<std::pair<std::int64_t, std::string>> waiting_;
};

constexpr std::pair<Answer::Outcome, const char*> outcomes[] = {
    {Answer::Outcome::ok, "ok"},
    {Answer::Outcome::refused, "refused"},
    {Answer::Outcome::out_of_memory, "out_of_memory"},
    {Answer::Outcome::crashed, "crashed"},
    {Answer::Outcome::timed_out, "timed_out"},
};

/// One line of JSON, the memory report, the text.
void write_answer(const std::filesystem::path& folder, const std::string& key, const Answer& answer) {
  const boost::json::object header{{"key", key},
                                   {"outcome", name(answer.outcome)},
                                   {"failure", answer.failure},
                                   {"seconds", answer.seconds},
                                   {"memory_report_bytes", answer.memory_report.size()}};
  char file_name[32];
  std::snprintf(file_name, sizeof file_name, "%016llx.txt", static_cast<unsigned long long>(fingerprint(key)));
  std::ofstream file(folder / file_name, std::ios::binary);
  file << boost::json::serialize(header) << '\n' << answer.memory_report << answer.text;
  if (!file) throw CompilerFailed("cannot write the recording " + (folder / file_name).string());
}

class Recorder final : public Compiler {
 public:
  Recorder(Compiler& inner, std::filesystem::path folder) : inner_(inner), folder_(std::move(folder)) {
    std::error_code error;
    std::filesystem::create_directories(folder_, error);
    if (error)
      throw InvalidRequest("cannot make the folder " + folder_.string() + " for a recording: " + error.message());
  }
  void submit(const Job& job) override {
    keys_[job.id] = replay_key(job);
    inner_.submit(job);
  }
  Answer next() override {
    Answer answer = inner_.next();
    write_answer(folder_, keys_[answer.id], answer);
    return answer;
  }
  void cancel(std::int64_t id) override { inner_.cancel(id); }
  std::vector<std::string> versions() const override { return inner_.versions(); }

 private:
  Compiler& inner_;
  std::filesystem::path folder_;
  std::map<std::int64_t, std::string> keys_;
};

}  // namespace

std::string_view name(CompilerRung rung) {
  switch (rung) {
    case CompilerRung::propagate:
      return "propagate";
    case CompilerRung::passes:
      return "passes";
    case CompilerRung::code:
      return "code";
  }
  return "unknown";
}

std::string_view name(Answer::Outcome outcome) {
  for (const auto& [value, text] : outcomes) {
    if (value == outcome) return text;
  }
  return "unknown";
}

Answer::Outcome read_outcome(const std::string& text) {
  for (const auto& [value, known] : outcomes) {
    if (text == known) return value;
  }
  throw InvalidRequest("unknown outcome \"" + text +
                       "\" of a compile; known are ok, refused, out_of_memory, crashed, timed_out");
}

std::string to_json(const Job& job) {
  boost::json::object object{
      {"id", job.id},           {"candidate", boost::json::parse(candidates::to_json(job.candidate))},
      {"rung", name(job.rung)}, {"priority", job.priority},
      {"layers", job.layers},   {"own_process", job.own_process}};
  if (job.placement) {
    object["placement"] = boost::json::value_from(job.placement->devices);
  } else {
    object["placement"] = nullptr;
  }
  return boost::json::serialize(object);
}

std::string replay_key(const Job& job) {
  std::ostringstream key;
  key << name(job.rung) << " layers=" << job.layers << " placement=";
  if (job.placement) {
    for (const auto device : job.placement->devices) key << device << ',';
  } else {
    key << "row-major";
  }
  key << ' ' << candidates::to_json(job.candidate);
  return key.str();
}

std::unique_ptr<Compiler> make_replay(std::map<std::string, Answer> recorded, std::vector<std::string> versions,
                                      std::uint64_t seed) {
  return std::make_unique<Replay>(std::move(recorded), std::move(versions), seed);
}

std::map<std::string, Answer> read_recording(const std::string& folder) {
  std::map<std::string, Answer> recorded;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".txt") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    std::string first_line;
    std::getline(file, first_line);
    const std::string rest{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    Answer answer;
    std::string key;
    std::size_t report_bytes = 0;
    try {
      const auto header = boost::json::parse(first_line).as_object();
      key = boost::json::value_to<std::string>(header.at("key"));
      answer.outcome = read_outcome(boost::json::value_to<std::string>(header.at("outcome")));
      answer.failure = boost::json::value_to<std::string>(header.at("failure"));
      answer.seconds = header.at("seconds").to_number<double>();
      report_bytes = header.at("memory_report_bytes").to_number<std::size_t>();
    } catch (const std::exception& problem) {
      throw ParseError(entry.path().string() + " is not a recorded answer: " + problem.what(), 1, 1);
    }
    if (report_bytes > rest.size()) throw ParseError(entry.path().string() + " ends inside its memory report", 2, 1);
    answer.memory_report = rest.substr(0, report_bytes);
    answer.text = rest.substr(report_bytes);
    recorded.emplace(std::move(key), std::move(answer));
  }
  if (error) throw InvalidRequest("cannot read the recording folder " + folder + ": " + error.message());
  return recorded;
}

std::unique_ptr<Compiler> record(Compiler& compiler, const std::string& folder) {
  return std::make_unique<Recorder>(compiler, folder);
}

}  // namespace aoizora::planner
