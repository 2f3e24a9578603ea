//! The operations on as many lanes as a panel has rows.

/// The panel operations on 8 lanes.
macro_rules! eight_lanes {
    ($isa:ident) => {
        const PANEL_ROWS: usize = 8;
        const WIDE_UNSIGNED: bool = $isa::WIDE_UNSIGNED;
        type Lanes = __m256;
        type LaneInts = __m256i;

        #[inline(always)]
        fn lanes_splat(self, value: f32) -> __m256 {
            // SAFETY: `self` proves AVX.
            unsafe { _mm256_set1_ps(value) }
        }

        #[inline(always)]
        fn lanes_load(self, values: &[f32]) -> __m256 {
            let values: &[f32; 8] = values.first_chunk().expect("a lane for each row");
            // SAFETY: reads the 8 borrowed floats, unaligned.
            unsafe { _mm256_loadu_ps(values.as_ptr()) }
        }

        #[inline(always)]
        fn lanes_store(self, lanes: __m256, out: &mut [f32]) {
            let out: &mut [f32; 8] = out.first_chunk_mut().expect("a lane for each row");
            // SAFETY: writes the 8 borrowed floats, unaligned.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), lanes) }
        }

        #[inline(always)]
        fn lanes_multiply_add(self, sum: __m256, a: __m256, b: __m256) -> __m256 {
            // SAFETY: `self` proves FMA.
            unsafe { _mm256_fmadd_ps(a, b, sum) }
        }

        #[inline(always)]
        fn lanes_multiply(self, a: __m256, b: __m256) -> __m256 {
            // SAFETY: `self` proves AVX.
            unsafe { _mm256_mul_ps(a, b) }
        }

        #[inline(always)]
        fn lanes_from_ints(self, ints: __m256i) -> __m256 {
            // SAFETY: `self` proves AVX.
            unsafe { _mm256_cvtepi32_ps(ints) }
        }

        #[inline(always)]
        fn lane_ints_splat(self, value: i32) -> __m256i {
            // SAFETY: `self` proves AVX.
            unsafe { _mm256_set1_epi32(value) }
        }

        #[inline(always)]
        fn quad_dot(self, sum: __m256i, quads: &[u8], other: &[u8; 4]) -> __m256i {
            let other = self.ints_splat(i32::from_le_bytes(*other));
            self.add_products(sum, self.quads_load(quads), other)
        }

        #[inline(always)]
        fn quad_dot_signed(self, sum: __m256i, quads: &[u8], other: &[u8; 4]) -> __m256i {
            let other = self.ints_splat(i32::from_le_bytes(*other));
            let quads = self.quads_load(quads);
            // SAFETY: `self` proves AVX2.
            let (magnitude, signed) = unsafe { (_mm256_abs_epi8(quads), _mm256_sign_epi8(other, quads)) };
            self.add_products(sum, magnitude, signed)
        }

        #[inline(always)]
        fn spread_bits(self, bits: u32, value: u8) -> __m256i {
            // SAFETY: `self` proves AVX2.
            unsafe {
                let byte_of_lane = _mm256_setr_epi64x(
                    0,
                    0x0101_0101_0101_0101,
                    0x0202_0202_0202_0202,
                    0x0303_0303_0303_0303,
                );
                let bit_of_lane = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
                let spread = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), byte_of_lane);
                let set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit_of_lane), bit_of_lane);
                _mm256_and_si256(set, _mm256_set1_epi8(value as i8))
            }
        }

        type Quads = __m256i;

        #[inline(always)]
        fn quads_load(self, bytes: &[u8]) -> __m256i {
            self.load(bytes.first_chunk().expect("a quad for each lane"))
        }

        #[inline(always)]
        fn quads_nibbles(self, quads: __m256i) -> [__m256i; 2] {
            [self.shift_mask(quads, 0, 15), self.shift_mask(quads, 4, 15)]
        }

        #[inline(always)]
        fn quads_fifth_bit(self, quads: __m256i, plane: __m256i, bit: u8) -> __m256i {
            // SAFETY: `self` proves AVX2.
            unsafe {
                let bit = _mm256_set1_epi8(1i8 << bit);
                let set = _mm256_cmpeq_epi8(_mm256_and_si256(plane, bit), bit);
                _mm256_or_si256(quads, _mm256_and_si256(set, _mm256_set1_epi8(16)))
            }
        }

        #[inline(always)]
        fn quads_dot(self, sum: __m256i, quads: __m256i, other: &[u8; 4]) -> __m256i {
            self.add_products(sum, quads, self.ints_splat(i32::from_le_bytes(*other)))
        }

        #[inline(always)]
        fn lanes_add(self, a: __m256, b: __m256) -> __m256 {
            // SAFETY: `self` proves AVX.
            unsafe { _mm256_add_ps(a, b) }
        }

        #[inline(always)]
        fn lanes_larger(self, a: __m256, b: __m256) -> __m256 {
            // SAFETY: `self` proves AVX. The second operand is given where the first isn't above it.
            unsafe { _mm256_max_ps(a, b) }
        }

        #[inline(always)]
        fn lanes_where_above(self, a: __m256, b: __m256, value: __m256) -> __m256 {
            // SAFETY: `self` proves AVX.
            unsafe { _mm256_and_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(a, b), value) }
        }

        #[inline(always)]
        fn lanes_times_power(self, value: __m256, power: __m256) -> __m256 {
            // SAFETY: `self` proves AVX2.
            unsafe {
                let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(power));
                let one = _mm256_castps_si256(_mm256_set1_ps(1.0));
                _mm256_mul_ps(value, _mm256_castsi256_ps(_mm256_add_epi32(exponent, one)))
            }
        }

        #[inline(always)]
        fn lanes_of_halves(self, values: &[u16]) -> __m256 {
            self.load_halves(values.first_chunk().expect("a number for each lane"))
        }

        #[inline(always)]
        fn lanes_of_bytes(self, bytes: &[i8]) -> __m256 {
            let bytes: &[i8; 8] = bytes.first_chunk().expect("a number for each lane");
            self.floats_of_bytes(u64::from_le_bytes(bytes.map(|byte| byte as u8)))
        }
    };
}

