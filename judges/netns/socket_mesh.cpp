// Moves the messages of collectives over real sockets, one network namespace a chip. Standard input:
//   {"namespaces": [name, ...], "addresses": [address, ...], "slice": the `slice` of a schedule,
//    "cases": [[collective, ...], ...]}.
// Standard output: {"seconds": [one a case, ...]}. The collectives of a case start together. A case is repeated until
// its three quickest runs agree: what else the machine does only makes a run slower. Needs root (setns).
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "expansion/expand.h"
#include "expansion/read.h"

namespace {

using nlohmann::json;

constexpr int first_port = 20000;
constexpr int buffer_bytes = 64 * 1024;  // the kernel doubles it: a window of 128 kB
constexpr double longest_run_seconds = 60;
constexpr double agreement = 0.02;
constexpr int most_runs = 12;
constexpr double most_bytes = 2e9;  // of one repeat

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

/// A file descriptor that closes itself.
class Handle {
 public:
  explicit Handle(int value = -1) : value_(value) {}
  Handle(Handle&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Handle() {
    if (value_ >= 0) close(value_);
  }
  int get() const { return value_; }

 private:
  int value_;
};

struct Chip {
  std::string space;
  sockaddr_in address{};
  Handle listener;
};

Handle socket_in(const std::string& space) {
  const Handle where(open(("/run/netns/" + space).c_str(), O_RDONLY | O_CLOEXEC));
  if (where.get() < 0 || setns(where.get(), CLONE_NEWNET) != 0) fail("cannot enter namespace " + space);
  Handle result(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (result.get() < 0) fail("no socket");
  const int one = 1;
  setsockopt(result.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  setsockopt(result.get(), SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes);
  setsockopt(result.get(), SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
  setsockopt(result.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(result.get(), IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
  return result;
}

std::vector<Chip> read_chips(const json& wanted) {
  std::vector<Chip> chips;
  for (std::size_t k = 0; k < wanted.at("namespaces").size(); ++k) {
    Chip& chip = chips.emplace_back();
    wanted["namespaces"][k].get_to(chip.space);
    chip.address.sin_family = AF_INET;
    chip.address.sin_port = htons(first_port);
    if (inet_pton(AF_INET, wanted.at("addresses").at(k).get<std::string>().c_str(), &chip.address.sin_addr) != 1)
      throw std::runtime_error("not an address");
    chip.listener = socket_in(chip.space);
    if (bind(chip.listener.get(), reinterpret_cast<const sockaddr*>(&chip.address), sizeof chip.address) != 0 ||
        listen(chip.listener.get(), 1024) != 0)
      fail("cannot listen in " + chip.space);
  }
  return chips;
}

/// One lane: a connection, and how far its messages are.
struct Lane {
  Handle sends;
  Handle receives;
  std::vector<int> messages;
  std::size_t sending = 0;
  std::int64_t left_to_send = 0;
  std::size_t receiving = 0;
  std::int64_t left_to_receive = 0;
  bool writable_wanted = false;
};

/// The messages of a case, and the connections they take.
class Traffic {
 public:
  Traffic(const std::vector<Chip>& chips, const judge::Plan& plan) : plan_(plan), poll_(epoll_create1(EPOLL_CLOEXEC)) {
    waited_by_.resize(plan.messages.size());
    lane_of_.resize(plan.messages.size());
    double bytes = 0;
    for (std::size_t k = 0; k < plan.messages.size(); ++k) {
      bytes += plan.messages[k].bytes;
      bytes_.push_back(std::max<std::int64_t>(1, static_cast<std::int64_t>(plan.messages[k].bytes)));
      for (const int before : plan.messages[k].waits) waited_by_[before].push_back(static_cast<int>(k));
    }
    if (!(bytes <= most_bytes)) throw std::runtime_error("more than 2 GB in one case");
    for (const std::vector<int>& messages : plan.lanes) {
      Lane& lane = lanes_.emplace_back();
      lane.messages = messages;
      for (const int message : messages) lane_of_[message] = lanes_.size() - 1;
      connect_lane(chips, plan.messages[messages.front()], lane);
    }
    for (std::size_t k = 0; k < lanes_.size(); ++k) {
      watch(lanes_[k].receives.get(), EPOLL_CTL_ADD, EPOLLIN, k * 2);
      watch(lanes_[k].sends.get(), EPOLL_CTL_ADD, 0, k * 2 + 1);
    }
  }

  double run() {
    using clock = std::chrono::steady_clock;
    missing_.clear();
    for (const judge::Message& message : plan_.messages) missing_.push_back(message.waits.size());
    arrived_ = 0;
    for (Lane& lane : lanes_) {
      lane.sending = lane.receiving = 0;
      lane.left_to_send = lane.left_to_receive = bytes_[lane.messages.front()];
    }
    const auto begin = clock::now();
    const auto seconds = [&] { return std::chrono::duration<double>(clock::now() - begin).count(); };
    for (std::size_t k = 0; k < lanes_.size(); ++k) send(k);
    epoll_event events[256];
    while (arrived_ < plan_.messages.size()) {
      const int count = epoll_wait(poll_.get(), events, 256, 1000);
      if (count < 0 && errno != EINTR) fail("epoll_wait");
      for (int k = 0; k < count; ++k) {
        const std::size_t lane = events[k].data.u64 / 2;
        if (events[k].data.u64 % 2 == 0)
          receive(lane);
        else
          send(lane);
      }
      if (seconds() > longest_run_seconds) throw std::runtime_error("the messages of a case took more than a minute");
    }
    return seconds();
  }

 private:
  static void connect_lane(const std::vector<Chip>& chips, const judge::Message& message, Lane& lane) {
    const Chip& from = chips.at(message.from);
    const Chip& to = chips.at(message.to);
    lane.sends = socket_in(from.space);
    if (connect(lane.sends.get(), reinterpret_cast<const sockaddr*>(&to.address), sizeof to.address) != 0)
      fail("cannot connect " + from.space + " to " + to.space);
    lane.receives = Handle(accept4(to.listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (lane.receives.get() < 0) fail("cannot accept in " + to.space);
    for (const int socket : {lane.sends.get(), lane.receives.get()}) fcntl(socket, F_SETFL, O_NONBLOCK);
  }

  void watch(int socket, int operation, std::uint32_t events, std::uint64_t tag) const {
    epoll_event event{};
    event.events = events;
    event.data.u64 = tag;
    if (epoll_ctl(poll_.get(), operation, socket, &event) != 0) fail("epoll_ctl");
  }

  void send(std::size_t number) {
    static const std::vector<char> zeros(256 * 1024);
    Lane& lane = lanes_[number];
    bool full = false;
    while (!full && lane.sending < lane.messages.size() && missing_[lane.messages[lane.sending]] == 0) {
      const auto size = std::min<std::int64_t>(lane.left_to_send, static_cast<std::int64_t>(zeros.size()));
      const ssize_t sent = ::send(lane.sends.get(), zeros.data(), static_cast<std::size_t>(size), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) fail("send");
      full = sent < 0 && errno == EAGAIN;
      lane.left_to_send -= std::max<ssize_t>(sent, 0);
      if (lane.left_to_send == 0 && ++lane.sending < lane.messages.size())
        lane.left_to_send = bytes_[lane.messages[lane.sending]];
    }
    if (full == lane.writable_wanted) return;
    lane.writable_wanted = full;
    watch(lane.sends.get(), EPOLL_CTL_MOD, full ? EPOLLOUT : 0u, number * 2 + 1);
  }

  void receive(std::size_t number) {
    static std::vector<char> bin(256 * 1024);
    Lane& lane = lanes_[number];
    const ssize_t count = recv(lane.receives.get(), bin.data(), bin.size(), 0);
    if (count == 0) throw std::runtime_error("a connection closed");
    if (count < 0 && errno != EAGAIN && errno != EINTR) fail("recv");
    for (std::int64_t left = std::max<ssize_t>(count, 0); left > 0;) {
      if (lane.receiving == lane.messages.size()) throw std::runtime_error("more arrived than was sent");
      const std::int64_t taken = std::min(left, lane.left_to_receive);
      left -= taken;
      lane.left_to_receive -= taken;
      if (lane.left_to_receive > 0) continue;
      const int message = lane.messages[lane.receiving];
      if (++lane.receiving < lane.messages.size()) lane.left_to_receive = bytes_[lane.messages[lane.receiving]];
      ++arrived_;
      for (const int next : waited_by_[message])
        if (--missing_[next] == 0) send(lane_of_[next]);
    }
  }

  const judge::Plan& plan_;
  Handle poll_;
  std::vector<Lane> lanes_;
  std::vector<std::size_t> lane_of_;
  std::vector<std::int64_t> bytes_;
  std::vector<std::vector<int>> waited_by_;
  std::vector<std::size_t> missing_;
  std::size_t arrived_ = 0;
};

/// The middle one of the three quickest runs. The first run is discarded: windows still grow in it.
double settled_seconds(Traffic& traffic) {
  traffic.run();
  std::vector<double> seconds;
  for (int run = 0; run < most_runs; ++run) {
    seconds.push_back(traffic.run());
    std::ranges::sort(seconds);
    if (seconds.size() >= 3 && seconds[2] <= seconds[0] * (1 + agreement)) break;
  }
  return seconds[1];
}

json time_cases(const json& wanted) {
  const judge::Mesh mesh = judge::read_mesh(wanted.at("slice"));
  const std::vector<Chip> chips = read_chips(wanted);
  json results = json::array();
  for (const json& one : wanted.at("cases")) {
    judge::Plan plan;
    for (const json& collective : one) judge::append(plan, judge::expand(judge::read_collective(collective), mesh));
    Traffic traffic(chips, plan);
    results.push_back(settled_seconds(traffic));
  }
  return {{"seconds", std::move(results)}};
}

}  // namespace

int main() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // no traffic once the run is gone that made the mesh
  try {
    std::cout << time_cases(json::parse(std::string{std::istreambuf_iterator<char>(std::cin), {}})).dump() << "\n";
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "socket_mesh: " << error.what() << "\n";
    return 2;
  }
}
