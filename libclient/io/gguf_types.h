// SPDX-License-Identifier: Apache-2.0
// Element types of GGUF files: what Terrace has a type for, and blocks, which stay bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "terrace/tensor.h"

namespace terrace {

struct GgufType {
  uint32_t number = 0;
  std::string_view name;
  DType dtype = DType::u8;      // u8: of blocks
  uint32_t block_elements = 1;  // 1: no blocks
  uint32_t block_bytes = 1;
};

// Nothing for numbers that are no type of files.
inline std::optional<GgufType> gguf_type(uint32_t number) {
  constexpr GgufType types[] = {
      {0, "F32", DType::f32, 1, 4},        {1, "F16", DType::f16, 1, 2},
      {2, "Q4_0", DType::u8, 32, 18},      {3, "Q4_1", DType::u8, 32, 20},
      {6, "Q5_0", DType::u8, 32, 22},      {7, "Q5_1", DType::u8, 32, 24},
      {8, "Q8_0", DType::u8, 32, 34},      {10, "Q2_K", DType::u8, 256, 84},
      {11, "Q3_K", DType::u8, 256, 110},   {12, "Q4_K", DType::u8, 256, 144},
      {13, "Q5_K", DType::u8, 256, 176},   {14, "Q6_K", DType::u8, 256, 210},
      {15, "Q8_K", DType::u8, 256, 292},   {16, "IQ2_XXS", DType::u8, 256, 66},
      {17, "IQ2_XS", DType::u8, 256, 74},  {18, "IQ3_XXS", DType::u8, 256, 98},
      {19, "IQ1_S", DType::u8, 256, 50},   {20, "IQ4_NL", DType::u8, 32, 18},
      {21, "IQ3_S", DType::u8, 256, 110},  {22, "IQ2_S", DType::u8, 256, 82},
      {23, "IQ4_XS", DType::u8, 256, 136}, {24, "I8", DType::i8, 1, 1},
      {25, "I16", DType::i16, 1, 2},       {26, "I32", DType::i32, 1, 4},
      {27, "I64", DType::i64, 1, 8},       {28, "F64", DType::f64, 1, 8},
      {29, "IQ1_M", DType::u8, 256, 56},   {30, "BF16", DType::bf16, 1, 2},
      {34, "TQ1_0", DType::u8, 256, 54},   {35, "TQ2_0", DType::u8, 256, 66},
      {39, "MXFP4", DType::u8, 32, 17},    {40, "NVFP4", DType::u8, 64, 36},
      {41, "Q1_0", DType::u8, 128, 18},
  };
  for (const GgufType& type : types)
    if (type.number == number) return type;
  return std::nullopt;
}

}  // namespace terrace
