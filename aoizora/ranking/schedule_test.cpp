#include "aoizora/ranking/schedule.h"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <string>

#include "aoizora/errors.h"
#include "aoizora/ir/memory_report.h"
#include "aoizora/ranking/q2.h"
#include "aoizora/ranking/test_programs.h"

namespace {

using namespace aoizora;
using ranking::CompiledProgram;
using ranking::extract;
using ranking::recorded_text;
using ranking::Step;

/// At full speed: what the core sustains of it has a test of its own.
topology::Hardware v5e() {
  topology::Hardware hardware = topology::make_slice("v5e:2x4").hardware;
  hardware.core_efficiency.value = 1;
  return hardware;
}

CompiledProgram extract_text(const std::string& text) { return extract(ir::read_hlo(text), v5e()); }

/// Sum of estimated_cycles over the lines of one computation, by plain text search.
double cycles_in_text(const std::string& text, const std::string& computation) {
  const std::size_t begin = text.find("\n%" + computation + " ");
  BOOST_REQUIRE(begin != std::string::npos);
  const std::size_t end = text.find("\n}\n", begin);
  const std::string key = "\"estimated_cycles\":\"";
  double sum = 0;
  for (std::size_t at = text.find(key, begin); at < end; at = text.find(key, at + 1))
    sum += std::strtod(text.c_str() + at + key.size(), nullptr);
  return sum;
}

std::string module_of(const std::string& body, const std::string& before = "") {
  return "HloModule m, is_scheduled=true, num_partitions=8\n\n" + before +
         "ENTRY %main (p: bf16[256,512], q: bf16[512,1024]) -> bf16[256,1024] {\n" +
         "  %p = bf16[256,512]{1,0:T(8,128)(2,1)S(1)} parameter(0)\n  %q = bf16[512,1024]{1,0:T(8,128)(2,1)S(1)} "
         "parameter(1)\n" +
         body + "}\n";
}

const std::string matmul =
    "  ROOT %dot = bf16[256,1024]{1,0:T(8,128)(2,1)S(1)} convolution(%p, %q), dim_labels=bf_io->bf\n";

double matmul_seconds(double flops) {
  return flops / (v5e().peak_flops_per_second.value * v5e().matmul_efficiency.value);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(schedule)

// Every collective starts once and ends once, in that order, in whatever sequence runs it.
BOOST_AUTO_TEST_CASE(Recorded_CollectivesAppearOnce) {
  for (const auto& recorded : ranking::recorded_programs) {
    BOOST_TEST_CONTEXT(recorded.file) {
      const CompiledProgram program = extract_text(recorded_text(recorded.file));
      std::vector<int> starts(program.collectives.size(), 0), ends(program.collectives.size(), 0);
      for (const auto& sequence : program.sequences) {
        for (std::size_t index = 0; index < sequence.steps.size(); ++index) {
          const Step& step = sequence.steps[index];
          if (step.kind == Step::Kind::start || step.kind == Step::Kind::synchronous) {
            ++starts[step.collective];
            BOOST_TEST(step.ready < static_cast<std::int32_t>(index));
          }
          if (step.kind == Step::Kind::done || step.kind == Step::Kind::synchronous) {
            ++ends[step.collective];
            BOOST_TEST(starts[step.collective] == 1);
            BOOST_TEST(step.needed > static_cast<std::int32_t>(index));
          }
        }
      }
      BOOST_TEST(starts == std::vector<int>(program.collectives.size(), 1), boost::test_tools::per_element());
      BOOST_TEST(ends == starts, boost::test_tools::per_element());
      BOOST_TEST(program.proxy_layers == 2);
      BOOST_REQUIRE(program.block >= 0);
    }
  }
}

// The block's compute is the text's own cycles, each once a trip, plus the kernel and what carries no cycles.
BOOST_AUTO_TEST_CASE(Recorded_CyclesAreTheTexts) {
  for (const char* file : {"flash_d2c8_4x4.hlo.txt", "flash_d2c4.hlo.txt", "flash_c8_nowin.hlo.txt"}) {
    const std::string text = recorded_text(file);
    const CompiledProgram program = extract_text(text);
    const auto& block = program.sequences[program.block];
    const double cycles = cycles_in_text(text, block.name);
    const double counted = (block.compute.total() - block.compute.attention_seconds) * v5e().clock_hz.value;
    BOOST_TEST_CONTEXT(file) {
      BOOST_TEST(cycles > 1e7);
      BOOST_TEST(counted >= cycles * (1 - 1e-9));
      BOOST_TEST(counted <= cycles * 1.1);
    }
  }
}

BOOST_AUTO_TEST_CASE(Recorded_AllComputeWaitsForTheCore) {
  const std::string text = recorded_text("flash_d2c8_4x4.hlo.txt");
  topology::Hardware half = v5e();
  half.core_efficiency.value = 0.5;
  const CompiledProgram full = extract_text(text), slow = extract(ir::read_hlo(text), half);
  for (std::size_t s = 0; s < full.sequences.size(); ++s) {
    BOOST_TEST(slow.sequences[s].compute.total() == 2 * full.sequences[s].compute.total(),
               boost::test_tools::tolerance(1e-12));
  }
}

// 40 heads, 1170 queries, 9360 keys a device, by hand: ceil(q / 512) rows of ceil(kv / 512) grid steps each.
BOOST_AUTO_TEST_CASE(Recorded_AttentionGridSteps) {
  const CompiledProgram program = extract_text(recorded_text("flash_d2c8_4x4.hlo.txt"));
  const topology::Hardware h = v5e();
  const double rows = 40 * 3, steps = rows * 19;
  const double cycles = steps * (h.attention_product_cycles.value + 512 * h.attention_step_cycles.value) +
                        rows * 512 * h.attention_row_cycles.value;
  BOOST_TEST(program.sequences[program.block].compute.attention_seconds == cycles / h.clock_hz.value,
             boost::test_tools::tolerance(1e-9));
}

// Of a kernel over 1536 x 9728 that holds 1170 queries and 9360 keys the rest is padding.
BOOST_AUTO_TEST_CASE(Recorded_PaddingIsWhatTheLengthsLack) {
  workload::Workload workload;
  workload::Attention attention;
  attention.queries = attention.keys = 9360;
  attention.query_axis = attention.key_axis = "sequence";
  workload.attentions.push_back(attention);
  candidates::Candidate candidate;
  candidate.mesh = {{"data", 2}, {"context", 8}};
  candidate.rules["sequence"] = {"context"};
  const CompiledProgram program =
      extract(ir::read_hlo(recorded_text("flash_d2c8_4x4.hlo.txt")), workload, candidate, v5e(), ranking::Rung::code);
  const auto& compute = program.sequences[program.block].compute;
  BOOST_TEST(compute.padding_seconds == compute.attention_seconds * (1 - 1170.0 * 9360 / (1536.0 * 9728)),
             boost::test_tools::tolerance(1e-9));
}

// Without cycles the same program's block takes about what the compiler says it takes.
BOOST_AUTO_TEST_CASE(Recorded_PassesRungIsNearCode) {
  for (const std::string name : {"flash_d2c8_4x4", "flash_d2c2t2"}) {
    const CompiledProgram passes = extract_text(recorded_text(name + ".hlo-passes-only.txt"));
    const CompiledProgram code = extract_text(recorded_text(name + ".hlo.txt"));
    BOOST_TEST((passes.rung == ranking::Rung::passes && code.rung == ranking::Rung::code));
    BOOST_TEST(passes.sequences[passes.block].compute.total() == code.sequences[code.block].compute.total(),
               boost::test_tools::tolerance(0.15));
  }
}

// What grows with depth is the block's weights: eight matrices of embed x embed and two of embed x mlp, over the chips
// that divide them.
BOOST_AUTO_TEST_CASE(Recorded_StackedArgumentsAreTheBlocksWeights) {
  struct Case {
    std::string name;
    double factor;
  };
  for (const auto& [name, factor] : {Case{"flash_d2c8_4x4", 8}, Case{"flash_d2c2t2", 4}}) {
    const CompiledProgram program = extract_text(recorded_text(name + ".hlo.txt"));
    const std::int64_t total = ir::read_memory_report(recorded_text(name + ".memory-usage-report.txt")).total_bytes;
    const double weights = 2 * (8 * 5120.0 * 5120 + 2 * 5120.0 * 13824) * 2 / factor;
    BOOST_TEST(static_cast<double>(program.stacked_argument_bytes) == weights, boost::test_tools::tolerance(0.01));
    BOOST_TEST(program.stacked_argument_bytes < program.argument_bytes);
    BOOST_TEST(program.argument_bytes < total);
    BOOST_TEST(ranking::hbm_bytes_at_depth(program, total, 2) == static_cast<double>(total));
    const double a = ranking::hbm_bytes_at_depth(program, total, 40),
                 b = ranking::hbm_bytes_at_depth(program, total, 41);
    BOOST_TEST(b - a == static_cast<double>(program.stacked_argument_bytes) / 2, boost::test_tools::tolerance(1e-9));
  }
}

BOOST_AUTO_TEST_CASE(Matmul_TakesItsFlops) {
  const CompiledProgram program = extract_text(module_of(matmul));
  BOOST_TEST(program.sequences[program.entry].compute.matmul_seconds == matmul_seconds(2.0 * 256 * 512 * 1024),
             boost::test_tools::tolerance(1e-9));
  BOOST_TEST(program.block == -1);
}

// XLA writes a batched dot as a convolution over a dilated window; the multiplications with holes are not done.
BOOST_AUTO_TEST_CASE(BatchedMatmul_CountsNoHoles) {
  const CompiledProgram program = extract_text(R"(HloModule m, is_scheduled=true

ENTRY %main (a: bf16[20,4680,128], b: bf16[20,512,128]) -> f32[20,4680,512] {
  %a = bf16[20,4680,128]{2,1,0:T(8,128)(2,1)S(1)} parameter(0)
  %b = bf16[20,512,128]{2,1,0:T(8,128)(2,1)S(1)} parameter(1)
  ROOT %c = f32[20,4680,512]{2,1,0:T(8,128)S(1)} convolution(%a, %b), window={size=20 stride=19 lhs_dilate=20}, dim_labels=0bf_0oi->0bf
}
)");
  BOOST_TEST(program.sequences[program.entry].compute.matmul_seconds == matmul_seconds(2.0 * 20 * 4680 * 512 * 128),
             boost::test_tools::tolerance(1e-9));
}

// A computation nothing calls costs nothing; a body counts once a trip; cycles win over FLOPs; 2^63 - 1 is no cycle
// count.
BOOST_AUTO_TEST_CASE(LoopsHelpersAndCycles) {
  const auto loop = [](const std::string& trips, const std::string& cycles) {
    return "HloModule m, is_scheduled=true\n\n"
           "%unused (x: bf16[4096,4096]) -> bf16[4096,4096] {\n"
           "  %x = bf16[4096,4096]{1,0} parameter(0)\n"
           "  ROOT %y = bf16[4096,4096]{1,0} convolution(%x, %x), dim_labels=bf_io->bf\n"
           "}\n\n"
           "%body (s: (s32[], bf16[512,512])) -> (s32[], bf16[512,512]) {\n"
           "  %s = (s32[], bf16[512,512]{1,0:T(8,128)(2,1)S(1)}) parameter(0)\n"
           "  %i = s32[] get-tuple-element(%s), index=0\n"
           "  %v = bf16[512,512]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%s), index=1\n"
           "  %one = s32[] constant(1)\n"
           "  %next = s32[]{:T(128)S(6)} add(%i, %one)\n"
           "  %w = bf16[512,512]{1,0:T(8,128)(2,1)S(1)} convolution(%v, %v), dim_labels=bf_io->bf" +
           cycles +
           "\n"
           "  ROOT %t = (s32[], bf16[512,512]{1,0:T(8,128)(2,1)S(1)}) tuple(%next, %w)\n"
           "}\n\n"
           "%condition (s: (s32[], bf16[512,512])) -> pred[] {\n"
           "  %s = (s32[], bf16[512,512]{1,0:T(8,128)(2,1)S(1)}) parameter(0)\n"
           "  %i = s32[] get-tuple-element(%s), index=0\n"
           "  %n = s32[] constant(" +
           trips +
           ")\n"
           "  ROOT %less = pred[] compare(%i, %n), direction=LT\n"
           "}\n\n"
           "ENTRY %main (p: bf16[512,512]) -> (s32[], bf16[512,512]) {\n"
           "  %p = bf16[512,512]{1,0:T(8,128)(2,1)S(1)} parameter(0)\n"
           "  %zero = s32[] constant(0)\n"
           "  %t = (s32[], bf16[512,512]{1,0:T(8,128)(2,1)S(1)}) tuple(%zero, %p)\n"
           "  ROOT %loop = (s32[], bf16[512,512]{1,0:T(8,128)(2,1)S(1)}) while(%t), condition=%condition, body=%body\n"
           "}\n";
  };
  const auto matmul_time = [&](const std::string& trips, const std::string& cycles) {
    const CompiledProgram program = extract_text(loop(trips, cycles));
    return program.sequences[program.entry].compute.matmul_seconds;
  };
  const double once = matmul_seconds(2.0 * 512 * 512 * 512);
  BOOST_TEST(matmul_time("7", "") == 7 * once, boost::test_tools::tolerance(1e-9));
  const std::string config = R"(, backend_config={"window_config":{"estimated_cycles":")";
  BOOST_TEST(matmul_time("7", config + "3000\"}}") == 7 * 3000 / v5e().clock_hz.value,
             boost::test_tools::tolerance(1e-9));
  BOOST_TEST(matmul_time("7", config + "9223372036854775807\"}}") == 7 * once, boost::test_tools::tolerance(1e-9));
}

// A copy whose minor dimension changes on its way to HBM takes several times a plain one; the cycles are what libtpu
// 0.0.52 prints for these very copies in Wan's block at 720p.
BOOST_AUTO_TEST_CASE(CopyThatTurnsTheLanes_TakesTheCompilersCycles) {
  const auto cycles = [](const std::string& shape, const std::string& from, const std::string& to) {
    const CompiledProgram program =
        extract_text("HloModule m, is_scheduled=true\n\nENTRY %main (a: " + shape + ") -> " + shape +
                     " {\n  %a = " + shape + from + " parameter(0)\n  ROOT %c = " + shape + to + " copy(%a)\n}\n");
    const auto& compute = program.sequences[program.entry].compute;
    BOOST_TEST(compute.total() == compute.relayout_seconds);
    return compute.total() * v5e().core_efficiency.value * v5e().clock_hz.value;
  };
  const auto near = boost::test_tools::tolerance(0.1);
  BOOST_TEST(cycles("f32[1,9472,5120]", "{1,2,0:T(8,128)}", "{2,0,1:T(1,128)}") == 5740032.0, near);
  BOOST_TEST(cycles("f32[2,9728,5120]", "{1,2,0:T(8,128)}", "{2,1,0:T(8,128)}") == 2624580.0, near);
  BOOST_TEST(cycles("bf16[1,37888,5120]", "{2,1,0:T(8,128)(2,1)}", "{1,2,0:T(8,128)(2,1)}") == 4997520.0, near);
  BOOST_TEST(cycles("bf16[1,40,1088,8,128]", "{4,3,2,1,0:T(8,128)(2,1)}", "{4,1,3,2,0:T(8,128)(2,1)}") == 808071.0,
             near);  // the minor dimension stays
}

// A matmul that writes bf16 with the tokens minor takes longer than one that writes them as they are; f32 does not, and
// neither does one that only carries such a buffer along.
BOOST_AUTO_TEST_CASE(MatmulThatTurnsItsResult_TakesLonger) {
  const auto seconds = [](const std::string& type, const std::string& layout, bool carries) {
    const std::string result = type + "[4096,4096]" + layout;
    const std::string weights = "bf16[4096,4096]{0,1:T(8,128)(2,1)}";
    const std::string whole = carries ? "(" + result + ", " + weights + ")" : result;
    const CompiledProgram program = extract_text(
        "HloModule m, is_scheduled=true\n\n%f (a: bf16[4096,4096], b: bf16[4096,4096]) -> " + whole +
        " {\n  %a = bf16[4096,4096]{1,0:T(8,128)(2,1)} parameter(0)\n  %b = " + weights + " parameter(1)\n  " +
        (carries ? "" : "ROOT ") + "%c = " + result + " convolution(%a, %b), dim_labels=bf_io->bf\n" +
        (carries ? "  ROOT %t = " + whole + " tuple(%c, %b)\n" : "") +
        "}\n\nENTRY %main (a: bf16[4096,4096], b: bf16[4096,4096]) -> " + whole +
        " {\n  %a = bf16[4096,4096]{1,0:T(8,128)(2,1)} parameter(0)\n  %b = " + weights +
        " parameter(1)\n  ROOT %r = " + whole + " fusion(%a, %b), kind=kOutput, calls=%f\n}\n");
    return program.sequences[program.entry].compute.matmul_seconds;
  };
  const double plain = seconds("bf16", "{1,0:T(8,128)(2,1)}", false);
  BOOST_TEST(plain == matmul_seconds(2.0 * 4096 * 4096 * 4096), boost::test_tools::tolerance(1e-9));
  BOOST_TEST(seconds("bf16", "{0,1:T(8,128)(2,1)}", false) > 1.4 * plain);
  BOOST_TEST(seconds("f32", "{0,1:T(8,128)}", false) == plain);
  BOOST_TEST(seconds("bf16", "{1,0:T(8,128)(2,1)}", true) == plain);
}

// A fusion that slices one layer out of a stack reads the layer, however deep the stack.
BOOST_AUTO_TEST_CASE(SliceOfAStack_ReadsTheSlice) {
  const auto seconds = [](int layers) {
    const std::string stack = "bf16[" + std::to_string(layers) + ",640,5120]{2,1,0:T(8,128)(2,1)}";
    const std::string type = "bf16[" + std::to_string(layers) + ",640,5120]";
    const CompiledProgram program = extract_text(
        "HloModule m, is_scheduled=true\n\n%slice (a: " + type + ", i: s32[]) -> bf16[1,640,5120] {\n  %a = " + stack +
        " parameter(0)\n  %i = s32[] parameter(1)\n  %z = s32[] constant(0)\n  ROOT %d = "
        "bf16[1,640,5120]{2,1,0:T(8,128)(2,1)} "
        "dynamic-slice(%a, %i, %z, %z), dynamic_slice_sizes={1,640,5120}\n}\n\nENTRY %main (a: " +
        type + ", i: s32[]) -> bf16[1,640,5120] {\n  %a = " + stack +
        " parameter(0)\n  %i = s32[] parameter(1)\n"
        "  ROOT %f = bf16[1,640,5120]{2,1,0:T(8,128)(2,1)} fusion(%a, %i), kind=kLoop, calls=%slice\n}\n");
    return program.sequences[program.entry].compute.relayout_seconds;
  };
  BOOST_TEST(seconds(3) > 0);
  BOOST_TEST(seconds(3) == seconds(40));
}

// Text from outside may call in circles or multiply calls until no simulation ends.
BOOST_AUTO_TEST_CASE(CraftedCalls_AreRefused) {
  std::string text =
      "HloModule m, is_scheduled=true\n\n%c0 (x: bf16[512,512]) -> bf16[512,512] {\n  %x = bf16[512,512]{1,0} "
      "parameter(0)\n"
      "  ROOT %y = bf16[512,512]{1,0} copy(%x)\n}\n\n";
  for (int level = 1; level < 40; ++level) {
    const std::string callee = "%c" + std::to_string(level - 1);
    text += "%c" + std::to_string(level) +
            " (x: bf16[512,512]) -> bf16[512,512] {\n  %x = bf16[512,512]{1,0} parameter(0)\n  %a = bf16[512,512]{1,0} "
            "call(%x), to_apply=" +
            callee + "\n  ROOT %b = bf16[512,512]{1,0} call(%a), to_apply=" + callee + "\n}\n\n";
  }
  text +=
      "ENTRY %main (x: bf16[512,512]) -> bf16[512,512] {\n  %x = bf16[512,512]{1,0} parameter(0)\n  ROOT %y = "
      "bf16[512,512]{1,0} call(%x), to_apply=%c39\n}\n";
  BOOST_CHECK_THROW(extract_text(text), ParseError);
}

BOOST_AUTO_TEST_SUITE_END()
