//! Which model a state belongs to. The same weights in another quantisation are another model, since their
//! states differ; the same model computed with other kernels or layouts has other numerics.

use std::collections::BTreeMap;

use blake3::Hasher;

/// Bytes of a tensor that are looked at in each of three places.
const SAMPLE: usize = 4096;

macro_rules! tag {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 32]);

        impl $name {
            /// The tag with these bytes.
            pub const fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }

            /// The bytes of the tag.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl ::std::fmt::Display for $name {
            /// Lower-case hex.
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}
pub(crate) use tag;

tag! {
    /// Which model: architecture, tokenizer and weights. See [`model_tag`].
    ModelTag
}
tag! {
    /// How the state was computed and laid out. See [`numerics_tag`].
    NumericsTag
}

/// A tensor as far as it tells models apart.
#[derive(Debug, Clone, Copy)]
pub struct TensorIdentity<'a> {
    /// Name in the model file.
    pub name: &'a str,
    /// Name of its type, such as `q4_k`.
    pub dtype: &'a str,
    /// Lengths of its dimensions, outermost first.
    pub shape: &'a [u64],
    /// All its bytes; only the first, middle and last 4 KiB are read.
    pub data: &'a [u8],
}

/// A BLAKE3 hash with a purpose of its own, to which fields are added with their lengths so that none runs
/// into the next.
struct Fields(Hasher);

impl Fields {
    fn new(purpose: &str) -> Self {
        Self(Hasher::new_derive_key(purpose))
    }

    fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    fn field(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    fn facts(&mut self, facts: &BTreeMap<String, String>) {
        self.number(facts.len() as u64);
        for (key, value) in facts {
            self.field(key.as_bytes());
            self.field(value.as_bytes());
        }
    }

    fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

/// Hash of a list of byte strings, such as the tokens and merges of a vocabulary.
pub fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut fields = Fields::new("lichen session digest v1");
    parts.into_iter().for_each(|part| fields.field(part));
    fields.finish()
}

/// The tag of a model: `facts` are what the architecture consists of (layers, heads, rope, …), `tokenizer` is
/// the [`digest`] of the vocabulary, and the weights are sampled tensor by tensor, in any order.
pub fn model_tag<'a>(
    facts: &BTreeMap<String, String>,
    tokenizer: &[u8; 32],
    tensors: impl IntoIterator<Item = TensorIdentity<'a>>,
) -> ModelTag {
    let mut fields = Fields::new("lichen session model v1");
    fields.facts(facts);
    fields.field(tokenizer);
    let mut samples: Vec<[u8; 32]> = tensors.into_iter().map(|tensor| tensor.sample()).collect();
    samples.sort_unstable();
    fields.number(samples.len() as u64);
    samples.iter().for_each(|sample| fields.field(sample));
    ModelTag(fields.finish())
}

/// The tag of numerics: `facts` are what changes the numbers of a state without changing the model, such as
/// the kernel family, the revision of the page formats, and whether keys are stored rotated.
pub fn numerics_tag(facts: &BTreeMap<String, String>) -> NumericsTag {
    let mut fields = Fields::new("lichen session numerics v1");
    fields.facts(facts);
    NumericsTag(fields.finish())
}

impl TensorIdentity<'_> {
    fn sample(&self) -> [u8; 32] {
        let mut fields = Fields::new("lichen session tensor v1");
        fields.field(self.name.as_bytes());
        fields.field(self.dtype.as_bytes());
        fields.number(self.shape.len() as u64);
        self.shape.iter().for_each(|&len| fields.number(len));
        fields.number(self.data.len() as u64);
        let last = self.data.len().saturating_sub(SAMPLE);
        for start in [0, last / 2, last] {
            fields.field(&self.data[start..self.data.len().min(start + SAMPLE)]);
        }
        fields.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn tensor<'a>(name: &'a str, shape: &'a [u64], data: &'a [u8]) -> TensorIdentity<'a> {
        TensorIdentity { name, dtype: "f16", shape, data }
    }

    #[test]
    fn the_order_of_tensors_does_not_matter() {
        let (a, b) = (tensor("a", &[2], &[1, 2]), tensor("b", &[2], &[3, 4]));
        assert_eq!(model_tag(&facts(&[]), &[0; 32], [a, b]), model_tag(&facts(&[]), &[0; 32], [b, a]));
    }

    #[test]
    fn each_part_of_a_model_changes_its_tag() {
        let tag = |facts_of: &[(&str, &str)], tokenizer: u8, tensors: &[TensorIdentity<'_>]| {
            model_tag(&facts(facts_of), &[tokenizer; 32], tensors.iter().copied())
        };
        let data = [5; 4];
        let base = tensor("w", &[2, 2], &data);
        let tags = [
            tag(&[("layers", "2")], 0, &[base]),
            tag(&[("layers", "3")], 0, &[base]),
            tag(&[("layer", "s2")], 0, &[base]),
            tag(&[], 0, &[base]),
            tag(&[("layers", "2")], 1, &[base]),
            tag(&[("layers", "2")], 0, &[]),
            tag(&[("layers", "2")], 0, &[base, base]),
            tag(&[("layers", "2")], 0, &[tensor("v", &[2, 2], &data)]),
            tag(&[("layers", "2")], 0, &[tensor("w", &[4], &data)]),
            tag(&[("layers", "2")], 0, &[tensor("w", &[2, 2], &[5, 5, 5, 6])]),
            tag(&[("layers", "2")], 0, &[TensorIdentity { dtype: "q8_0", ..base }]),
        ];
        let different: std::collections::BTreeSet<_> = tags.iter().collect();
        assert_eq!(different.len(), tags.len());
    }

    #[test]
    fn large_tensors_differ_by_their_first_middle_and_last_bytes() {
        let shape = [100_000];
        let mut data = vec![0; 100_000];
        let before = model_tag(&facts(&[]), &[0; 32], [tensor("w", &shape, &data)]);
        for place in [0, 50_000, 99_999] {
            data[place] = 1;
            assert_ne!(model_tag(&facts(&[]), &[0; 32], [tensor("w", &shape, &data)]), before);
            data[place] = 0;
        }
    }

    #[test]
    fn model_numerics_and_lists_have_hashes_of_their_own() {
        assert_ne!(numerics_tag(&facts(&[])).as_bytes(), model_tag(&facts(&[]), &[0; 32], []).as_bytes());
        assert_ne!(digest([b"ab".as_slice(), b"c"]), digest([b"a".as_slice(), b"bc"]));
    }
}
