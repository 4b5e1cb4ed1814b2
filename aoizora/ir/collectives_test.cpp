#include "aoizora/ir/collectives.h"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <map>
#include <ostream>
#include <set>
#include <string>

#include "aoizora/errors.h"
#include "aoizora/ir/readers.h"
#include "aoizora/ir/test_texts.h"

namespace aoizora::ir {
namespace {

namespace data = boost::unit_test::data;
using topology::CollectiveKind;

const Instruction& at(const Program& program, InstructionId id) {
  return program.instructions[static_cast<std::size_t>(id)];
}

/// The loop over layers: the one with the largest body in the entry.
ComputationId block_of(const Program& program) {
  ComputationId block = none;
  for (const Instruction& i : program.of(program.entry)) {
    if (i.opcode != "while") continue;
    const ComputationId body = called(program, i, "body");
    if (block == none || program.computations[static_cast<std::size_t>(body)].count >
                             program.computations[static_cast<std::size_t>(block)].count)
      block = body;
  }
  return block;
}

/// Runs of each computation in one layer, by trips of the loops inside the block.
std::map<ComputationId, std::int64_t> runs_per_layer(const Program& program) {
  std::map<ComputationId, std::int64_t> runs{{block_of(program), 1}};
  for (bool grown = true; grown;) {
    grown = false;
    for (std::size_t id = 0; id < program.instructions.size(); ++id) {
      const Instruction& i = program.instructions[id];
      if (i.opcode != "while" || !runs.contains(i.computation)) continue;
      const ComputationId body = called(program, i, "body");
      if (runs.contains(body)) continue;
      runs[body] = runs[i.computation] * trip_count(program, static_cast<InstructionId>(id)).value();
      grown = true;
    }
  }
  return runs;
}

struct Row {
  const char* file;
  std::map<CollectiveKind, std::pair<int, double>> per_layer;  ///< count x MB of result
  friend std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.file; }
};

// Counted independently of this reader, by hand and script, when the programs were recorded.
const Row rows[] = {
    {"flash_d2c4.hlo.txt", {{CollectiveKind::all_gather, {10, 789}}, {CollectiveKind::all_reduce, {1, 10.5}}}},
    {"flash_d2c2t2.hlo.txt", {{CollectiveKind::all_gather, {10, 395}}, {CollectiveKind::all_reduce, {6, 149}}}},
    {"flash_d2c2t2.hlo-passes-only.txt",
     {{CollectiveKind::all_gather, {10, 395}}, {CollectiveKind::all_reduce, {6, 149}}}},
    {"flash_c8.hlo.txt",
     {{CollectiveKind::all_gather, {2, 383}},
      {CollectiveKind::all_reduce, {1, 21}},
      {CollectiveKind::permute, {72, 672}}}},
    {"flash_c8_nowin.hlo.txt", {{CollectiveKind::all_gather, {10, 981}}, {CollectiveKind::all_reduce, {1, 21}}}},
    {"flash_f2c4.hlo.txt", {{CollectiveKind::all_gather, {10, 981}}, {CollectiveKind::all_reduce, {1, 21}}}},
    {"ulysses_c8.hlo.txt",
     {{CollectiveKind::all_to_all, {4, 95.8}},
      {CollectiveKind::all_reduce, {1, 21}},
      {CollectiveKind::permute, {72, 672}}}},
    {"ring_d2c4.hlo.txt",
     {{CollectiveKind::all_gather, {8, 598}},
      {CollectiveKind::all_reduce, {1, 10.5}},
      {CollectiveKind::permute, {8, 192}}}},
    {"flash_d2c8_4x4.hlo.txt", {{CollectiveKind::all_gather, {10, 789}}, {CollectiveKind::all_reduce, {1, 10.5}}}},
    {"flash_d2c8_4x4.hlo-passes-only.txt",
     {{CollectiveKind::all_gather, {10, 789}}, {CollectiveKind::all_reduce, {1, 10.5}}}},
};

BOOST_AUTO_TEST_SUITE(collectives_of_programs)

BOOST_DATA_TEST_CASE(counts_and_bytes_of_a_layer, data::make(rows), row) {
  const Program program = read_hlo(recorded(row.file));
  const auto runs = runs_per_layer(program);
  std::map<CollectiveKind, std::pair<int, double>> found;
  for (const Collective& c : collectives(program)) {
    const auto times = runs.find(c.computation);
    if (times == runs.end()) continue;
    found[c.kind].first += static_cast<int>(times->second);
    found[c.kind].second += static_cast<double>(times->second * c.result_bytes) / 1e6;
  }
  BOOST_TEST(found.size() == row.per_layer.size());
  for (const auto& [kind, expected] : row.per_layer) {
    BOOST_TEST(found[kind].first == expected.first, topology::name(kind));
    BOOST_TEST(std::abs(found[kind].second - expected.second) < (expected.second < 100 ? 0.051 : 0.51),
               topology::name(kind) << " " << found[kind].second << " MB");
  }
}

// Bytes are conserved: a gather gives each rank the parts of all, a reduction and an exchange keep their size. Groups
// take every device once. An async collective is carried between its start and its done.
BOOST_DATA_TEST_CASE(laws_of_every_collective, data::make(recorded_hlo), file) {
  const Program program = read_hlo(recorded(file));
  const auto all = collectives(program);
  BOOST_TEST(!all.empty());
  InstructionId before = none;
  for (const Collective& c : all) {
    BOOST_TEST_CONTEXT(at(program, c.start).name) {
      BOOST_TEST(c.start > before);  // in order of computation and schedule
      before = c.start;
      BOOST_TEST(c.result_bytes > 0);
      if (c.kind == CollectiveKind::permute) {
        BOOST_TEST(!c.pairs.empty());
        BOOST_TEST(c.groups.empty());
        BOOST_TEST(c.result_bytes == c.operand_bytes);
      } else {
        BOOST_REQUIRE(!c.groups.empty());
        std::set<std::int32_t> ids;
        for (const auto& group : c.groups) {
          BOOST_TEST(group.size() == c.groups.front().size());
          ids.insert(group.begin(), group.end());
        }
        BOOST_TEST(ids.size() == static_cast<std::size_t>(device_count(program)));
        const auto n = static_cast<std::int64_t>(c.groups.front().size());
        BOOST_TEST(n > 1);
        BOOST_TEST(c.result_bytes == (c.kind == CollectiveKind::all_gather ? n * c.operand_bytes : c.operand_bytes));
      }
      BOOST_TEST(c.payload_bytes() == c.result_bytes);
      BOOST_TEST((at(program, c.start).computation == c.computation));
      BOOST_TEST((at(program, c.done).computation == c.computation));
      InstructionId last = c.start;
      for (const InstructionId carrier : c.carriers) {
        BOOST_TEST(carrier > last);
        last = carrier;
      }
      BOOST_TEST((c.is_async() ? c.done > last : c.carriers.empty()));
    }
  }
}

// Each AsyncCollectiveStart is one collective, however many fusions print it.
BOOST_DATA_TEST_CASE(async_copies_are_one, data::make(recorded_hlo), file) {
  const std::string text = recorded(file);
  std::size_t starts = 0;
  for (std::size_t p = 0; (p = text.find("custom_call_target=\"AsyncCollectiveStart\"", p)) != std::string::npos; ++p)
    ++starts;
  const Program program = read_hlo(text);
  std::size_t async = 0;
  for (const Collective& c : collectives(program))
    async += c.is_async() && c.kind == CollectiveKind::all_gather ? 1 : 0;
  BOOST_TEST(async == starts);
}

BOOST_AUTO_TEST_CASE(flash_d2c4_has_seventeen_gathers_where_thirty_eight_are_printed) {
  const Program program = read_hlo(recorded("flash_d2c4.hlo.txt"));
  int gathers = 0;
  for (const Collective& c : collectives(program)) gathers += c.kind == CollectiveKind::all_gather ? 1 : 0;
  BOOST_TEST(gathers == 17);
}

// In ring_d2c4 one gather starts before the ring's loop, is carried by fusions inside it and done behind it.
BOOST_AUTO_TEST_CASE(a_loop_may_carry_a_collective) {
  const Program program = read_hlo(recorded("ring_d2c4.hlo.txt"));
  int carried_by_loop = 0;
  for (const Collective& c : collectives(program)) {
    for (const InstructionId carrier : c.carriers) carried_by_loop += at(program, carrier).opcode == "while" ? 1 : 0;
  }
  BOOST_TEST(carried_by_loop == 1);
}

/// A module of eight partitions: `before` are computations, `lines` the entry's.
Program module_of(const std::string& lines, const std::string& before = "") {
  return read_hlo(
      "HloModule m, is_scheduled=true, num_partitions=8\n\n%add {\n  %x = f32[] parameter(0)\n  %y = f32[] "
      "parameter(1)\n  ROOT %z = f32[] add(%x, %y)\n}\n\n" +
      before + "ENTRY %main {\n  %p = f32[8,4] parameter(0)\n" + lines + "}\n");
}

struct Form {
  const char* name;
  std::string before;
  std::string lines;
  CollectiveKind kind;
  const char* done;
  std::int64_t operand_bytes;
  std::int64_t result_bytes;
  std::int64_t payload_bytes;
  friend std::ostream& operator<<(std::ostream& out, const Form& form) { return out << form.name; }
};

const std::string groups = ", channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true";
const Form forms[] = {
    {"synchronous all-gather", "", "  ROOT %s = f32[32,4] all-gather(%p), dimensions={0}" + groups + "\n",
     CollectiveKind::all_gather, "s", 128, 512, 512},
    {"variadic all-reduce", "", "  ROOT %s = (f32[8,4], f32[8,4]) all-reduce(%p, %p), to_apply=%add" + groups + "\n",
     CollectiveKind::all_reduce, "s", 256, 256, 256},
    {"reduce-scatter", "", "  ROOT %s = f32[2,4] reduce-scatter(%p), dimensions={0}, to_apply=%add" + groups + "\n",
     CollectiveKind::reduce_scatter, "s", 128, 32, 128},
    {"all-to-all", "", "  ROOT %s = f32[8,4] all-to-all(%p), dimensions={0}" + groups + "\n",
     CollectiveKind::all_to_all, "s", 128, 128, 128},
    {"collective-broadcast", "",
     "  ROOT %s = f32[8,4] collective-broadcast(%p), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}\n",
     CollectiveKind::broadcast, "s", 128, 128, 128},
    {"ragged-all-to-all", "",
     "  %o = s32[4] constant({0,2,4,6})\n  ROOT %s = f32[8,4] ragged-all-to-all(%p, %p, %o, %o, %o, /*index=5*/%o), "
     "channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}\n",
     CollectiveKind::ragged_all_to_all, "s", 128, 128, 128},
    {"all-gather-start", "",
     "  %s = (f32[8,4], f32[32,4]) all-gather-start(%p), dimensions={0}" + groups +
         "\n  %c = f32[8,4] copy(%p)\n  ROOT %d = f32[32,4] all-gather-done(%s)\n",
     CollectiveKind::all_gather, "d", 128, 512, 512},
    {"all-reduce-start", "",
     "  %s = f32[8,4] all-reduce-start(%p), to_apply=%add" + groups + "\n  ROOT %d = f32[8,4] all-reduce-done(%s)\n",
     CollectiveKind::all_reduce, "d", 128, 128, 128},
    {"collective-permute-start", "",
     "  %s = (f32[8,4], f32[8,4], u32[], u32[]) collective-permute-start(%p), channel_id=1, "
     "source_target_pairs={{0,1},{1,0}}\n  ROOT %d = f32[8,4] collective-permute-done(%s)\n",
     CollectiveKind::permute, "d", 128, 128, 128},
    {"async-start around a reduce-scatter",
     "%async_computation {\n  %a = f32[8,4] parameter(0)\n  ROOT %r = f32[2,4] reduce-scatter(%a), dimensions={0}, "
     "to_apply=%add" +
         groups + "\n}\n\n",
     "  %s = ((f32[8,4]), f32[2,4], u32[]) async-start(%p), calls=%async_computation\n  %u = ((f32[8,4]), f32[2,4], "
     "u32[]) async-update(%s)\n  ROOT %d = f32[2,4] async-done(%u)\n",
     CollectiveKind::reduce_scatter, "d", 128, 32, 128},
    // tpu7x: two calls deep, on the sparse core.
    {"async-start around a custom call",
     "%inner {\n  %a = f32[8,4] parameter(0)\n  ROOT %r = f32[32,4] all-gather(%a), dimensions={0}" + groups +
         "\n}, execution_thread=\"sparsecore\"\n\n%async_computation {\n  %a = f32[8,4] parameter(0)\n  ROOT %r = "
         "f32[32,4] custom-call(%a), custom_call_target=\"Collective\", called_computations={%inner}\n}, "
         "execution_thread=\"sparsecore\"\n\n",
     "  %s = ((f32[8,4]), f32[32,4], u32[]) async-start(%p), async_execution_thread=\"sparsecore\", "
     "calls=%async_computation\n  ROOT %d = f32[32,4] async-done(%s)\n",
     CollectiveKind::all_gather, "d", 128, 512, 512},
    {"operands handed over by the update",
     "%async_computation {\n  %a = f32[8,4] parameter(0)\n  ROOT %r = f32[32,4] all-gather(%a), dimensions={0}" +
         groups + "\n}, execution_thread=\"sparsecore\"\n\n",
     "  %b = ((), (), (s32[16])) async-start(), calls=%async_computation\n  %s = ((f32[8,4]), f32[32,4], (s32[16])) "
     "async-update(%b, %p)\n  ROOT %d = f32[32,4] async-done(%s)\n",
     CollectiveKind::all_gather, "d", 128, 512, 512},
    {"short form of an async all-to-all", "",
     "  %s = ((f32[8,4]), f32[8,4]) all-to-all-start(%p), dimensions={0}" + groups +
         "\n  ROOT %d = f32[8,4] all-to-all-done(%s)\n",
     CollectiveKind::all_to_all, "d", 128, 128, 128},
    {"fused all-gather",
     "%f {\n  %a = f32[8,4] parameter(0)\n  ROOT %r = f32[32,4] all-gather(%a), dimensions={0}" + groups + "\n}\n\n",
     "  ROOT %s = f32[32,4] fusion(%p), kind=kCustom, calls=%f\n", CollectiveKind::all_gather, "s", 128, 512, 512},
    {"all-reduce fused with the slice of it",
     "%f {\n  %a = f32[8,4] parameter(0)\n  %i = s32[] constant(0)\n  %r = f32[8,4] all-reduce(%a), to_apply=%add" +
         groups + "\n  ROOT %t = f32[2,4] dynamic-slice(%r, %i, %i), dynamic_slice_sizes={2,4}\n}\n\n",
     "  ROOT %s = f32[2,4] fusion(%p), kind=kCustom, calls=%f\n", CollectiveKind::reduce_scatter, "s", 128, 32, 128},
};

BOOST_DATA_TEST_CASE(every_form_is_one_collective, data::make(forms), form) {
  const Program program = module_of(form.lines, form.before);
  const auto all = collectives(program);
  BOOST_REQUIRE(all.size() == 1U);
  BOOST_TEST((all[0].kind == form.kind));
  BOOST_TEST(at(program, all[0].start).name == "s");
  BOOST_TEST(at(program, all[0].done).name == form.done);
  BOOST_TEST(all[0].operand_bytes == form.operand_bytes);
  BOOST_TEST(all[0].result_bytes == form.result_bytes);
  BOOST_TEST(all[0].payload_bytes() == form.payload_bytes);
  if (form.kind == CollectiveKind::permute) {
    BOOST_TEST(all[0].pairs.size() == 2U);
  } else {
    BOOST_TEST((all[0].groups == ReplicaGroups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  }
}

// What nothing scheduled calls does not run.
BOOST_AUTO_TEST_CASE(helpers_that_never_run_have_no_collectives) {
  const Program program =
      module_of("  ROOT %r = f32[8,4] copy(%p)\n",
                "%unused {\n  %a = f32[8,4] parameter(0)\n  ROOT %r = f32[32,4] all-gather(%a), dimensions={0}" +
                    groups + "\n}\n\n");
  BOOST_TEST(collectives(program).empty());
}

// Everything inside a shard_map carries channel_id=1: two collectives of one channel stay two.
BOOST_AUTO_TEST_CASE(channel_alone_does_not_identify) {
  const Program program = module_of("  %a = f32[8,4] all-reduce(%p), to_apply=%add" + groups +
                                    "\n  ROOT %b = f32[8,4] all-reduce(%a), to_apply=%add" + groups + "\n");
  BOOST_TEST(collectives(program).size() == 2U);
}

// Without use_global_device_ids a reduction names replicas, all partitions of which take part.
BOOST_AUTO_TEST_CASE(replica_ids_stand_for_all_partitions) {
  const Program program =
      module_of("  ROOT %a = f32[8,4] all-reduce(%p), to_apply=%add, channel_id=1, replica_groups={{0}}\n");
  BOOST_TEST((collectives(program).at(0).groups == ReplicaGroups{{0, 1, 2, 3, 4, 5, 6, 7}}));
}

BOOST_AUTO_TEST_CASE(bad_groups_are_refused_where_they_stand) {
  const Program program = module_of(
      "  ROOT %a = f32[8,4] all-reduce(%p), to_apply=%add, channel_id=1, replica_groups={{0,9}}, "
      "use_global_device_ids=true\n");
  BOOST_CHECK_EXCEPTION(collectives(program), ParseError, [](const ParseError& e) {
    return e.line == 11 && std::string(e.what()).find("device 9") != std::string::npos;
  });
}

BOOST_AUTO_TEST_CASE(devices_from_the_header_or_the_largest_id) {
  BOOST_TEST(device_count(read_hlo(
                 "HloModule m, num_partitions=4, replica_count=2\nENTRY %e {\n  ROOT %c = f32[] constant(1)\n}\n")) ==
             8);
  BOOST_TEST(device_count(read_hlo("HloModule m\nENTRY %e {\n  ROOT %c = f32[] constant(1)\n}\n")) == 1);
  BOOST_TEST(device_count(read_hlo("HloModule m\nENTRY %e {\n  %c = f32[] constant(1)\n  ROOT %d = f32[] "
                                   "collective-permute(%c), source_target_pairs={{0,5}}\n}\n")) == 6);
  BOOST_TEST(device_count(read_hlo("HloModule m\nENTRY %e {\n  %c = f32[] constant(1)\n  ROOT %d = f32[] "
                                   "all-to-all(%c), replica_groups=[4,4]<=[16]\n}\n")) == 16);
  BOOST_TEST(device_count(read_hlo("HloModule m\nENTRY %e {\n  %c = f32[] constant(1)\n  ROOT %d = f32[] "
                                   "all-to-all(%c), replica_groups=mesh['a9'=4,'b'=8] {'b'}\n}\n")) == 32);
  BOOST_CHECK_THROW(device_count(read_hlo(
                        "HloModule m, num_partitions=999999999999\nENTRY %e {\n  ROOT %c = f32[] constant(1)\n}\n")),
                    ParseError);
}

// Ids of all groups together are bounded: a short text cannot ask for gigabytes.
BOOST_AUTO_TEST_CASE(groups_of_many_collectives_are_bounded) {
  std::string text = "HloModule m, num_partitions=1000000\nENTRY %e {\n  %c = f32[] constant(1)\n";
  for (int k = 0; k < 100; ++k) text += "  %d" + std::to_string(k) + " = f32[] all-to-all(%c), replica_groups={}\n";
  BOOST_CHECK_THROW(collectives(read_hlo(text + "}\n")), ParseError);
}

// A thousand fusions of one computation with a thousand collectives: a million, refused before they fill the memory.
BOOST_AUTO_TEST_CASE(fusions_that_multiply_are_bounded) {
  std::string inner = "%f {\n  %a = f32[8,4] parameter(0)\n";
  std::string outer;
  for (int k = 0; k < 1000; ++k) {
    inner += "  %r" + std::to_string(k) + " = f32[8,4] all-reduce(%a), to_apply=%add, replica_groups={}\n";
    outer += "  %s" + std::to_string(k) + " = f32[8,4] fusion(%p), kind=kCustom, calls=%f\n";
  }
  const Program program = module_of(outer, inner + "}\n\n");
  BOOST_CHECK_THROW(collectives(program), ParseError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace aoizora::ir
