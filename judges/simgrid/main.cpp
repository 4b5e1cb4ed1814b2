// Times collectives and schedules with SimGrid. Standard input: {"model": "CM02", "cases": [case, ...]}, a case is
//   {"slice": the `slice` of a schedule, "collectives": [{"kind", "bytes", "groups", "pairs", "start_seconds"}, ...]}
//   or
//   {"schedule": a schedule, "layers": trips of the block, optional}.
// Standard output: {"results": [{"end_seconds": [...]} or {"step_seconds", "block_seconds", ...}, ...]}; a case that
// fails gives {"error": text}. docs/simulation.md has the schedule format and the rules.
#include <sys/wait.h>
#include <unistd.h>

#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <simgrid/s4u.hpp>
#include <stdexcept>
#include <string>

#include "expansion/read.h"
#include "simgrid/run.h"

namespace {

using nlohmann::json;

judge::Step read_step(const json& from) {
  using Kind = judge::Step::Kind;
  const std::string word = from.at(0).get<std::string>();
  if (word == "compute") return {Kind::compute, -1, from.at(1).get<double>(), 1};
  const int index = from.at(1).get<int>();
  if (word == "start") return {Kind::start, index, 0, 1};
  if (word == "done") return {Kind::done, index, 0, 1};
  if (word == "sync") return {Kind::sync, index, 0, 1};
  if (word == "copy_start") return {Kind::copy_start, index, from.at(2).get<double>(), 1};
  if (word == "copy_done") return {Kind::copy_done, index, 0, 1};
  if (word == "loop") return {Kind::loop, index, 0, from.at(2).get<std::int64_t>()};
  throw std::runtime_error("unknown step: " + word);
}

judge::Program read_program(const json& schedule, std::int64_t layers) {
  judge::Program program;
  schedule.at("entry").get_to(program.entry);
  schedule.at("block").get_to(program.block);
  for (const json& collective : schedule.at("collectives"))
    program.collectives.push_back(judge::read_collective(collective));
  for (const json& sequence : schedule.at("sequences")) {
    std::vector<judge::Step>& steps = program.sequences.emplace_back();
    for (const json& step : sequence.at("steps")) {
      steps.push_back(read_step(step));
      judge::Step& last = steps.back();
      if (last.kind == judge::Step::Kind::loop && last.index == program.block && layers > 0) last.trips = layers;
    }
  }
  return program;
}

json time_case(const json& wanted, const std::string& model) {
  int count = 1;
  std::string name = "simgrid_judge";
  char* arguments[] = {name.data(), nullptr};
  const simgrid::s4u::Engine engine(&count, arguments);
  judge::configure(model);
  if (wanted.contains("schedule")) {
    const json& schedule = wanted["schedule"];
    const judge::ProgramTimes times =
        judge::time_program(judge::read_mesh(schedule.at("slice")), read_program(schedule, wanted.value("layers", 0)));
    return {{"step_seconds", times.step_seconds},
            {"block_seconds", times.block_seconds},
            {"exposed_seconds", times.exposed_seconds},
            {"messages", times.messages}};
  }
  std::vector<judge::Collective> collectives;
  std::vector<double> starts;
  for (const json& collective : wanted.at("collectives")) {
    collectives.push_back(judge::read_collective(collective));
    starts.push_back(collective.value("start_seconds", 0.0));
  }
  return {{"end_seconds", judge::time_collectives(judge::read_mesh(wanted.at("slice")), collectives, starts)}};
}

/// SimGrid has one engine in a process and forgets nothing: each case has a process of its own.
json time_apart(const json& wanted, const std::string& model) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("no process");
  if (child == 0) {
    close(ends[0]);
    std::string text;
    try {
      text = time_case(wanted, model).dump();
    } catch (const std::exception& error) {
      text = json{{"error", error.what()}}.dump(-1, ' ', false, json::error_handler_t::replace);
    }
    for (std::size_t sent = 0; sent < text.size();) {
      const ssize_t count = write(ends[1], text.data() + sent, text.size() - sent);
      if (count <= 0) break;
      sent += static_cast<std::size_t>(count);
    }
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[65536];
  for (ssize_t count; (count = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(count));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return json::accept(text) ? json::parse(text) : json{{"error", "SimGrid ended without a result"}};
}

}  // namespace

int main() {
  try {
    const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
    const json wanted = json::parse(text);
    const std::string model = wanted.value("model", "CM02");
    if (model != "CM02" && model != "L07") throw std::runtime_error("model is \"" + model + "\"; allowed: CM02, L07");
    json results = json::array();
    for (const json& one : wanted.at("cases")) results.push_back(time_apart(one, model));
    std::cout << json{{"results", results}}.dump() << "\n";
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "simgrid_judge: " << error.what() << "\n";
    return 2;
  }
}
