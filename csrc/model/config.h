// A model as described by the bindings: sizes, and ids of its weights (config_fields.inl).
#pragma once
#include <cstdint>
#include <vector>

namespace tidemill {

#define STRUCT(name) struct name {
#define DERIVED(name, base) struct name : base {
#define FIELD(name, default_value, ...) __VA_ARGS__ name = default_value;
#define END };
#include "model/config_fields.inl"
#undef STRUCT
#undef DERIVED
#undef FIELD
#undef END

}  // namespace tidemill