/// The panel operations on 16 lanes.
macro_rules! sixteen_lanes {
    ($isa:ident) => {
        const PANEL_ROWS: usize = 16;
        const WIDE_UNSIGNED: bool = $isa::WIDE_UNSIGNED;
        type Lanes = __m512;
        type LaneInts = __m512i;

        #[inline(always)]
        fn lanes_splat(self, value: f32) -> __m512 {
            // SAFETY: `self` proves AVX-512 F.
            unsafe { _mm512_set1_ps(value) }
        }

        #[inline(always)]
        fn lanes_load(self, values: &[f32]) -> __m512 {
            let values: &[f32; 16] = values.first_chunk().expect("a lane for each row");
            // SAFETY: reads the 16 borrowed floats, unaligned.
            unsafe { _mm512_loadu_ps(values.as_ptr()) }
        }

        #[inline(always)]
        fn lanes_store(self, lanes: __m512, out: &mut [f32]) {
            let out: &mut [f32; 16] = out.first_chunk_mut().expect("a lane for each row");
            // SAFETY: writes the 16 borrowed floats, unaligned.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), lanes) }
        }

        #[inline(always)]
        fn lanes_multiply_add(self, sum: __m512, a: __m512, b: __m512) -> __m512 {
            // SAFETY: `self` proves AVX-512 F.
            unsafe { _mm512_fmadd_ps(a, b, sum) }
        }

        #[inline(always)]
        fn lanes_multiply(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: `self` proves AVX-512 F.
            unsafe { _mm512_mul_ps(a, b) }
        }

        #[inline(always)]
        fn lanes_from_ints(self, ints: __m512i) -> __m512 {
            // SAFETY: `self` proves AVX-512 F.
            unsafe { _mm512_cvtepi32_ps(ints) }
        }

        #[inline(always)]
        fn lane_ints_splat(self, value: i32) -> __m512i {
            // SAFETY: `self` proves AVX-512 F.
            unsafe { _mm512_set1_epi32(value) }
        }

        #[inline(always)]
        fn quad_dot(self, sum: __m512i, quads: &[u8], other: &[u8; 4]) -> __m512i {
            self.quads_dot(sum, self.quads_load(quads), other)
        }

        #[inline(always)]
        fn quad_dot_signed(self, sum: __m512i, quads: &[u8], other: &[u8; 4]) -> __m512i {
            let quads = self.quads_load(quads);
            let other = self.lane_ints_splat(i32::from_le_bytes(*other));
            // SAFETY: `self` proves AVX-512 BW. The sign of each byte moves from `quads` to `other`.
            let (magnitude, signed) = unsafe {
                let negative = _mm512_movepi8_mask(quads);
                let signed = _mm512_mask_sub_epi8(other, negative, _mm512_setzero_si512(), other);
                (_mm512_abs_epi8(quads), signed)
            };
            self.add_products_of_512_bits(sum, magnitude, signed)
        }

        #[inline(always)]
        fn spread_bits(self, bits: u32, value: u8) -> __m256i {
            // SAFETY: `self` proves AVX-512 BW and VL.
            unsafe { _mm256_maskz_mov_epi8(bits, _mm256_set1_epi8(value as i8)) }
        }

        type Quads = __m512i;

        #[inline(always)]
        fn quads_load(self, bytes: &[u8]) -> __m512i {
            let bytes: &[u8; 64] = bytes.first_chunk().expect("a quad for each lane");
            // SAFETY: reads the 64 borrowed bytes, unaligned; `self` proves AVX-512 F.
            unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
        }

        #[inline(always)]
        fn quads_nibbles(self, quads: __m512i) -> [__m512i; 2] {
            // SAFETY: `self` proves AVX-512 BW. Bits that cross a byte fall to the mask.
            unsafe {
                let mask = _mm512_set1_epi8(15);
                let high = _mm512_srli_epi16::<4>(quads);
                [_mm512_and_si512(quads, mask), _mm512_and_si512(high, mask)]
            }
        }

        #[inline(always)]
        fn quads_fifth_bit(self, quads: __m512i, plane: __m512i, bit: u8) -> __m512i {
            // SAFETY: `self` proves AVX-512 BW.
            unsafe {
                let set = _mm512_test_epi8_mask(plane, _mm512_set1_epi8(1i8 << bit));
                _mm512_or_si512(quads, _mm512_maskz_set1_epi8(set, 16))
            }
        }

        #[inline(always)]
        fn quads_dot(self, sum: __m512i, quads: __m512i, other: &[u8; 4]) -> __m512i {
            self.add_products_of_512_bits(sum, quads, self.lane_ints_splat(i32::from_le_bytes(*other)))
        }

        #[inline(always)]
        fn lanes_add(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: `self` proves AVX-512 F.
            unsafe { _mm512_add_ps(a, b) }
        }

        #[inline(always)]
        fn lanes_larger(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: `self` proves AVX-512 F. The second operand is given where the first isn't above it.
            unsafe { _mm512_max_ps(a, b) }
        }

        #[inline(always)]
        fn lanes_where_above(self, a: __m512, b: __m512, value: __m512) -> __m512 {
            // SAFETY: `self` proves AVX-512 F.
            unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), value) }
        }

        #[inline(always)]
        fn lanes_times_power(self, value: __m512, power: __m512) -> __m512 {
            // SAFETY: `self` proves AVX-512 F.
            unsafe {
                let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(power));
                let one = _mm512_castps_si512(_mm512_set1_ps(1.0));
                _mm512_mul_ps(value, _mm512_castsi512_ps(_mm512_add_epi32(exponent, one)))
            }
        }

        #[inline(always)]
        fn lanes_of_halves(self, values: &[u16]) -> __m512 {
            let values: &[u16; 16] = values.first_chunk().expect("a number for each lane");
            // SAFETY: reads the 16 borrowed numbers, unaligned; `self` proves AVX-512 F.
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(values.as_ptr().cast())) }
        }

        #[inline(always)]
        fn lanes_of_bytes(self, bytes: &[i8]) -> __m512 {
            let bytes: &[i8; 16] = bytes.first_chunk().expect("a number for each lane");
            // SAFETY: reads the 16 borrowed bytes, unaligned; `self` proves AVX-512 F.
            unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()))) }
        }
    };
}
