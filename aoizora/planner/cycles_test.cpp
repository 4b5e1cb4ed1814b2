#include "aoizora/planner/cycles.h"

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "aoizora/errors.h"
#include "aoizora/ir/readers.h"
#include "aoizora/planner/replay.h"

namespace aoizora::planner {
namespace {

/// Programs that code generation or the HLO passes printed: the recorded plan's and the others of the test data.
std::vector<std::string> programs() {
  std::vector<std::string> texts;
  for (const auto& [key, answer] : read_recording(AOIZORA_TEST_DATA "/recording_wan13b_v5e_2x2")) {
    if (answer.outcome == Answer::Outcome::ok && !key.starts_with("propagate")) texts.push_back(answer.text);
  }
  for (const auto& entry : std::filesystem::directory_iterator(AOIZORA_TEST_DATA "/hlo")) {
    std::ifstream file(entry.path(), std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (text.str().starts_with("HloModule")) texts.push_back(text.str());
  }
  return texts;
}

std::string program_with(const std::string& fused, const std::string& call) {
  return "HloModule m, is_scheduled=true\n\n%f (p: f32[8,128]) -> f32[8,128] {\n  %p = f32[8,128]{1,0:T(8,128)} "
         "parameter(0)\n  ROOT %r = " +
         fused + "\n}\n\nENTRY %main (a: f32[8,128]) -> f32[8,128] {\n  %a = f32[8,128]{1,0:T(8,128)} parameter(0)\n" +
         "  ROOT %c = " + call + "\n}\n";
}

const std::string adds = "f32[8,128]{1,0:T(8,128)} add(%p, %p), metadata={op_name=\"x\"}";
const std::string calls = "f32[8,128]{1,0:T(8,128)} fusion(%a), kind=kLoop, calls=%f";

/// The fingerprint of the entry's root.
Fingerprint root_print(const std::string& text) {
  const ir::Program program = ir::read_hlo(text);
  const auto root = program.computations[static_cast<std::size_t>(program.entry)].root;
  return fingerprints(program)[static_cast<std::size_t>(root)];
}

BOOST_AUTO_TEST_CASE(Cycles_EqualFingerprintsHaveEqualCyclesInEveryRecordedProgram) {
  Cycles all;
  std::size_t met_again = 0, with_cycles = 0;
  for (const std::string& text : programs()) {
    const Cycles one = cycles_of(ir::read_hlo(text));
    with_cycles += one.empty() ? 0 : 1;
    for (const auto& [print, cycles] : one) {
      const auto [known, fresh] = all.emplace(print, cycles);
      met_again += fresh ? 0 : 1;
      BOOST_TEST(known->second == cycles, print);
    }
  }
  BOOST_TEST(with_cycles >= 2u);
  BOOST_TEST(all.size() > 30u);
  BOOST_TEST(met_again > 10u);
}

// Inside one program too: an instruction printed twice is one entry, so compare every print with every cycles.
BOOST_AUTO_TEST_CASE(Cycles_LentToTheirOwnProgramTheyAreReadBack) {
  for (const std::string& text : programs()) {
    const ir::Program program = ir::read_hlo(text);
    Cycles some;
    for (const Fingerprint& print : fingerprints(program)) {
      if (!print.empty() && print.back() < '8') some.emplace(print, 1000 + static_cast<std::int64_t>(some.size()));
    }
    const Cycles own = cycles_of(program);
    const ir::Program lent = ir::read_hlo(lend(program, some).text);
    BOOST_TEST(lent.instructions.size() == program.instructions.size());
    std::size_t found = 0;
    for (const auto& [print, cycles] : cycles_of(lent)) {
      const auto known = own.find(print);
      const auto given = some.find(print);
      if (known == own.end()) BOOST_TEST_REQUIRE((given != some.end()));
      if (given == some.end() || known != own.end()) continue;
      BOOST_TEST(cycles == given->second);
      ++found;
    }
    BOOST_TEST(found * 2 >= some.size());  // an instruction without any attribute takes none
    BOOST_TEST(lend(program, {}).text == text);
  }
}

BOOST_AUTO_TEST_CASE(Fingerprint_LooksAtTheWorkAndNotAtNames) {
  const std::string text = program_with(adds, calls);
  const Fingerprint print = root_print(text);
  BOOST_TEST(print.size() == 32u);
  const auto replaced = [](std::string from, const std::string& what, const std::string& with) {
    for (std::size_t at = from.find(what); at != std::string::npos; at = from.find(what, at + with.size()))
      from.replace(at, what.size(), with);
    return from;
  };
  for (const auto& [what, with] :
       std::vector<std::pair<std::string, std::string>>{{"%r", "%renamed"},
                                                        {"%f", "%other"},
                                                        {"op_name=\"x\"", "op_name=\"y\""},
                                                        {"kind=kLoop", "kind=kOutput"},
                                                        {"calls=%f", "calls=%f, backend_config={\"a\":\"1\"}"}}) {
    BOOST_TEST(root_print(replaced(text, what, with)) == print, what);
  }
  for (const auto& [what, with] : std::vector<std::pair<std::string, std::string>>{
           {"add(", "multiply("}, {"f32", "bf16"}, {"8,128]", "16,128]"}, {"T(8,128)", "T(8,128)S(1)"}}) {
    BOOST_TEST(root_print(replaced(text, what, with)) != print, what);
  }
}

BOOST_AUTO_TEST_CASE(Cycles_WhatCodeGenerationGivesNoneStaysWithout) {
  const ir::Program program = ir::read_hlo(program_with(adds, calls));
  Cycles known;
  for (const Fingerprint& print : fingerprints(program)) known.emplace(print, no_cycles);
  BOOST_TEST(lend(program, known).text == program.text());
}

BOOST_AUTO_TEST_CASE(Cycles_ADamagedTextIsAnErrorOrNothing) {
  const std::string text = program_with(adds, calls);
  for (std::size_t cut = 0; cut < text.size(); ++cut) {
    try {
      const ir::Program program = ir::read_hlo(text.substr(0, cut));
      fingerprints(program);
      cycles_of(program);
      lend(program, {});
    } catch (const Error&) {
    }
  }
  BOOST_TEST(true);
}

}  // namespace
}  // namespace aoizora::planner
