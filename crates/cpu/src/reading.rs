//! Reading memory and doing nothing with it: what decoding, which reads every weight once, is measured against.

use crate::table;
use crate::team::Team;
use lichen_simd::Isa;
use std::hint::black_box;

/// Bytes that a thread reads at a time.
const TASK_BYTES: usize = 256 << 10;
/// Bytes of a turn of the loop.
const STEP: usize = 256;

/// Reads all bytes once with all threads of a team, in wide loads; to be timed by the caller.
pub fn read_all(team: &Team, parts: &[&[u8]]) {
    let isa = table::instruction_sets().next().expect("the scalar set runs everywhere");
    let kernels = table::kernels(isa).expect("it was listed");
    let tasks: Vec<&[u8]> = parts.iter().flat_map(|part| part.chunks(TASK_BYTES)).collect();
    team.run(tasks.len(), |task, _| {
        black_box((kernels.read)(tasks[task]));
    });
}

/// All bytes or-ed together, 32 of them side by side.
#[inline(always)]
pub(crate) fn read<I: Isa>(isa: I, bytes: &[u8]) -> [u8; 32] {
    let mut sums = [isa.load(&[0; 32]); STEP / 32];
    let (steps, rest) = bytes.as_chunks::<STEP>();
    for step in steps {
        for (sum, bytes) in sums.iter_mut().zip(step.as_chunks::<32>().0) {
            *sum = isa.or(*sum, isa.load(bytes));
        }
    }
    let mut last = [0; 32];
    for (at, byte) in rest.iter().enumerate() {
        last[at % 32] |= byte;
    }
    isa.store(sums.into_iter().fold(isa.load(&last), |all, sum| isa.or(all, sum)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lichen_simd::Scalar;

    #[test]
    fn every_byte_is_seen() {
        let scalar = Scalar::new().unwrap();
        for len in [1, 31, 32, 255, 256, 257, 1000] {
            for place in 0..len {
                let mut bytes = vec![0u8; len];
                bytes[place] = 0x80;
                let seen = read(scalar, &bytes);
                let one = seen.iter().filter(|&&byte| byte == 0x80).count();
                assert!(one == 1 && seen[place % 32] == 0x80, "byte {place} of {len}");
            }
        }
    }

    #[test]
    fn parts_of_any_length_are_read_with_any_number_of_threads() {
        let bytes = vec![1u8; 2 * TASK_BYTES + 77];
        for threads in [1, 2, 3] {
            let team = Team::of(threads).unwrap();
            read_all(&team, &[&bytes, &bytes[..5], &[]]);
        }
    }
}
