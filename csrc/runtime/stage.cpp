#include "runtime/stage.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/error.h"

namespace tidemill {

namespace {

// In front of the rows of a step. Stages have the same byte order: they are of the same instruction set.
struct Head {
  int64_t step, count, width;
};

constexpr int64_t kSendFloats = int64_t{256} << 10;  // copied together and sent at once
#ifdef MSG_NOSIGNAL
constexpr int kSendFlags = MSG_NOSIGNAL;
#else
constexpr int kSendFlags = 0;
#endif

int duplicate(int descriptor) {
  const int copy = dup(descriptor);
  if (copy < 0) throw Error(ErrorKind::Resource, "no file descriptor is left for the model's stages");
  return copy;
}

void await(int descriptor, short events) {
  pollfd polled{descriptor, events, 0};
  while (poll(&polled, 1, -1) < 0 && errno == EINTR) {}
}

}  // namespace

Stage::Stage(int from, int to, int index, int stages) : index_(index), stages_(stages) {
  if (stages < 2 || index < 0 || index >= stages) throw internal_error("no such stage");
  from_ = duplicate(from);
  try {
    to_ = duplicate(to);
  } catch (...) {
    close(from_);
    throw;
  }
}

Stage::~Stage() {
  fail();
  close(from_);
  close(to_);
}

void Stage::fail() {
  failed_.store(true);
  shutdown(from_, SHUT_RDWR);  // wakes whoever waits at either end
  shutdown(to_, SHUT_RDWR);
}

void Stage::throw_failed() {
  fail();  // the other stages no longer compute the same
  throw Error(ErrorKind::Unavailable,
              "one of the processes that compute this model together has ended or does not answer");
}

void Stage::write(const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    if (failed_.load()) throw_failed();
    const ssize_t sent = ::send(to_, at, bytes, kSendFlags);
    if (sent > 0) {
      at += sent;
      bytes -= static_cast<size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      await(to_, POLLOUT);
    } else if (errno != EINTR) {
      throw_failed();
    }
  }
}

void Stage::read(void* data, size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    if (failed_.load()) throw_failed();
    const ssize_t got = recv(from_, at, bytes, 0);
    if (got > 0) {
      at += got;
      bytes -= static_cast<size_t>(got);
    } else if (got == 0) {
      throw_failed();
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      await(from_, POLLIN);
    } else if (errno != EINTR) {
      throw_failed();
    }
  }
}

void Stage::send(int64_t step, int64_t count, int64_t width,
                 const std::function<const float*(int64_t)>& row) {
  const Head head{step, count, width};
  write(&head, sizeof head);
  const int64_t most = std::max<int64_t>(1, kSendFloats / width);
  for (int64_t first = 0; first < count; first += most) {
    const int64_t rows = std::min(most, count - first);
    rows_.resize(static_cast<size_t>(rows * width));
    for (int64_t i = 0; i < rows; ++i) {
      std::memcpy(rows_.data() + i * width, row(first + i), static_cast<size_t>(width) * sizeof(float));
    }
    write(rows_.data(), rows_.size() * sizeof(float));
  }
}

void Stage::receive(int64_t step, int64_t count, int64_t width,
                    const std::function<float*(int64_t)>& row) {
  Head head{};
  read(&head, sizeof head);
  if (head.step != step || head.count != count || head.width != width) {
    fail();
    throw internal_error("the model's stages compute different steps");
  }
  for (int64_t i = 0; i < count; ++i) read(row(i), static_cast<size_t>(width) * sizeof(float));
}

bool Stage::ready(int milliseconds) const {
  pollfd polled{from_, POLLIN, 0};
  return poll(&polled, 1, milliseconds) != 0;
}

}  // namespace tidemill
