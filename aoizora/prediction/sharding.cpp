#include "aoizora/prediction/sharding.h"

#include <string>

#include "aoizora/errors.h"

namespace aoizora::prediction {
namespace {

/// A cursor over one attribute. Errors name what was expected, where, and quote the attribute.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  [[noreturn]] void fail(const std::string& expected) const {
    throw ParseError("sharding attribute: expected " + expected + " in '" + std::string(text_.substr(0, 200)) + "'", 1,
                     static_cast<std::int64_t>(at_) + 1);
  }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }
  bool take(std::string_view token) {
    skip_space();
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }
  void need(std::string_view token) {
    if (!take(token)) fail("'" + std::string(token) + "'");
  }
  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  std::string_view quoted() {
    need("\"");
    const std::size_t end = text_.find('"', at_);
    if (end == std::string_view::npos) fail("a closing quote");
    const std::string_view value = text_.substr(at_, end - at_);
    at_ = end + 1;
    return value;
  }
  std::string_view symbol() {
    const std::size_t begin = at_;
    if (at_ < text_.size() && text_[at_] == '"') return quoted();
    while (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '>' && text_[at_] != ' ') ++at_;
    if (at_ == begin) fail("the name of a mesh");
    return text_.substr(begin, at_ - begin);
  }
  std::int64_t number() {
    skip_space();
    const std::size_t begin = at_;
    std::int64_t value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      if (value > (std::int64_t{1} << 40)) fail("a size below 2^40");
      value = value * 10 + (text_[at_++] - '0');
    }
    if (at_ == begin) fail("a number");
    return value;
  }
  /// The balanced text between here and the bracket that closes the one just taken.
  std::string_view balanced(char open, char close) {
    const std::size_t begin = at_;
    for (int depth = 1; at_ < text_.size(); ++at_) {
      if (text_[at_] == open) ++depth;
      if (text_[at_] == close && --depth == 0) return text_.substr(begin, at_++ - begin);
    }
    fail(std::string("'") + close + "'");
  }
  void end() {
    if (peek() != '\0') fail("the end of the attribute");
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

AxisRef read_axis(Cursor& in) {
  AxisRef axis{.name = in.quoted()};
  if (in.take(":")) {
    in.need("(");
    axis.pre = in.number();
    in.need(")");
    axis.size = in.number();
    if (axis.pre < 1 || axis.size < 1) in.fail("sub-axis sizes of 1 or more");
  }
  return axis;
}

std::vector<AxisRef> read_axes(Cursor& in) {
  in.need("{");
  std::vector<AxisRef> axes;
  while (!in.take("}")) {
    if (!axes.empty()) in.need(",");
    axes.push_back(read_axis(in));
  }
  return axes;
}

DimSharding read_dim(Cursor& in) {
  in.need("{");
  DimSharding dim;
  bool first = true;
  while (!in.take("}")) {
    if (!first) in.need(",");
    first = false;
    if (in.take("?")) {
      dim.open = true;
      in.need("}");
      break;
    }
    dim.axes.push_back(read_axis(in));
  }
  if (in.take("p")) dim.priority = in.number();
  return dim;
}

/// "<@mesh, [..], replicated={..}>"
TensorSharding read_one(Cursor& in) {
  TensorSharding result;
  in.need("<");
  if (in.take("@")) {
    result.mesh = in.symbol();
  } else {
    in.need("mesh<");
    result.mesh = in.balanced('<', '>');
    result.inlined_mesh = true;
  }
  in.need(",");
  in.need("[");
  bool first = true;
  while (!in.take("]")) {
    if (!first) in.need(",");
    first = false;
    result.dims.push_back(read_dim(in));
  }
  while (in.take(",")) {
    if (in.take("replicated=") || in.take("replicated =")) {
      result.replicated = read_axes(in);
    } else if (in.take("unreduced=") || in.take("unreduced =")) {
      result.unreduced = read_axes(in);
    } else {
      in.fail("'replicated=' or 'unreduced='");
    }
  }
  in.need(">");
  return result;
}

}  // namespace

TensorSharding read_sharding(std::string_view text) {
  Cursor in(text);
  in.take("#sdy.sharding");
  TensorSharding result = read_one(in);
  in.end();
  return result;
}

std::vector<TensorSharding> read_sharding_per_value(std::string_view text) {
  Cursor in(text);
  in.take("#sdy.sharding_per_value");
  in.need("<");
  in.need("[");
  std::vector<TensorSharding> result;
  while (!in.take("]")) {
    if (!result.empty()) in.need(",");
    result.push_back(read_one(in));
  }
  in.need(">");
  in.end();
  return result;
}

std::vector<NamedAxis> read_mesh(std::string_view text) {
  Cursor in(text);
  in.take("#sdy.mesh");
  const bool bracketed = in.take("<");
  std::vector<NamedAxis> axes;
  in.need("[");
  while (!in.take("]")) {
    if (!axes.empty()) in.need(",");
    NamedAxis axis{.name = in.quoted()};
    in.need("=");
    axis.size = in.number();
    if (axis.size < 1) in.fail("an axis of size 1 or more");
    axes.push_back(axis);
  }
  if (in.take(",")) {
    in.need("device_ids=");
    in.need("[");
    in.balanced('[', ']');
  }
  if (bracketed) in.need(">");
  in.end();
  return axes;
}

std::vector<std::string_view> read_manual_axes(std::string_view text) {
  Cursor in(text);
  in.take("#sdy<");
  in.need("manual_axes{");
  std::vector<std::string_view> names;
  while (!in.take("}")) {
    if (!names.empty()) in.need(",");
    names.push_back(in.quoted());
  }
  return names;
}

}  // namespace aoizora::prediction
