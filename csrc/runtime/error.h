// The one exception type the core throws deliberately; the bindings convert it to TidemillError.
#pragma once
#include <stdexcept>
#include <string>
#include <utility>

namespace tidemill {

// The kinds of base/errors.py that native code can raise.
enum class ErrorKind { Internal, Resource, Unsupported, ModelFile, Config, Unavailable };

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, std::string param = "")
      : std::runtime_error(message), kind_(kind), param_(std::move(param)) {}
  ErrorKind kind() const { return kind_; }
  const std::string& param() const { return param_; }  // empty: not about a single field

 private:
  ErrorKind kind_;
  std::string param_;
};

inline Error internal_error(const std::string& message, std::string param = "") {
  return Error(ErrorKind::Internal, message, std::move(param));
}

inline Error closed_error() {
  return Error(ErrorKind::Unavailable, "the native backend is closed");
}

}  // namespace tidemill
