// Texts made to cost much: each reads or is refused within a second, and takes at most 16 MiB and 50 times its size.
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <new>
#include <ostream>
#include <string>

#include "aoizora/errors.h"
#include "aoizora/ir/inspect.h"
#include "aoizora/ir/readers.h"
#include "aoizora/ir/test_texts.h"

namespace {

std::size_t held = 0;
std::size_t most_held = 0;
constexpr std::size_t header = alignof(std::max_align_t);

}  // namespace

// Counts what the program asks for; the size stands before each piece.
void* operator new(std::size_t size) {
  void* got = std::malloc(size + header);
  if (!got) throw std::bad_alloc();
  *static_cast<std::size_t*>(got) = size;
  held += size;
  if (held > most_held) most_held = held;
  return static_cast<std::byte*>(got) + header;
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* piece) noexcept {
  if (!piece) return;
  void* got = static_cast<std::byte*>(piece) - header;
  held -= *static_cast<std::size_t*>(got);
  std::free(got);
}
void operator delete(void* piece, std::size_t) noexcept { operator delete(piece); }
void operator delete(void* piece, const std::nothrow_t&) noexcept { operator delete(piece); }

namespace aoizora::ir {
namespace {

namespace data = boost::unit_test::data;

// g++ defines the first two, clang has the features.
#ifndef __has_feature
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || __has_feature(address_sanitizer) || \
    __has_feature(thread_sanitizer)
constexpr double seconds_allowed = 10;
#else
constexpr double seconds_allowed = 1;
#endif

/// Bytes beyond those held before, at most, while `work` runs.
template <class Work>
std::size_t most_while(Work&& work) {
  const std::size_t before = held;
  most_held = held;
  work();
  return most_held - before;
}

constexpr std::size_t size = 1'000'000;

/// `piece(0)`, `piece(1)`, ... until the text has a million bytes.
std::string many(const std::function<std::string(std::size_t)>& piece) {
  std::string out;
  for (std::size_t k = 0; out.size() < size; ++k) out += piece(k);
  return out;
}
std::string many(const std::string& piece) {
  return many([&](std::size_t) { return piece; });
}

/// Short names, each another one.
std::string name_of(std::size_t k) {
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string out;
  do {
    out += letters[k % letters.size()];
    k /= letters.size();
  } while (k > 0);
  return out;
}

std::string hlo(const std::string& entry, const std::string& before = "") {
  return "HloModule m, num_partitions=131072\n" + before + "ENTRY main{\np=f32[8] parameter(0)\n" + entry + "\n}\n";
}
std::string mlir(const std::string& lines) {
  return "module {\nfunc.func @main(%p: i1) {\n" + lines + "\nreturn\n}\n}\n";
}

struct Hostile {
  const char* what;
  std::string text;
  friend std::ostream& operator<<(std::ostream& out, const Hostile& h) { return out << h.what; }
};

std::vector<Hostile> hostile_texts() {
  const std::string brackets(size, '(');
  return {
      {"instructions", hlo(many([](std::size_t k) { return name_of(k) + "_=s4[]a()\n"; }))},
      {"computations", hlo("", many([](std::size_t k) { return name_of(k) + "_{a=s4[]a()}"; }))},
      {"leaves of a tuple", hlo("a=(" + many("s4[],") + "s4[])b()")},
      {"deep tuple", hlo("a=" + brackets)},
      {"deep attribute", hlo("a=s4[]b(),c=" + brackets)},
      {"dimensions", hlo("a=s4[" + many("1,") + "1]b()")},
      {"overflowing dimensions", hlo("a=s4[" + many("9223372036854775807,") + "1]b()")},
      {"operands", hlo("a=s4[]b(" + many("p,") + "p)")},
      {"calls of what comes later", hlo("a=s4[]b(),calls={" + many("z,") + "z}") + "z{a=s4[]a()}"},
      {"calls of what never comes", hlo("a=s4[]b(),calls={" + many("z,") + "z}")},
      {"a parameter far out in each computation",
       hlo("",
           many([](std::size_t k) { return name_of(k) + "_{\na=s4[]parameter(0)\nb=s4[]parameter(999999)\n}\n"; }))},
      {"parameters backwards", hlo("", "z{\n" + many([](std::size_t k) {
                                         return name_of(k) + "_=s4[]parameter(" + std::to_string(99999 - k % 100000) +
                                                ")\n";
                                       }) + "}\n")},
      {"one long name", hlo(many("name") + "=s4[]b(" + many("name") + "x)")},
      {"a chain of calls", hlo("", many([](std::size_t k) {
                                 return name_of(k) + "_{\na=s4[]" +
                                        (k == 0 ? "a()" : "call(),to_apply=" + name_of(k - 1) + "_") + "\n}\n";
                               }))},
      {"a ring of calls",
       hlo("", many([](std::size_t k) {
                 return name_of(k) + "_{\na=s4[]call(),to_apply=" + (k == 0 ? "z" : name_of(k - 1) + "_") + "\n}\n";
               }) + "z{\na=s4[]call(),to_apply=a_\n}\n")},
      {"twice the calls at each step", hlo("r=s4[]call(),to_apply=tP_", many([](std::size_t k) {
                                             if (k == 0) return std::string("a_{a=s4[]a()}\n");
                                             const std::string call = "=s4[]call(),to_apply=" + name_of(k - 1) + "_\n";
                                             return name_of(k) + "_{\na" + call + "b" + call + "}\n";
                                           }))},
      {"groups of all devices", hlo(many([](std::size_t k) {
         return name_of(k) + "_=f32[8]all-gather(p),replica_groups=[1,131072]<=[131072]\n";
       }))},
      {"groups of one device each", hlo(many([](std::size_t k) {
         return name_of(k) + "_=f32[8]all-gather(p),replica_groups=[131072,1]<=[131072]\n";
       }))},
      {"groups in a mesh", hlo(many([](std::size_t k) {
         return name_of(k) + "_=f32[8]all-gather(p),replica_groups=mesh['a'=131072] {}\n";
       }))},
      {"an iota that overflows", hlo("a=f32[8]all-gather(p),replica_groups=[9223372036854775807,9]<=[99999999999,9]")},
      {"loops with long conditions",
       hlo(many([](std::size_t k) { return name_of(k) + "_=f32[8]while(p),condition=c,body=c\n"; }),
           "c{\nq=s4[]parameter(0)\nr=s4[]copy(q)\ns=s4[]add(r,r)\nt=s4[]add(s,s)\nu=s4[]add(t,t)\nv=s4[]add(u,u)\n"
           "w=s4[]add(v,v)\nx=s4[]add(w,w)\ny=s4[]add(x,x)\nROOT z=pred[]compare(y,y),direction=LT\n}\n")},
      {"fusions that hold one collective",
       hlo(many([](std::size_t k) { return name_of(k) + "_=f32[8]fusion(p),calls=c\n"; }),
           "c{\nq=f32[8]parameter(0)\nr=f32[8]all-gather(q),replica_groups={}\n}\n")},
      {"tables", "HloModule m\n" + many("\nFileNames\n1 \"\"\n")},
      {"comments", hlo(many("/**/"))},
      {"backslashes", hlo("a=s4[]b(),c=\"" + many("\\") + "\"")},
      {"operations", mlir(many("a.b\n"))},
      {"results", mlir(many([](std::size_t k) { return "%" + name_of(k) + "_=a.b:i1\n"; }))},
      {"more results than types", mlir("%a:1000000 = \"b.c\"() : () -> i1")},
      {"regions", mlir(many("a.b{\n}"))},
      {"regions of one operation", mlir("\"a.b\"()({}" + many(",{}") + "):()->()")},
      {"deep regions", mlir(many("a.b{\n"))},
      {"regions of a loop",
       mlir("%0 = stablehlo.while(" + many([](std::size_t k) { return "%" + name_of(k) + "_ = %p, "; }) +
            "%z = %p) : i1" + many("{\n}"))},
      {"types", mlir("%0 = \"b.c\"() : () -> (" + many("i1,") + "i1)")},
      {"deep types", mlir("%0 = \"b.c\"() : () -> " + many("tuple<"))},
      {"arguments",
       mlir("a.b{\n^bb0(" + many([](std::size_t k) { return "%" + name_of(k) + ":i1,"; }) + "%z_:i1):\n}")},
      {"blocks", mlir("a.b{\n" + many("^a:") + "}")},
      {"values", mlir("\"a.b\"(" + many("%p,") + "%p):()->()")},
      {"aliases", many("#a\n") + mlir("")},
      {"resources", mlir("") + "{-#" + many("{")},
      {"tensors that do not end", mlir("%0 = a.b : " + many("tensor<"))},
      {"newlines", mlir(many("\n"))},
  };
}

BOOST_AUTO_TEST_SUITE(hostile)

BOOST_DATA_TEST_CASE(costs_little, data::make(hostile_texts()), one) {
  const std::clock_t began = std::clock();
  std::size_t of_reading = 0;
  std::size_t of_looking = 0;
  try {
    Program program;
    of_reading = most_while([&] { program = read_program(one.text); });
    of_looking = most_while([&] { BOOST_TEST(!inspect_json(program).empty()); });
  } catch (const ParseError& e) {
    BOOST_TEST(e.line >= 1);
    BOOST_TEST(e.column >= 1);
    BOOST_TEST(std::string_view(e.what()).size() < 1000U);
    of_reading = std::max(of_reading, most_held - held);
  }
  const auto bytes = static_cast<double>(one.text.size());
  const double seconds = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
  BOOST_TEST_MESSAGE(one.what << ": " << seconds << " s, memory " << static_cast<double>(of_reading) / bytes << " and "
                              << static_cast<double>(of_looking) / bytes << " times the text");
  BOOST_TEST(seconds < seconds_allowed);
  BOOST_TEST(of_reading <= (std::size_t{16} << 20) + 50 * one.text.size());
}

// What real programs take: the text, and at most five times as much.
BOOST_DATA_TEST_CASE(recorded_hlo_takes_six_times_its_text, data::make(recorded_hlo), file) {
  std::string text = recorded(file);
  const std::size_t bytes = text.size();
  const std::size_t taken = bytes + most_while([&] { read_hlo(std::move(text)); });
  BOOST_TEST(taken <= 6 * bytes);
}
BOOST_DATA_TEST_CASE(recorded_stablehlo_takes_six_times_its_text, data::make(recorded_mlir), file) {
  std::string text = recorded(file);
  const std::size_t bytes = text.size();
  const std::size_t taken = bytes + most_while([&] { read_stablehlo(std::move(text)); });
  BOOST_TEST(taken <= 6 * bytes);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace aoizora::ir
