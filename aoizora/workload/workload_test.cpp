#include "aoizora/workload/workload.h"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <limits>
#include <set>

#include "aoizora/errors.h"
#include "aoizora/workload/wan.h"

namespace aoizora::workload {
namespace {

namespace data = boost::unit_test::data;

double parameters(const Workload& workload) {
  double sum = 0;
  for (const Tensor& tensor : workload.weights) {
    double elements = static_cast<double>(tensor.repeat);
    for (const Dim& dim : tensor.dims) elements *= static_cast<double>(dim.size);
    sum += elements;
  }
  return sum;
}

Request video(std::int64_t height, std::int64_t width, std::int64_t frames) {
  Request request;
  request.height = height;
  request.width = width;
  request.frames = frames;
  return request;
}

// What `f` says when it throws E; empty where it does not.
template <typename E, typename F>
std::string message(F f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct Shape {
  std::int64_t height, width, frames, tokens;
  friend std::ostream& operator<<(std::ostream& out, const Shape& s) {
    return out << s.height << 'x' << s.width << 'x' << s.frames;
  }
};
const std::vector<Shape> shapes{{480, 832, 21, 9360},   {480, 832, 41, 17160},  {480, 832, 81, 32760},
                                {720, 1280, 21, 21600}, {720, 1280, 41, 39600}, {720, 1280, 81, 75600},
                                {16, 16, 1, 1}};

// tokens = latent frames x (height / 16) x (width / 16), latent frames = (frames - 1) / 4 + 1.
BOOST_DATA_TEST_CASE(Tokens_FollowTheVideo, data::make(shapes), shape) {
  const Workload workload = make_workload(video(shape.height, shape.width, shape.frames));
  BOOST_TEST(workload.tokens == shape.tokens);
  BOOST_TEST(workload.tokens == ((shape.frames - 1) / 4 + 1) * (shape.height / 16) * (shape.width / 16));
  BOOST_TEST(workload.find_axis("sequence")->size == shape.tokens);
}

// The published checkpoints hold 14.3e9 and 1.42e9 parameters.
BOOST_AUTO_TEST_CASE(Parameters_MatchTheCheckpoints) {
  Request request;
  BOOST_TEST(parameters(make_workload(request)) == 14.3e9, boost::test_tools::tolerance(0.01));
  request.model = "wan2.1-1.3b";
  BOOST_TEST(parameters(make_workload(request)) == 1.42e9, boost::test_tools::tolerance(0.01));
}

// FLOPs of everything but attention's scores are two per weight element and row it multiplies.
BOOST_AUTO_TEST_CASE(Flops_AreTwoPerWeightAndRow) {
  WanConfig config;
  config.num_layers = 1;
  const Workload workload = wan_workload(config, 3, 2, 4, 6, DType::f32);
  const double s = static_cast<double>(workload.tokens), l = static_cast<double>(config.text_length);
  double expected = 0;
  for (const Tensor& tensor : workload.weights) {
    if (!contains(tensor.name, ".weight") || tensor.dims.size() != 2) continue;
    const bool on_text =
        contains(tensor.name, "attn2.to_k") || contains(tensor.name, "attn2.to_v") || contains(tensor.name, "text_");
    const bool on_time = contains(tensor.name, "time_");
    expected += 2 * 3 * static_cast<double>(tensor.dims[0].size * tensor.dims[1].size) *
                (on_text   ? l
                 : on_time ? 1
                           : s);
  }
  for (const Attention& a : workload.attentions) {
    expected += 4 * static_cast<double>(a.batch * a.heads * a.head_dim * a.queries * a.keys);
  }
  BOOST_TEST(workload.total_flops == expected, boost::test_tools::tolerance(1e-12));
}

BOOST_AUTO_TEST_CASE(Flops_AreLinearInBatch) {
  Request request;
  const Workload one = make_workload(request);
  request.videos = 3;
  const Workload three = make_workload(request);
  BOOST_TEST(three.block_flops == 3 * one.block_flops, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(three.total_flops == 3 * one.total_flops, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(one.find_axis("batch")->size == 2);
  request.cfg = false;
  BOOST_TEST(make_workload(request).find_axis("batch")->size == 3);
}

BOOST_AUTO_TEST_CASE(Flops_GrowWithTheVideo) {
  double last = 0;
  for (const std::int64_t frames : {1, 5, 21, 41, 81, 121}) {
    const Workload workload = make_workload(video(480, 832, frames));
    BOOST_TEST(workload.block_flops > last);
    BOOST_TEST(workload.total_flops > workload.block_flops * static_cast<double>(workload.layers));
    last = workload.block_flops;
  }
}

// Every dimension with an axis is a multiple of the axis' size, so a factor that divides the axis divides the tensor.
BOOST_AUTO_TEST_CASE(Table_IsConsistent) {
  for (const std::string& model : model_names()) {
    Request request;
    request.model = model;
    const Workload workload = make_workload(request);
    BOOST_TEST(workload.name == model);
    for (const auto* tensors : {&workload.weights, &workload.activations}) {
      std::set<std::string> names;
      for (const Tensor& tensor : *tensors) {
        BOOST_TEST(names.insert(tensor.name).second, tensor.name);
        std::set<std::string> axes;
        for (const Dim& dim : tensor.dims) {
          if (dim.axis.empty()) continue;
          BOOST_REQUIRE_MESSAGE(workload.find_axis(dim.axis) != nullptr, dim.axis);
          BOOST_TEST(dim.size % workload.find_axis(dim.axis)->size == 0, tensor.name);
          BOOST_TEST(axes.insert(dim.axis).second, tensor.name);
        }
      }
    }
    for (const auto& [axis, mesh_axes] : workload.stock_rules) BOOST_TEST(workload.find_axis(axis) != nullptr, axis);
  }
}

BOOST_AUTO_TEST_CASE(Workload_RoundTrips) {
  for (const std::string& model : model_names()) {
    Request request;
    request.model = model;
    const Workload workload = make_workload(request);
    const Workload again = read_workload(to_json(workload));
    BOOST_TEST(to_json(again) == to_json(workload));
    BOOST_TEST((again.axes == workload.axes && again.weights == workload.weights &&
                again.activations == workload.activations));
    BOOST_TEST((again.attentions == workload.attentions && again.stock_rules == workload.stock_rules));
    BOOST_TEST((again.block_flops == workload.block_flops && again.total_flops == workload.total_flops));
    BOOST_TEST((again.layers == workload.layers && again.tokens == workload.tokens && again.name == workload.name));
  }
}

BOOST_AUTO_TEST_CASE(Workload_AWholeProgramIsOneBlock) {
  Workload workload = make_workload({});
  workload.whole_program = true;
  BOOST_CHECK_THROW(read_workload(to_json(workload)), InvalidRequest);
  workload.layers = 1;
  BOOST_TEST(read_workload(to_json(workload)).whole_program);
}

BOOST_AUTO_TEST_CASE(Request_RoundTripsAndTakesDefaults) {
  Request request = video(720, 1280, 81);
  request.model = "wan2.1-1.3b";
  request.videos = 2;
  request.cfg = false;
  request.steps = 30;
  request.dtype = DType::f32;
  request.reserved_hbm_bytes = 1 << 30;
  BOOST_TEST((read_request(to_json(request)) == request));
  BOOST_TEST((read_request("{}") == Request{}));
}

BOOST_AUTO_TEST_CASE(Request_SaysWhatIsAllowed) {
  const auto plan = [](Request request) { return message<InvalidRequest>([&] { make_workload(request); }); };
  Request request;
  request.model = "wan2.1-14B";
  BOOST_TEST(contains(plan(request), "did you mean \"wan2.1-14b\""));
  request.model = "wan1.3b";
  BOOST_TEST(contains(plan(request), "did you mean \"wan2.1-1.3b\""));
  request.model = std::string(1 << 20, 'x');
  BOOST_TEST(contains(plan(request), "unknown model"));
  BOOST_TEST(contains(plan(video(480, 832, 80)), "nearest 77 or 81"));
  BOOST_TEST(contains(plan(video(480, 832, 0)), "nearest 1"));
  BOOST_TEST(contains(plan(video(480, 832, -7)), "nearest 1"));
  BOOST_TEST(contains(plan(video(485, 832, 21)), "nearest 480 or 496"));
  BOOST_TEST(contains(plan(video(480, 8, 21)), "nearest 16"));
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  BOOST_TEST(contains(plan(video(huge, 832, 21)), "multiple of 16"));
  BOOST_TEST(plan(video(std::int64_t{1} << 40, std::int64_t{1} << 40, 21)) != "");
  BOOST_TEST(plan(video(480, 832, huge)) != "");
  Request many;
  many.videos = huge;
  BOOST_TEST(contains(plan(many), "videos"));
  many = Request{};
  many.dtype = DType::s32;
  BOOST_TEST(contains(plan(many), "bf16, f16, f32"));
}

BOOST_AUTO_TEST_CASE(WanConfig_RefusesWhatThePatchDoesNotDivide) {
  BOOST_CHECK_THROW(wan_workload(WanConfig{}, 1, 2, 5, 6, DType::f32), InvalidRequest);
  WanConfig config = read_wan_config(R"({"num_attention_heads": 4, "attention_head_dim": 16, "patch_t": 2})");
  BOOST_TEST(config.embed() == 64);
  BOOST_CHECK_THROW(wan_workload(config, 1, 3, 4, 6, DType::f32), InvalidRequest);
  BOOST_CHECK_THROW(read_wan_config(R"({"heads": 4})"), InvalidRequest);
  config.attention_head_dim = 15;
  BOOST_CHECK_THROW(wan_workload(config, 1, 2, 4, 6, DType::f32), InvalidRequest);
}

BOOST_AUTO_TEST_CASE(WanConfig_RoundTrips) {
  for (const std::string& model : model_names()) {
    const std::string text = to_json(wan_config(model));
    BOOST_TEST(to_json(read_wan_config(text)) == text);
  }
}

// The latents' volume over the patch's is the number of tokens.
BOOST_DATA_TEST_CASE(LatentShape_HoldsTheTokens, data::make(shapes), shape) {
  const Request request = video(shape.height, shape.width, shape.frames);
  const auto [batch, channels, frames, height, width] = latent_shape(request);
  const WanConfig config = wan_config(request.model);
  BOOST_TEST(batch == 2);
  BOOST_TEST(channels == config.in_channels);
  BOOST_TEST(frames * height * width == shape.tokens * config.patch_t * config.patch_h * config.patch_w);
}

// No text crashes the readers: each is read or refused with one of our errors.
BOOST_AUTO_TEST_CASE(Readers_RefuseBrokenText) {
  BOOST_TEST(contains(message<ParseError>([] { read_request("{\n  \"model\": }"); }), "line 2, column 1"));
  BOOST_CHECK_THROW(read_request(""), ParseError);
  BOOST_CHECK_THROW(read_request("{} {}"), ParseError);
  BOOST_CHECK_THROW(read_request(std::string(100000, '[')), ParseError);
  for (const char* text :
       {"[]", "{\"Model\": 1}", "{\"frames\": 21.0}", "{\"frames\": \"21\"}", "{\"frames\": 0}", "{\"cfg\": 1}",
        "{\"dtype\": \"float\"}", "{\"steps\": 18446744073709551615}", "{\"reserved_hbm_bytes\": -1}"}) {
    BOOST_CHECK_THROW(read_request(text), InvalidRequest);
  }
  const std::string good = to_json(make_workload(Request{}));
  for (std::size_t cut = 0; cut < good.size(); cut += 97)
    BOOST_CHECK_THROW(read_workload(good.substr(0, cut)), ParseError);
  const auto broken = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    BOOST_REQUIRE_MESSAGE(at != std::string::npos, from);
    text.replace(at, from.size(), to);
    BOOST_CHECK_THROW(read_workload(text), InvalidRequest);
  };
  broken("\"axis\":\"embed\"", "\"axis\":\"embedding\"");
  broken("\"size\":5120,\"axis\":\"embed\"", "\"size\":5121,\"axis\":\"embed\"");
  broken("\"kind\":\"weight\"", "\"kind\":\"heavy\"");
  broken("\"repeat\":40", "\"repeat\":9223372036854775807");
  broken("\"tokens\":9360", "\"tokens\":-1");
  broken("\"name\":\"sequence\"", "\"name\":\"batch\"");
  broken("\"layers\":40", "\"layers\":40,\"depth\":40");
}

}  // namespace
}  // namespace aoizora::workload
